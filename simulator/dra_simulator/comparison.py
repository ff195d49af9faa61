"""``simulate --compare-strategies``: how many of the pods of a cluster each placement strategy finds room for; and the
times of a snapshot's pods.

All pods with devices arrive anew, in a shuffled order, until one finds no place. The history of a snapshot says when
its pods came and went, and how many devices were in use and how many pods waited over that time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from dra_api.core import Pod, PodStatus
from dra_api.meta import Object
from dra_api.resource import (
    DeviceRequest,
    DeviceRequestAllocationResult,
    ResourceClaim,
    ResourceClaimSpec,
    ResourceClaimStatus,
    ResourceClaimTemplate,
    ResourceSlice,
)
from dra_api.values import Quantity, parse_time
from dra_operator.allocator import DeviceId, Features, Semantics
from dra_operator.commands.file_items import BadInput
from dra_operator.commands.object_files import of_kind
from dra_operator.commands.simulated import SimulatedCluster, reserve, simulated
from dra_operator.controllers.scheduling.mix import Asked
from dra_operator.scheduling import PLACEMENT_STRATEGIES, CycleState, Plan, decided, plan, pre_filter
from msgspec.structs import replace

from dra_simulator.runs import aligned


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
    yield from aligned(rows)
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


class Wait(NamedTuple):
    """Of one pod that came within the week."""

    seconds: float
    is_over: bool
    """Whether it got a node; otherwise it waits at the end."""


class Step(NamedTuple):
    """From one time on, up to the next step."""

    seconds: float
    used: int
    """Thousandths of devices."""
    waiting: int
    """Pods."""


class Sample(NamedTuple):
    """The means of some time."""

    used_percent: float
    """Of the cluster's devices."""
    waiting: float
    """Pods."""


class Course(NamedTuple):
    """With one strategy, or as it was."""

    name: str
    seconds: float
    """How long the week is."""
    all_devices: int
    """Thousandths of devices."""
    steps: Sequence[Step]
    waits: Sequence[Wait]

    @property
    def started(self) -> int:
        """Pods that got a node, of those that came within the week."""
        return sum(it.is_over for it in self.waits)

    @property
    def mean_wait(self) -> float:
        """Seconds; pods that wait at the end count with what they have waited."""
        return sum(it.seconds for it in self.waits) / len(self.waits) if self.waits else 0.0

    @property
    def longest_wait(self) -> float:
        """Seconds."""
        return max((it.seconds for it in self.waits), default=0.0)

    @property
    def used_percent(self) -> float:
        """Mean share of devices in use over the week, in percent."""
        return self.sampled(1)[0].used_percent

    def sampled(self, parts: int) -> list[Sample]:
        """The means of as many equal parts of the week."""
        used = self._means([it.used for it in self.steps], parts)
        waiting = self._means([it.waiting for it in self.steps], parts)
        share = 100 / self.all_devices if self.all_devices else 0.0
        return [Sample(one * share, other) for one, other in zip(used, waiting, strict=True)]

    def _means(self, values: Sequence[int], parts: int) -> list[float]:
        times = [it.seconds for it in self.steps]
        lengths = [end - start for start, end in pairwise([*times, self.seconds])]
        areas = [0.0, *accumulate(value * length for value, length in zip(values, lengths, strict=True))]

        def area(until: float) -> float:
            place = bisect_right(times, until) - 1
            return areas[place] + values[place] * (until - times[place]) if place >= 0 else 0.0

        bounds = [self.seconds * number / parts for number in range(parts + 1)]
        return [(area(end) - area(start)) / (end - start) if end > start else 0.0 for start, end in pairwise(bounds)]


WEEK_SECONDS: Final = 7 * 86_400
READY: Final = "Ready"
SCHEDULED: Final = "PodScheduled"


class Life(NamedTuple):
    """One pod. Times are seconds after the window began, so that what came before it is negative."""

    pod: Pod
    created: float
    scheduled: float | None
    """None if the pod has no node."""
    ended: float | None
    """None if the pod still runs or waits."""

    @property
    def is_of_window(self) -> bool:
        """Whether it came within the window: its waiting counts."""
        return self.created >= 0

    @property
    def runs(self) -> float | None:
        """The seconds of the window, or later, for which the pod holds its devices; None if the end is not known."""
        if self.ended is None or self.scheduled is None:
            return None
        return max(0.0, self.ended - max(0.0, self.scheduled))


