"""Finds nodes where a request for all devices may violate a constraint of its claim, which is fatal (section 7).

It compares, per node, the devices that the request collects with those that earlier requests may have taken. While they
all agree, no error is possible; otherwise the node has to be tried. Updated like the device counts.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, NamedTuple

from dra_ledger.basics import each
from dra_ledger.columns import UNKNOWN, lookup, values_of
from dra_ledger.inventory import Inventory
from dra_ledger.pools import Pool
from dra_ledger.usage import Usage

from .incremental import IncrementalAggregate, Query

Value = tuple[str, object]
MISSING: Final[Value] = ("missing", None)


class Comparison(NamedTuple):
    """One constraint, and the requests whose devices meet under it."""

    queries: tuple[Query, ...]
    attribute: str
    distinct: bool
    lists: bool
    """List-valued attributes are compared as sets."""


class ValueCounts(NamedTuple):
    """Devices by value. A device counts once for each request that may take it."""

    devices: int
    values: Counter[Value]


class ConstraintConflicts(IncrementalAggregate[ValueCounts]):
    """One comparison over all pools."""

    def __init__(self, comparison: Comparison) -> None:
        super().__init__(*comparison.queries)
        self._comparison = comparison
        self._nodes: dict[str, ValueCounts] = {}
        self._conflicting: set[str] = set()
        self.cluster_wide = 0
        """Devices that every node may see: with them any node may conflict."""

    def may_error(self) -> list[str]:
        """Nodes whose own devices do not all agree."""
        return sorted(self._conflicting)

    def part(self, inventory: Inventory, usage: Usage, pool: Pool) -> ValueCounts:
        view = pool.own_view()
        values: Counter[Value] = Counter()
        devices = 0
        for slice_ in () if view is None else view.slices if pool.owning_node is not None else pool.slices:
            for query in self._comparison.queries:
                for number in each(query.matches(pool, slice_, usage, inventory).true):
                    attribute = lookup(slice_.devices[number], slice_.pool.driver, self._comparison.attribute)
                    found = values_of(attribute, lists=self._comparison.lists) if attribute is not None else None
                    values.update(found or (MISSING,))
                    devices += 1
        return ValueCounts(devices, values)

    def add(self, owning_node: str | None, part: ValueCounts, sign: int) -> None:
        if owning_node is None:
            self.cluster_wide += sign * part.devices
            return
        if not part.devices:
            return
        old = self._nodes.pop(owning_node, ValueCounts(0, Counter()))
        values = old.values.copy()
        for value, count in part.values.items():
            values[value] += sign * count
            if not values[value]:
                del values[value]
        new = ValueCounts(old.devices + sign * part.devices, values)
        self._conflicting.discard(owning_node)
        if new.devices:
            self._nodes[owning_node] = new
            if not self._agrees(new):
                self._conflicting.add(owning_node)

    def _agrees(self, counts: ValueCounts) -> bool:
        """Whether any of the devices, taken in any order, satisfy the constraint.

        A value of unknown type can stand alone, but no second device can join it.
        """
        devices, values = counts
        if MISSING in values:
            return False
        if devices == 1:
            return True
        if not values.keys().isdisjoint(UNKNOWN):
            return False
        if self._comparison.distinct:
            return max(values.values()) == 1
        return max(values.values()) == devices
