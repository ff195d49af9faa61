"""Which slices count: those of the highest generation that their pool has anywhere in the cluster."""

from __future__ import annotations

from collections.abc import Iterable

from dra_api.resource import ResourceSlice

from dra_operator.allocator import PoolId


def newest_slices(slices: Iterable[ResourceSlice]) -> dict[PoolId, list[ResourceSlice]]:
    """By pool. Whether a pool is complete does not matter."""
    pools: dict[PoolId, list[ResourceSlice]] = {}
    for slice_ in slices:
        newest = pools.setdefault(PoolId.of(slice_), [])
        ahead = slice_.spec.pool.generation - newest[0].spec.pool.generation if newest else 0
        if ahead > 0:
            newest.clear()
        if ahead >= 0:
            newest.append(slice_)
    return pools
