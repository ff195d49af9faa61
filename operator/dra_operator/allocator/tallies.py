"""How many devices each node has for a query, kept up by journals (design section 3).

A tally counts, per pool, the devices that match and are free, sums them per node, and keeps the nodes in
buckets by that sum. Changes of the inventory and of the allocated state come from journals, so keeping up
costs as much as what changed, and "which nodes have at least four" is answered from the buckets.

Only pools whose slices all name the same node belong to that node. All others (for all nodes, by node
selector, spanning nodes) are *wild*: their devices count for every node.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from .ids import PoolId
from .inventory import Inventory
from .pool_view import Status
from .pools import Pool
from .usage import Usage

PIECE: Final = 16
"""Pools that are counted in one go: some milliseconds when selectors have to be evaluated."""


class Query(NamedTuple):
    """What is counted."""

    expressions: tuple[str, ...]
    in_use_too: bool
    """Admin access, and mode All, look at devices in use as well."""
    everything: bool
    """Mode All: pools in trouble are fatal."""


class Count(NamedTuple):
    """One pool's part of a query."""

    matching: int = 0
    suspicious: bool = False
    sharing: bool = False
    """Some device allows multiple allocations, and may serve several requests at once."""


class Tally:
    """One query over all pools."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._pools: dict[PoolId, tuple[str | None, Count]] = {}
        self._suspicious: dict[str, int] = {}
        self.totals: dict[str, int] = {}
        self._buckets: dict[int, dict[str, None]] = {}
        self.wild = 0
        self.wild_suspicious = 0
        self.sharing = 0
        """Number of pools with devices that may serve several requests at once."""
        self._seen = (-1, -1)
        self._stale: dict[PoolId, None] = {}

    def update(self, inventory: Inventory, usage: Usage) -> Iterator[None]:
        """Catches up with both journals; yields between pieces of work, and goes on from there when dropped."""
        now = (inventory.version, usage.revision)
        if self._seen != now:
            changed = inventory.touched_since(self._seen[0]) if self._seen[0] >= 0 else None
            used = usage.touched_since(self._seen[1]) if self._seen[1] >= 0 else None
            stale = {*inventory.pools(), *self._pools} if changed is None or used is None else changed | used
            self._stale.update(dict.fromkeys(sorted(stale)))
            self._seen = now
        done = 0
        while self._stale:
            pool = next(iter(self._stale))
            del self._stale[pool]
            self._recount(inventory, usage, pool)
            done += 1
            if done % PIECE == 0:
                yield

    def suspects(self) -> list[str]:
        """Nodes of their own pools on which an attempt would end with an error."""
        return sorted(self._suspicious)

    def nodes(self, least: int) -> Iterator[str]:
        """The nodes whose own pools have at least so many."""
        for count, nodes in self._buckets.items():
            if count >= least:
                yield from nodes

    def number(self, least: int) -> int:
        """How many nodes that are."""
        return sum(len(nodes) for count, nodes in self._buckets.items() if count >= least)

    def best(self) -> int:
        """The largest number of matching devices that any node has."""
        return max(self._buckets, default=0) + self.wild

    def _recount(self, inventory: Inventory, usage: Usage, id_: PoolId) -> None:
        home, old = self._pools.pop(id_, (None, Count()))
        self._add(home, old, -1)
        pool = inventory.pool(id_)
        if pool is None:
            return
        home, new = pool.home, self._count(inventory, usage, pool)
        self._pools[id_] = (home, new)
        self._add(home, new, 1)

    def _count(self, inventory: Inventory, usage: Usage, pool: Pool) -> Count:
        """For a pool with a home what its node may use; for a wild one everything any node might."""
        view = pool.own_view()
        if view is None:
            return Count()
        troubled = view.status is not Status.USABLE
        if troubled and pool.home is not None:
            return Count(0, self._query.everything)
        in_use = () if self._query.in_use_too else usage.pool(pool.id).exclusive
        matching, suspicious = 0, troubled and self._query.everything
        for slice_ in view.slices if pool.home is not None else pool.slices:
            free = (1 << len(slice_.devices)) - 1
            for number, device in enumerate(slice_.devices) if in_use else ():
                if device.name in in_use:
                    free &= ~(1 << number)
            for expression in self._query.expressions:
                part = slice_.verdicts(expression, inventory.compiled)
                suspicious |= bool(free & part.raised)
                free &= part.true
            matching += free.bit_count()
        return Count(matching, suspicious, any(slice_.sharing for slice_ in view.slices))

    def _add(self, home: str | None, count: Count, sign: int) -> None:
        """Counts a pool in or out."""
        matching, suspicious = sign * count.matching, sign * count.suspicious
        self.sharing += sign * count.sharing
        if home is None:
            self.wild += matching
            self.wild_suspicious += suspicious
            return
        if matching:
            old = self.totals.pop(home, 0)
            if old:
                del self._buckets[old][home]
                if not self._buckets[old]:
                    del self._buckets[old]
            if old + matching:
                self.totals[home] = old + matching
                self._buckets.setdefault(old + matching, {})[home] = None
        if suspicious:
            self._suspicious[home] = self._suspicious.get(home, 0) + suspicious
            if not self._suspicious[home]:
                del self._suspicious[home]
