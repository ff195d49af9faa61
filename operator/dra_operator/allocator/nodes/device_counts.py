"""How many devices each node has for a query, and on which nodes an attempt would end with an error.

It counts the matching free devices per pool, sums them per node, and keeps the nodes in buckets by that sum, which
answer questions such as "which nodes have at least four".
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import NamedTuple

from dra_ledger.inventory import Inventory
from dra_ledger.pools import Pool, Status
from dra_ledger.usage import Usage

from .incremental import IncrementalAggregate, Query


class Count(NamedTuple):
    """One pool's part of a query."""

    matching: int = 0
    fallible: bool = False
    """An attempt on a node that sees the devices of the pool may end with an error."""
    fallible_elsewhere: bool = False
    """The same for all nodes."""
    sharing: bool = False
    """Some device allows multiple allocations, and may serve several requests at once."""
    driver: str = ""
    """The pool's driver, if some device is one that the query means, in use or not."""


class DeviceCounts(IncrementalAggregate[Count]):
    """One query over all pools."""

    def __init__(self, query: Query) -> None:
        super().__init__(query)
        self._query = query
        self._fallible: dict[str, int] = {}
        self.totals: dict[str, int] = {}
        self._buckets: dict[int, dict[str, None]] = {}
        self.cluster_wide = 0
        self.cluster_wide_errors = 0
        self.sharing = 0
        """Number of pools with devices that may serve several requests at once."""
        self._pools_of: dict[str, int] = {}
        """By driver: the pools with devices that the query means."""

    @property
    def drivers(self) -> Set[str]:
        """Those of all devices that the query means, in use or not."""
        return self._pools_of.keys()

    @property
    def has_errors(self) -> bool:
        """Whether an attempt may end with an error on some node."""
        return bool(self._fallible or self.cluster_wide_errors)

    def may_error(self) -> list[str]:
        """Nodes of their own pools on which an attempt would end with an error."""
        return sorted(self._fallible)

    def nodes(self, least: int) -> Iterator[str]:
        """The nodes whose own pools have at least so many."""
        for count, nodes in self._buckets.items():
            if count >= least:
                yield from nodes

    def number(self, least: int) -> int:
        """How many nodes have at least so many."""
        return sum(len(nodes) for count, nodes in self._buckets.items() if count >= least)

    def most(self, node: str) -> int:
        """The most matching devices that a node can have, including cluster-wide ones."""
        return self.totals.get(node, 0) + self.cluster_wide

    def best(self) -> int:
        """The largest number of matching devices that any node has."""
        return max(self._buckets, default=0) + self.cluster_wide

    def part(self, inventory: Inventory, usage: Usage, pool: Pool) -> Count:
        everything = self._query.everything
        if pool.malformed:
            return Count(fallible_elsewhere=True)
        elsewhere = everything and pool.troubles_others
        view = pool.own_view()
        if view is None:
            return Count(fallible_elsewhere=elsewhere)
        troubled = view.status is not Status.USABLE
        if troubled and pool.owning_node is not None:
            return Count(0, everything, elsewhere)
        matching, fallible, driver = 0, troubled and everything, ""
        for slice_ in view.slices if pool.owning_node is not None else pool.slices:
            found = self._query.matches(pool, slice_, usage, inventory)
            fallible |= bool(found.raised or (found.true and slice_.ambiguous))
            matching += found.true.bit_count()
            if found.true or found.raised or self._query.means(slice_, inventory):
                driver = pool.id.driver
        return Count(matching, fallible, elsewhere, any(slice_.sharing for slice_ in view.slices), driver)

    def add(self, owning_node: str | None, part: Count, sign: int) -> None:
        matching, fallible = sign * part.matching, sign * part.fallible
        self.sharing += sign * part.sharing
        self.cluster_wide_errors += sign * part.fallible_elsewhere
        if part.driver:
            self._pools_of[part.driver] = self._pools_of.get(part.driver, 0) + sign
            if not self._pools_of[part.driver]:
                del self._pools_of[part.driver]
        if owning_node is None:
            self.cluster_wide += matching
            self.cluster_wide_errors += fallible
            return
        if matching:
            old = self.totals.pop(owning_node, 0)
            if old:
                del self._buckets[old][owning_node]
                if not self._buckets[old]:
                    del self._buckets[old]
            if old + matching:
                self.totals[owning_node] = old + matching
                self._buckets.setdefault(old + matching, {})[owning_node] = None
        if fallible:
            self._fallible[owning_node] = self._fallible.get(owning_node, 0) + fallible
            if not self._fallible[owning_node]:
                del self._fallible[owning_node]