class History(NamedTuple):
    """The window, and the pods with claims that were there within it."""

    start: datetime
    seconds: float
    """How long it is."""
    lives: Sequence[Life]
    """In the order in which they come: first what had a node before the window, then what waited, then by creation."""
    undated: int
    """Pods that are left out, because their times are not known."""


def history(pods: Iterable[Pod]) -> History | None:
    """The week before the newest time that a pod has; None without pods that have claims and a time."""
    chosen = [pod for pod in pods if pod.spec.resource_claims]
    times = [moment for pod in chosen for moment in _times(pod)]
    if not times:
        return None
    end = max(times)
    start = end - min(timedelta(seconds=WEEK_SECONDS), end - min(times))
    found = [_life(pod, start) for pod in chosen]
    lives = [it for it in found if it is not None and (it.ended is None or it.ended > 0)]
    return History(start, (end - start).total_seconds(), sorted(lives, key=_order), found.count(None))


def _order(life: Life) -> tuple[int, float, str]:
    if life.scheduled is not None and life.scheduled <= 0:
        return 0, life.scheduled, life.pod.key
    return 1, life.created, life.pod.key


def _life(pod: Pod, start: datetime) -> Life | None:
    created = parse_time(pod.metadata.creation_timestamp)
    scheduled = _changed(pod, SCHEDULED, "True") if pod.spec.node_name else None
    ended = _changed(pod, READY) if pod.is_terminal else None
    if created is None or (scheduled is None if pod.spec.node_name else pod.is_terminal):
        return None
    if pod.is_terminal and ended is None:
        return None
    return Life(pod, *(None if it is None else (it - start).total_seconds() for it in (created, scheduled, ended)))  # type: ignore[arg-type]


def _times(pod: Pod) -> Iterator[datetime]:
    created = parse_time(pod.metadata.creation_timestamp)
    for moment in (created, *(parse_time(it.last_transition_time) for it in pod.status.conditions or ())):
        if moment is not None:
            yield moment


def _changed(pod: Pod, type_: str, status: str = "") -> datetime | None:
    """Return when a condition changed last, or None if it is not there, or has another status than this."""
    found = next((it for it in pod.status.conditions or () if it.type == type_), None)
    return parse_time(found.last_transition_time) if found is not None and status in ("", found.status) else None


AS_IT_WAS: Final = "as it was"


class _Change(NamedTuple):
    seconds: float
    number: int
    """Of pods that hold the claims, more or fewer."""
    claims: tuple[tuple[str, int], ...]
    """Keys, with thousandths of devices."""
    waiting: int


def as_it_was(history: History, objects: Sequence[Object], shares: DeviceShares) -> Course:
    """The week that the pods tell of."""
    asked = {it.key: shares.asked(it.spec) for it in of_kind(ResourceClaim, objects)}
    templates = {it.key: shares.asked(it.spec.spec) for it in of_kind(ResourceClaimTemplate, objects)}
    changes = [change for life in history.lives for change in _changes(life, asked, templates)]
    users: Counter[str] = Counter()
    used = waiting = 0
    steps: list[Step] = []
    for change in sorted(changes):
        waiting += change.waiting
        for key, amount in change.claims:
            before = users[key]
            users[key] += change.number
            used += amount * ((users[key] > 0) - (before > 0))
        steps.append(Step(change.seconds, used, waiting))
    waits = [_wait(life, history) for life in history.lives if life.is_of_window]
    return Course(AS_IT_WAS, history.seconds, shares.all, [it for it in steps if it.seconds <= history.seconds], waits)


def _wait(life: Life, history: History) -> Wait:
    until = history.seconds if life.scheduled is None else life.scheduled
    return Wait(max(0.0, until - life.created), is_over=life.scheduled is not None)


def _changes(life: Life, asked: dict[str, int], templates: dict[str, int]) -> Iterator[_Change]:
    claims = tuple(_claims(life, asked, templates))
    yield _Change(max(0.0, life.created), 0, (), 1)
    if life.scheduled is not None:
        yield _Change(max(0.0, life.scheduled), 1, claims, -1)
    if life.ended is not None:
        yield _Change(life.ended, -1, claims, 0)


def _claims(life: Life, asked: dict[str, int], templates: dict[str, int]) -> Iterator[tuple[str, int]]:
    namespace = life.pod.metadata.namespace
    for entry in life.pod.spec.resource_claims or ():
        if entry.resource_claim_name is not None:
            key = f"{namespace}/{entry.resource_claim_name}"
            yield key, asked.get(key, 0)
        else:
            key = f"{namespace}/{entry.resource_claim_template_name}"
            yield f"{life.pod.key} {entry.name}", templates.get(key, 0)
