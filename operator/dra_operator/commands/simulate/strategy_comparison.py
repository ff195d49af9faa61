"""How many devices each placement strategy gives away, in this cluster and to these pods: which setting is worth it.

All pods with claims leave their nodes and arrive anew, the oldest first; pods without claims stay. Then copies of those
whose claims come from templates arrive in the same order, until all have asked for ``DEMAND_PERCENT`` of the devices.
Each strategy sees the same pods. Its figures are those of the operator's own filters and allocator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from dra_api.core import Pod
from dra_api.meta import Object
from dra_api.resource import ResourceClaimTemplate, ResourceSlice

from dra_operator.allocator import Features, Semantics
from dra_operator.commands.arrivals import anew, can_be_copied, without_pods
from dra_operator.commands.device_shares import THOUSANDTHS_OF_DEVICE, DeviceShares
from dra_operator.commands.object_files import BadInput, of_kind
from dra_operator.commands.simulated.cluster import SimulatedCluster, simulated
from dra_operator.commands.simulated.placing import reserve
from dra_operator.controllers.scheduling.mix import Asked
from dra_operator.scheduling import PLACEMENT_STRATEGIES, CycleState, Plan, decided, plan, pre_filter

DEMAND_PERCENT: Final = 130
MOST_TRIED_PODS: Final = 2_000
WORTH_PERCENT: Final = 1
"""More devices than with the default, from which on a strategy is advised."""
HEADER: Final = ("STRATEGY", "PODS PLACED", "OF", "DEVICES", "OF THE CLUSTER")


class Figures(NamedTuple):
    """What a strategy reached. ``given`` and ``all_devices``: in thousandths of devices."""

    strategy: str
    placed: int
    tried: int
    given: int
    all_devices: int


def compared(
    objects: Sequence[Object], *, features: Features, semantics: Semantics, mix: Sequence[Asked]
) -> Iterator[Figures]:
    """By each strategy. Raises BadInput."""
    published = DeviceShares(of_kind(ResourceSlice, objects))
    arriving = _arriving(objects, published)
    if not arriving:
        raise BadInput("no pod with claims in the files, nothing to compare: pass a snapshot (kubectl dra snapshot)")
    for strategy in PLACEMENT_STRATEGIES:
        cluster = simulated(arriving, None, features=features, semantics=semantics, strategy=strategy, mix=mix)
        yield _figures(strategy, cluster, published)


def _arriving(objects: Sequence[Object], published: DeviceShares) -> list[Object]:
    """The objects as they would be before the pods arrive, the pods in order, with copies; empty without such pods."""
    pods = [
        it for it in of_kind(Pod, objects) if it.spec.resource_claims and it.status.phase not in ("Succeeded", "Failed")
    ]
    pods.sort(key=lambda it: (it.metadata.creation_timestamp or "", it.key))
    if not pods:
        return []
    templates = {it.key: it for it in of_kind(ResourceClaimTemplate, objects)}
    return [*without_pods(objects, pods), *_repeated(pods, templates, published)]


def _repeated(
    pods: Sequence[Pod], templates: Mapping[str, ResourceClaimTemplate], published: DeviceShares
) -> Iterator[Pod]:
    asked = {pod.key: published.asked_by(pod, templates) for pod in pods}
    yield from map(anew, pods)
    sum_asked, number = sum(asked.values()), len(pods)
    copied = [pod for pod in pods if can_be_copied(pod)]
    for copy in range(1, MOST_TRIED_PODS) if copied else ():
        for pod in copied:
            if 100 * sum_asked >= DEMAND_PERCENT * published.all or number >= MOST_TRIED_PODS:
                return
            yield anew(pod, copy)
            sum_asked, number = sum_asked + asked[pod.key], number + 1


def _figures(strategy: str, simulated: SimulatedCluster, published: DeviceShares) -> Figures:
    placed = tried = given = 0
    cluster = simulated.cluster
    for pod in simulated.pods:
        if pod.spec.node_name:
            continue
        tried += 1
        state = pre_filter(pod, cluster.snapshot(simulated.allocator, datetime.now(UTC)))
        if not isinstance(state, CycleState):
            continue
        simulated.learner.see(pod, state.resource_claims)
        found = decided(plan(state, placement=simulated.placement))
        if isinstance(found, Plan):
            reserve(state, found, cluster)
            placed += 1
            given += sum(published.given(it) for one in found.allocations.values() for it in one.devices.results or ())
    return Figures(strategy, placed, tried, given, published.all)


def table(figures: Sequence[Figures]) -> Iterator[str]:
    """A row for each strategy, and the advice."""
    rows = [HEADER]
    for it in figures:
        percent = f"{100 * it.given / it.all_devices:.2f} %" if it.all_devices else "-"
        rows.append((it.strategy, str(it.placed), str(it.tried), f"{it.given / THOUSANDTHS_OF_DEVICE:.2f}", percent))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    yield ""
    yield advice(figures)


def advice(figures: Sequence[Figures]) -> str:
    """Which strategy to set. ``figures`` begins with the default; of equal ones, the first."""
    default, best = figures[0], max(figures, key=lambda it: (it.given, it.placed))
    more = best.given - default.given
    if more <= 0 or 100 * more < WORTH_PERCENT * default.given:
        return (
            f"no strategy gives away {WORTH_PERCENT} % more devices than {default.strategy}: leave the setting as it is"
        )
    percent = f", {100 * more / default.given:.0f} % more than {default.strategy}" if default.given else ""
    return f"run the operator with --placement-strategy {best.strategy}: it gives away most devices{percent}"
