"""Pools that are published in part: how much of them, since when, and who has to act."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from dra_operator.allocator import Refusal
from dra_operator.cache import Cluster, newest_slices
from dra_operator.kubectl.facts import age
from dra_operator.wording import counted


def troubled_pools(refusals: Sequence[Refusal], cluster: Cluster, now: datetime) -> Iterator[str]:
    """A line for each incomplete pool that keeps a node from serving a request."""
    said = {text for refusal in refusals for text in refusal.pools}
    if not said:
        return
    for pool, slices in sorted(newest_slices(cluster.slices).items()):
        announced = slices[0].spec.pool.resource_slice_count
        if len(slices) >= announced or not any(text.startswith(f"resource pool {pool} ") for text in said):
            continue
        last = max(slice_.metadata.creation_timestamp or "" for slice_ in slices)
        since = f"; the last one came {age(last, now)} ago" if age(last, now) else ""
        there = f"{len(slices)} of {counted(announced, 'slice')} of pool {pool} are there{since}"
        yield f"{there}: wait for driver {pool.driver} to publish the others, or restart it"
