"""How many devices each node has for a query, and on which nodes an attempt would end with an error.

A tally counts, per pool, the devices that match and are free, sums them per node, and keeps the nodes in
buckets by that sum: "which nodes have at least four" is answered from the buckets.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from dra_operator.allocator.published.inventory import Inventory
from dra_operator.allocator.published.pool_view import Status
from dra_operator.allocator.published.pools import Pool
from dra_operator.allocator.usage import Usage

from .summaries import Query, Summary


class Count(NamedTuple):
    """One pool's part of a query."""

    matching: int = 0
    suspicious: bool = False
    """An attempt on a node that sees the devices of the pool may end with an error."""
    suspicious_elsewhere: bool = False
    """The same for all nodes."""
    sharing: bool = False
    """Some device allows multiple allocations, and may serve several requests at once."""


class Tally(Summary[Count]):
    """One query over all pools."""

    def __init__(self, query: Query) -> None:
        super().__init__()
        self._query = query
        self._suspicious: dict[str, int] = {}
        self.totals: dict[str, int] = {}
        self._buckets: dict[int, dict[str, None]] = {}
        self.wild = 0
        self.wild_suspicious = 0
        self.sharing = 0
        """Number of pools with devices that may serve several requests at once."""

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

    def most(self, node: str) -> int:
        """So many matching devices a node has at most, wild ones included."""
        return self.totals.get(node, 0) + self.wild

    def best(self) -> int:
        """The largest number of matching devices that any node has."""
        return max(self._buckets, default=0) + self.wild

    def part(self, inventory: Inventory, usage: Usage, pool: Pool) -> Count:
        everything = self._query.everything
        if pool.malformed:
            return Count(suspicious_elsewhere=True)
        elsewhere = everything and pool.troubles_others
        view = pool.own_view()
        if view is None:
            return Count(suspicious_elsewhere=elsewhere)
        troubled = view.status is not Status.USABLE
        if troubled and pool.home is not None:
            return Count(0, everything, elsewhere)
        matching, suspicious = 0, troubled and everything
        for slice_ in view.slices if pool.home is not None else pool.slices:
            found = self._query.matches(pool, slice_, usage, inventory.compiled)
            suspicious |= bool(found.raised or (found.true and slice_.ambiguous))
            matching += found.true.bit_count()
        return Count(matching, suspicious, elsewhere, any(slice_.sharing for slice_ in view.slices))

    def add(self, home: str | None, part: Count, sign: int) -> None:
        matching, suspicious = sign * part.matching, sign * part.suspicious
        self.sharing += sign * part.sharing
        self.wild_suspicious += sign * part.suspicious_elsewhere
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
