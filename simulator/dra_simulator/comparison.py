"""``simulate --compare-strategies``: how many of the pods of a cluster each placement strategy finds room for.

All pods with devices arrive anew, in a shuffled order, until one finds no place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from dra_api.core import Pod, PodStatus
from dra_api.meta import Object
from dra_api.quantity import Quantity
from dra_api.resource import (
    DeviceRequest,
    DeviceRequestAllocationResult,
    ResourceClaim,
    ResourceClaimSpec,
    ResourceClaimStatus,
    ResourceClaimTemplate,
    ResourceSlice,
)
from dra_operator.allocator import DeviceId, Features, Semantics
from dra_operator.commands.object_files import BadInput, of_kind
from dra_operator.commands.simulated import SimulatedCluster, reserve, simulated
from dra_operator.controllers.scheduling.mix import Asked
from dra_operator.scheduling import PLACEMENT_STRATEGIES, CycleState, Plan, decided, plan, pre_filter
from msgspec.structs import replace


def without_pods(objects: Iterable[Object], pods: Sequence[Pod]) -> Iterator[Object]:
    """The other objects. Claims that were made for pods are left out, and no claim has devices."""
    keys = {pod.key for pod in pods}
    for it in objects:
        if isinstance(it, ResourceClaim):
            owner = it.metadata.controller
            if owner is None or owner.kind != "Pod":
                yield replace(it, status=ResourceClaimStatus())
        elif not (isinstance(it, Pod) and it.key in keys):
            yield it


def anew(pod: Pod, copy: int = 0) -> Pod:
    """The pod before it has a node; copies have names and UIDs of their own."""
    meta = pod.metadata
    if copy:
        meta = replace(meta, name=f"{meta.name}-copy-{copy}", uid=f"{meta.uid or pod.key}-copy-{copy}")
    return replace(pod, metadata=meta, spec=replace(pod.spec, node_name=""), status=PodStatus())


def can_be_copied(pod: Pod) -> bool:
    """Whether all its claims come from templates; a claim that pods name is there once."""
    return all(it.resource_claim_template_name for it in pod.spec.resource_claims or ())


THOUSANDTHS_OF_DEVICE: Final = 1000


class DeviceShares:
    """By the capacities that slices publish."""

    def __init__(self, slices: Sequence[ResourceSlice]) -> None:
        self.all = THOUSANDTHS_OF_DEVICE * sum(len(it.spec.devices or ()) for it in slices)
        """Thousandths of devices that are published."""
        self._capacity: dict[DeviceId, Mapping[str, int]] = {}
        self._largest: dict[str, int] = {}
        for slice_ in slices:
            for device in slice_.spec.devices or ():
                capacity = {name: it.value.nanos for name, it in (device.capacity or {}).items()}
                self._capacity[DeviceId(slice_.spec.driver, slice_.spec.pool.name, device.name)] = capacity
                for name, nanos in capacity.items():
                    self._largest[name] = max(nanos, self._largest.get(name, 0))

    def given(self, result: DeviceRequestAllocationResult) -> int:
        """Thousandths of a device that were allocated."""
        return _part(result.consumed_capacity or {}, self._capacity.get(DeviceId.of(result), {}))

    def asked(self, spec: ResourceClaimSpec) -> int:
        """Thousandths of devices that a claim is for; shares are parts of the largest device."""
        return sum(map(self._asked, spec.devices.requests or ()))

    def asked_by(self, pod: Pod, templates: Mapping[str, ResourceClaimTemplate]) -> int:
        """What the pod's claims from templates ask for; something in any case."""
        names = [f"{pod.metadata.namespace}/{it.resource_claim_template_name}" for it in pod.spec.resource_claims or ()]
        return max(1, sum(self.asked(templates[it].spec.spec) for it in names if it in templates))

    def _asked(self, request: DeviceRequest) -> int:
        wanted = request.exactly
        if wanted is None:
            return THOUSANDTHS_OF_DEVICE
        requested = (wanted.capacity.requests if wanted.capacity is not None else None) or {}
        return max(1, wanted.count) * max(1, _part(requested, self._largest))


def _part(amounts: Mapping[str, Quantity], capacity: Mapping[str, int]) -> int:
    parts = [
        amount.nanos * THOUSANDTHS_OF_DEVICE // capacity[name] for name, amount in amounts.items() if capacity.get(name)
    ]
    return min(THOUSANDTHS_OF_DEVICE, max(parts, default=THOUSANDTHS_OF_DEVICE))


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
