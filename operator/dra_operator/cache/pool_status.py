"""The answer to a ResourcePoolStatusRequest: how many devices of a driver's pools there are, and are taken. Pure.

Only slices of a pool's highest generation count (claim-controller.md section 12). A device is taken while any claim
holds it, or a share of it; admin access takes nothing. What is on its way to a claim is taken already.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dra_api.meta import Condition
from dra_api.resource import (
    PoolStatus,
    ResourcePoolStatusRequest,
    ResourcePoolStatusRequestStatus,
    ResourceSlice,
)
from msgspec import structs

from dra_operator.allocator import PoolId, Usage
from dra_operator.cache.objects.newest_slices import newest_slices
from dra_operator.wording import counted

DEFAULT_POOLS = 100  # pools in an answer, if the request does not say
ERROR_BYTES = 256


def pool_answer(
    request: ResourcePoolStatusRequest, slices: Iterable[ResourceSlice], usage: Usage, now: str
) -> ResourcePoolStatusRequestStatus:
    """All pools that the request asks for, sorted; incomplete ones say so and have no counts."""
    spec = request.spec
    asked = (
        slice_
        for slice_ in slices
        if slice_.spec.driver == spec.driver and spec.pool_name in (None, slice_.spec.pool.name)
    )
    pools = [_status(pool, newest, usage) for pool, newest in sorted(newest_slices(asked).items())]
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
    return sum(pool.validation_error is not None for pool in pools or ())


def _status(pool: PoolId, newest: Sequence[ResourceSlice], usage: Usage) -> PoolStatus:
    generation = newest[0].spec.pool.generation
    nodes = {slice_.spec.node_name for slice_ in newest}
    known = PoolStatus(
        driver=pool.driver,
        pool_name=pool.pool,
        generation=generation,
        node_name=nodes.pop() or None if len(nodes) == 1 else None,
    )
    announced = max(slice_.spec.pool.resource_slice_count for slice_ in newest)
    if len(newest) < announced:
        text = f"pool {pool} is incomplete: observed {len(newest)}/{announced} slices at generation {generation}"
        return structs.replace(known, validation_error=text.encode()[:ERROR_BYTES].decode(errors="ignore"))
    devices = {device.name for slice_ in newest for device in slice_.spec.devices or ()}
    taken = usage.pool(pool).exclusive.keys() | usage.pool(pool).shares.keys()
    return structs.replace(
        known,
        resource_slice_count=len(newest),
        total_devices=len(devices),
        allocated_devices=len(taken),
        available_devices=len(devices - taken),
        unavailable_devices=0,
    )
