"""The answer to a ResourcePoolStatusRequest: how many devices of a driver's pools there are, and are taken. Pure.

Only slices of a pool's highest generation count (claim-controller.md section 12). A device is taken while any claim
holds it, or a share of it; admin access takes nothing. What is on its way to a claim is taken already.

From Kubernetes 1.37 on tainted devices that are not taken are unavailable, and summaries say more of partitions and of
shared devices (kubernetes-1.37.md section 13).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dra_api.meta import Condition
from dra_api.releases.release import Release
from dra_api.resource import (
    PoolStatus,
    ResourcePoolStatusRequest,
    ResourcePoolStatusRequestStatus,
    ResourceSlice,
)
from msgspec import structs

from dra_operator.allocator import Features, PoolId, Usage, blocking
from dra_operator.cache.objects.newest_slices import newest_slices
from dra_operator.wording import counted

from .pool_summaries import SummaryError, partition_summary, shareable_summary

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
    if len(newest) < announced:
        text = f"pool {pool} is incomplete: observed {len(newest)}/{announced} slices at generation {generation}"
        return structs.replace(known, validation_error=_cut(INCOMPLETE * is_new + text))
    devices = {device.name for slice_ in newest for device in slice_.spec.devices or ()}
    held = usage.pool(pool)
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
