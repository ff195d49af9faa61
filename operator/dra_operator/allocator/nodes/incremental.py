"""What each pool contributes to a sum over nodes, updated from journals (design.md section 3).

Changes of the inventory and of the allocated state come from journals, so the cost of an update depends on what
changed, not on the number of nodes.

Only pools whose slices all name the same node belong to that node (their *owning node*). All others (for all nodes, by
node selector, spanning nodes) are *cluster-wide*: their devices count for every node.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final, Generic, NamedTuple, TypeVar

from dra_ledger.basics import PoolId
from dra_ledger.capacity import Requests, is_extreme
from dra_ledger.inventory import Inventory
from dra_ledger.pools import Pool
from dra_ledger.predicates import Compiled, Verdicts
from dra_ledger.slices import Slice
from dra_ledger.usage import Usage

from dra_operator.allocator.request.claim_program import Alternative

COUNTED_POOLS: Final = 16
"""Pools counted at a time: some milliseconds if selectors have to be evaluated."""
Part = TypeVar("Part")


class Query(NamedTuple):
    """Which devices are looked for."""

    expressions: tuple[str, ...]
    in_use_too: bool
    """Admin access, and mode All, look at devices in use as well."""
    everything: bool
    """Mode All: pools in trouble are fatal."""
    capacity: Requests = ()
    """The requested capacity, if its amounts may be fatal on devices without any fault of their own."""

    @classmethod
    def of(cls, alternative: Alternative) -> Query:
        """The devices that an alternative of a request looks for."""
        capacity = alternative.capacity if alternative.capacity and is_extreme(alternative.capacity) else ()
        in_use_too = alternative.admin or alternative.everything
        return cls(alternative.expressions, in_use_too, alternative.everything, capacity)

    def matches(self, pool: Pool, slice_: Slice, usage: Usage, inventory: Inventory) -> Verdicts:
        """The devices of a slice that match, and those on which a selector raises or capacity may be at fault."""
        in_use = () if self.in_use_too else usage.pool(pool.id).exclusive
        true = (1 << len(slice_.devices)) - 1
        for number, device in enumerate(slice_.devices) if in_use else ():
            if device.name in in_use:
                true &= ~(1 << number)
        part = slice_.verdicts(self.expressions, inventory.compiled)
        faulty = slice_.faulty(self.capacity, inventory.features)
        return Verdicts(true & part.true, true & (part.raised | part.true & faulty))

    def means(self, slice_: Slice, inventory: Inventory) -> bool:
        """Whether any device of a slice, in use or not, matches or makes a selector raise."""
        part = slice_.verdicts(self.expressions, inventory.compiled)
        return bool(part.true or part.raised)

    def evaluate(self, pool: Pool, compiled: Compiled) -> Iterator[str]:
        """Has the slices of a pool evaluate the selectors, in parts."""
        for slice_ in list(pool.slices):
            if self.expressions:
                yield from slice_.evaluate(self.expressions, compiled)


class IncrementalAggregate(Generic[Part]):
    """The parts of all pools, added up."""

    def __init__(self, *queries: Query) -> None:
        self._queries = queries
        self._parts: dict[PoolId, tuple[str | None, Part]] = {}
        self._seen = (-1, -1)
        self._stale: dict[PoolId, None] = {}

    def is_current(self, inventory: Inventory, usage: Usage) -> bool:
        """Whether all pools are counted as they are now."""
        return self._seen == (inventory.version, usage.revision) and not self._stale

    def update(self, inventory: Inventory, usage: Usage) -> Iterator[str]:
        """Catches up with both journals. Yields between pieces of work; after a drop, the next call continues there.

        What it yields is the selector of a claim that is being evaluated, empty for work that all attempts gain from.
        """
        now = (inventory.version, usage.revision)
        if self._seen != now:
            changed = inventory.touched_since(self._seen[0]) if self._seen[0] >= 0 else None
            used = usage.touched_since(self._seen[1]) if self._seen[1] >= 0 else None
            stale = {*inventory.pools(), *self._parts} if changed is None or used is None else changed | used
            self._stale.update(dict.fromkeys(sorted(stale)))
            self._seen = now
        done = 0
        payer = self._payer(inventory.compiled)
        while self._stale:
            id_, paused = next(iter(self._stale)), False
            pool = inventory.pool(id_)
            if pool is not None:
                for expression in itertools.chain.from_iterable(
                    query.evaluate(pool, inventory.compiled) for query in self._queries
                ):
                    paused = True
                    yield expression
            if paused:  # slices may have come meanwhile
                continue
            self._stale.pop(id_, None)
            self._recount(inventory, usage, id_)
            done += 1
            if done % COUNTED_POOLS == 0:
                yield payer

    def _payer(self, compiled: Compiled) -> str:
        """A selector that only a claim has asked for so far; empty if all are those of classes."""
        own = (text for query in self._queries for text in query.expressions if text not in compiled.common)
        return next(own, "")

    def part(self, inventory: Inventory, usage: Usage, pool: Pool) -> Part:
        """What a pool contributes: for its owning node the devices that this may use, else all that any node may
        use."""
        raise NotImplementedError

    def add(self, owning_node: str | None, part: Part, sign: int) -> None:
        """Counts a part in (1) or out (-1); ``owning_node`` is None for a cluster-wide pool."""
        raise NotImplementedError

    def _recount(self, inventory: Inventory, usage: Usage, id_: PoolId) -> None:
        old = self._parts.pop(id_, None)
        if old is not None:
            self.add(*old, -1)
        pool = inventory.pool(id_)
        if pool is not None:
            new = self._parts[id_] = (pool.owning_node, self.part(inventory, usage, pool))
            self.add(*new, 1)
