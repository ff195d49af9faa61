"""A ResourcePoolStatusRequest is answered once, and deleted when it is old (claim-controller.md 12).

The controller ``pool-status``. A pool that lacks slices may just be published, so the answer waits a few seconds for
it; then it is given all the same, with what is missing in words. A status is never changed: a request that has one,
from whatever controller, is only waited for until it is old. After a crash, or an answer that was lost, the next look
finds either no status, and gives it, or the status, and is done.

The answer (``pool_answer``) says how many devices a driver's pools have, and how many are taken. Only slices of a
pool's highest generation count (claim-controller.md section 12). A device is taken while any claim holds it, or a share
of it; admin access takes nothing. A device that is on its way to a claim is taken already.

From Kubernetes 1.37 on, tainted devices that are not taken are unavailable, and the answer has two summaries more: of
partitions and of shared devices. Both are of one whole pool. They look at allocations, not at taints or compatibility
groups (kubernetes-1.37.md section 13, K37-PS-03 to -10).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from dra_api.meta import Condition
from dra_api.releases import Release
from dra_api.resource import (
    Device,
    PartitionTypeStatus,
    PoolStatus,
    ResourcePoolStatusRequest,
    ResourcePoolStatusRequestStatus,
    ResourceSlice,
    ShareableCapacityStatus,
    ShareableSummaryStatus,
)
from dra_api.values import Quantity, format_time, parse_time
from dra_kube import NotFound
from dra_ledger.pools import newest_slices
from msgspec import structs

from dra_operator.allocator import Features, PoolId, Usage, blocking, lookup
from dra_operator.cache import Key
from dra_operator.controllers.context import ControllerContext
from dra_operator.controllers.metrics import OTHERS, PoolRequestMetrics
from dra_operator.kube import PoolRequestWriter
from dra_operator.wording import counted

INCOMPLETE_POOL_LOOKS = 5  # looks at an incomplete pool after the first
INCOMPLETE_POOL_SECONDS = 1.0  # seconds between them
ANSWERED_SECONDS = 3600.0  # that a request is kept after its answer
UNANSWERED_SECONDS = 86400.0  # that one without an answer is kept after its creation
POOL_LOOK_SECONDS = 600.0


class PoolReporter:
    """Handles ``pool-status:`` keys."""

    def __init__(self, context: ControllerContext, requests: PoolRequestWriter, metrics: PoolRequestMetrics) -> None:
        self._cluster, self._requests, self._metrics = context.cluster, requests, metrics
        self._queue, self._now = context.queues.of("pool-status"), context.now
        self._tries: dict[str, tuple[str, int]] = {}
        """By name: the UID of a request, and how often its pools were incomplete."""

    async def handle(self, key: str) -> None:
        """Answer the request, or see whether it is old."""
        request = self._cluster.store_of(ResourcePoolStatusRequest).get(key)
        if request is None:
            self._tries.pop(key, None)
            return
        if (left := self._time_left(request)) <= 0:
            await self._requests.delete(request)
            return
        if request.status is None and not await self._answer(request):
            return
        self._queue.add_after(Key("pool-status", key), min(left, POOL_LOOK_SECONDS))

    async def _answer(self, request: ResourcePoolStatusRequest) -> bool:
        """Return whether the request is done with; otherwise it is looked at again by itself."""
        key, uid = request.metadata.name, request.metadata.uid
        cluster = self._cluster
        slices = (cluster.inventory.slice(slice_.metadata.name) or slice_ for slice_ in cluster.slices)
        now = format_time(self._now())
        status = pool_answer(request, slices, cluster.allocated_devices.usage, now, cluster.features)
        known, tries = self._tries.get(key, (uid, 0))
        # A new request of the same name starts anew.
        tries = tries if known == uid else 0
        if incomplete_pools(status.pools) and tries < INCOMPLETE_POOL_LOOKS:
            self._tries[key] = (uid, tries + 1)
            self._queue.add_after(Key("pool-status", key), INCOMPLETE_POOL_SECONDS)
            return False
        try:
            with self._metrics.processing(request.spec.driver if status.pool_count else OTHERS):
                await self._requests.answer(request, status)
        except NotFound:
            return False  # deleted meanwhile
        self._tries.pop(key, None)
        return True

    def _time_left(self, request: ResourcePoolStatusRequest) -> float:
        """Return the seconds until the request is old; a time that is missing or cannot be read counts as now."""
        conditions = request.status.conditions or () if request.status is not None else ()
        times = [condition.last_transition_time for condition in conditions]
        since, kept = (
            (times[0], ANSWERED_SECONDS) if times else (request.metadata.creation_timestamp, UNANSWERED_SECONDS)
        )
        now = self._now()
        return kept - (now - (parse_time(since) or now)).total_seconds()


SUMMARY_ENTRIES: Final = 32
"""Entries that a summary may have."""

Cost = Mapping[tuple[str, str], int]
"""(counter set, counter) -> billionths."""


class SummaryError(Exception):
    """A summary cannot be made; the text begins with the code that tells programs why."""


class Partition(NamedTuple):
    """A device that draws on shared counters, and what it is counted as."""

    attribute: str
    type: str
    cost: Cost
    is_in_use: bool


def partition_summary(
    pool: PoolId, slices: Sequence[ResourceSlice], default_attribute: str | None, in_use: Iterable[str]
) -> tuple[PartitionTypeStatus, ...] | None:
    """How many devices of each type there are, and could still be allocated if only this type were.

    None if no device has an attribute that names its type. Raises SummaryError.
    """
    if not any(slice_.spec.partition_type_attribute or default_attribute for slice_ in slices if _devices(slice_)):
        return None
    if not any(slice_.spec.shared_counters for slice_ in slices):
        raise SummaryError(f"PartitionTypeMissing: pool {pool} has an attribute for partition types, and no counters")
    taken = frozenset(in_use)
    by_type: dict[tuple[str, str], list[Partition]] = {}
    for one in _partitions(pool, slices, default_attribute, taken):
        same = by_type.setdefault((one.attribute, one.type), [one])
        if same[0] is not one:
            same.append(one)
        # Two costs would not tell how many of the type still fit.
        if same[0].cost != one.cost:
            raise SummaryError(f"PartitionCostMismatch: pool {pool}: devices of type {one.type} draw different amounts")
    if len(by_type) > SUMMARY_ENTRIES:
        raise SummaryError(f"PartitionSummaryOverCap: pool {pool} has {counted(len(by_type), 'partition type')}")
    # Counted once for all types: each is asked as if only it were allocated from now on.
    left = _left(slices, taken)
    return tuple(
        PartitionTypeStatus(attribute=attribute, type=type_, total=len(same), allocatable=_allocatable(same, left))
        for (attribute, type_), same in sorted(by_type.items())
    )


def shareable_summary(
    pool: PoolId, slices: Sequence[ResourceSlice], in_use: Iterable[str], consumed: Mapping[str, Mapping[str, int]]
) -> ShareableSummaryStatus | None:
    """What is left of the capacity of devices that several claims can share; None if there are no such devices.

    ``consumed``: by device and capacity, in billionths. Raises SummaryError.
    """
    shared = {it.name: it for slice_ in slices for it in _devices(slice_) if it.allow_multiple_allocations}
    if not shared:
        return None
    total: dict[str, Quantity] = {}
    for device in shared.values():
        for name, capacity in (device.capacity or {}).items():
            total[name] = total[name] + capacity.value if name in total else capacity.value
    if len(total) > SUMMARY_ENTRIES:
        raise SummaryError(f"ShareableSummaryOverCap: pool {pool} has {counted(len(total), 'shared capacity name')}")
    partly = len(shared.keys() & frozenset(in_use))
    return ShareableSummaryStatus(
        fully_available_devices=len(shared) - partly,
        partially_available_devices=partly,
        capacity=tuple(
            _capacity(name, amount, sum(amounts.get(name, 0) for amounts in consumed.values()))
            for name, amount in sorted(total.items())
        ),
    )


def _devices(slice_: ResourceSlice) -> Sequence[Device]:
    return slice_.spec.devices or ()


def _partitions(
    pool: PoolId, slices: Sequence[ResourceSlice], default_attribute: str | None, taken: frozenset[str]
) -> Iterator[Partition]:
    for slice_ in slices:
        attribute = slice_.spec.partition_type_attribute or default_attribute or ""
        for device in _devices(slice_) if attribute else ():
            if not device.consumes_counters:
                continue
            value = lookup(device, pool.driver, attribute)
            if value is None or value.string is None:
                raise SummaryError(
                    f"PartitionTypeMissing: pool {pool}: device {device.name} has no text in {attribute}"
                )
            yield Partition(attribute, value.string, _cost(device), device.name in taken)


def _cost(device: Device) -> Cost:
    cost: dict[tuple[str, str], int] = {}
    for consumption in device.consumes_counters or ():
        for name, counter in (consumption.counters or {}).items():
            key = (consumption.counter_set, name)
            cost[key] = cost.get(key, 0) + counter.value.nanos
    return cost


def _left(slices: Sequence[ResourceSlice], taken: frozenset[str]) -> Cost:
    """The counters of the pool without what devices in use draw, each once."""
    left = {
        (counter_set.name, name): counter.value.nanos
        for slice_ in slices
        for counter_set in slice_.spec.shared_counters or ()
        for name, counter in (counter_set.counters or {}).items()
    }
    for slice_ in slices:
        for device in _devices(slice_):
            for key, amount in _cost(device).items() if device.name in taken else ():
                if key in left:
                    left[key] -= amount
    return left


def _allocatable(same: Sequence[Partition], left: Cost) -> int:
    """How many of the free ones the counters suffice for: all of them cost the same."""
    free = sum(not one.is_in_use for one in same)
    return min([free, *(_times(left.get(key, -1), amount, free) for key, amount in same[0].cost.items())])


def _times(left: int, amount: int, most: int) -> int:
    """How often an amount can be taken."""
    if left < 0:
        return 0
    return left // amount if amount > 0 else most


def _capacity(name: str, total: Quantity, consumed_nanos: int) -> ShareableCapacityStatus:
    return ShareableCapacityStatus(
        name=name,
        total=total,
        consumed=Quantity.of_format(consumed_nanos, total.format),
        available=Quantity.of_format(max(0, total.nanos - consumed_nanos), total.format),
    )


DEFAULT_POOLS = 100  # pools in an answer, if the request does not say
ERROR_BYTES = 256
INCOMPLETE = "PoolIncomplete: "
"""Leads the error of a pool that lacks slices, from 1.37 on."""


def pool_answer(
    request: ResourcePoolStatusRequest, slices: Iterable[ResourceSlice], usage: Usage, now: str, features: Features
) -> ResourcePoolStatusRequestStatus:
    """All pools that the request asks for, sorted; incomplete ones say so and have no counts.

    ``slices`` have the taints of DeviceTaintRules, if these count.
    """
    spec = request.spec
    asked = (
        slice_
        for slice_ in slices
        if slice_.spec.driver == spec.driver and spec.pool_name in (None, slice_.spec.pool.name)
    )
    attribute = spec.default_partition_type_attribute
    pools = [_status(pool, newest, usage, attribute, features) for pool, newest in sorted(newest_slices(asked).items())]
    incomplete = incomplete_pools(pools)
    message = f"Calculated status for {counted(len(pools), 'pool')}" + (
        f" ({incomplete} incomplete)" * bool(incomplete)
    )
    done = Condition(
        type="Complete", status="True", reason="CalculationComplete", message=message, last_transition_time=now
    )
    limit = DEFAULT_POOLS if spec.limit is None else spec.limit
    return ResourcePoolStatusRequestStatus(pool_count=len(pools), pools=tuple(pools[:limit]), conditions=(done,))


def incomplete_pools(pools: Iterable[PoolStatus] | None) -> int:
    """How many of them lack slices."""
    return sum(pool.total_devices is None for pool in pools or ())


def _status(
    pool: PoolId, newest: Sequence[ResourceSlice], usage: Usage, attribute: str | None, features: Features
) -> PoolStatus:
    generation = newest[0].spec.pool.generation
    nodes = {slice_.spec.node_name for slice_ in newest}
    known = PoolStatus(
        driver=pool.driver,
        pool_name=pool.pool,
        generation=generation,
        node_name=nodes.pop() or None if len(nodes) == 1 else None,
    )
    announced = max(slice_.spec.pool.resource_slice_count for slice_ in newest)
    is_new = features.release >= Release.V1_37
    # Counts of half a pool would be wrong in silence, so an incomplete one has none.
    if len(newest) < announced:
        text = f"pool {pool} is incomplete: observed {len(newest)}/{announced} slices at generation {generation}"
        return structs.replace(known, validation_error=_cut(INCOMPLETE * is_new + text))
    devices = {device.name for slice_ in newest for device in slice_.spec.devices or ()}
    held = usage.pool(pool)
    # Shares count too: a device of which a part is taken is not free.
    taken = held.exclusive.keys() | held.shares.keys()
    tainted = _tainted(newest) - taken if is_new and features.device_taints else set()
    counts = structs.replace(
        known,
        resource_slice_count=len(newest),
        total_devices=len(devices),
        allocated_devices=len(taken),
        available_devices=len(devices - taken - tainted),
        unavailable_devices=len(tainted),
    )
    return _with_summaries(counts, pool, newest, usage, attribute, features) if is_new else counts


def _with_summaries(
    counts: PoolStatus,
    pool: PoolId,
    newest: Sequence[ResourceSlice],
    usage: Usage,
    attribute: str | None,
    features: Features,
) -> PoolStatus:
    """Adds the summaries; the first error takes the place of the partitions, and leaves the counts (K37-PS-09)."""
    held = usage.pool(pool)
    partitions = shareable = error = None
    try:
        if features.partition_types:
            partitions = partition_summary(pool, newest, attribute, held.charged)
    except SummaryError as found:
        error = found
    try:
        shareable = shareable_summary(pool, newest, held.charged, held.consumed)
    except SummaryError as found:
        error = error or found
    return structs.replace(
        counts,
        partition_summary=partitions if error is None else None,
        shareable_summary=shareable,
        validation_error=_cut(str(error)) if error is not None else None,
    )


def _tainted(slices: Iterable[ResourceSlice]) -> set[str]:
    """The devices on which no request without tolerations may be served."""
    devices = (device for slice_ in slices for device in slice_.spec.devices or ())
    return {device.name for device in devices if blocking(device.taints, None) is not None}


def _cut(text: str) -> str:
    return text.encode()[:ERROR_BYTES].decode(errors="ignore")
