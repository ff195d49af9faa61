"""How many devices each node has for a query, and with which values, updated from journals (design.md section 3).

Each pool contributes to a sum over nodes. Changes of the inventory and of the allocated state come from journals, so
the cost of an update depends on what changed, not on the number of nodes. Only pools whose slices all name the same
node belong to that node (their *owning node*). All others (for all nodes, by node selector, spanning nodes) are
*cluster-wide*: their devices count for every node.

``DeviceCounts`` counts the matching free devices per pool, sums them per node, and keeps the nodes in buckets by that
sum, which answer questions such as "which nodes have at least four". It also knows the nodes on which an attempt would
end with an error. ``value_supplies`` says which values of an attribute published devices have: on which nodes, and how
many of these devices are free.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Generator, Iterator, Set
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeVar

from dra_api.resource import Device
from dra_ledger.basics import DeviceId, PoolId
from dra_ledger.capacity import Requests, is_extreme
from dra_ledger.columns import UNKNOWN, Values, lookup, values_of
from dra_ledger.inventory import Inventory
from dra_ledger.pools import Pool, Status
from dra_ledger.predicates import Compiled, Verdicts
from dra_ledger.slices import Slice
from dra_ledger.usage import Usage

from dra_operator.allocator.claim_program import Alternative, AttributeValue

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
        held = usage.pool(pool.id)
        true = (1 << len(slice_.devices)) - 1
        # Names, not numbers: claims name their devices, and a name outlives its number in a slice.
        for number, device in enumerate(slice_.devices) if held and not self.in_use_too else ():
            if held.holds(device, inventory.semantics):
                true &= ~(1 << number)
        part = slice_.verdicts(self.expressions, inventory.compiled)
        faulty = slice_.faulty(self.capacity, inventory.features)
        # An error counts only on devices that the search reaches: it passes over those in use (allocator.md section 6).
        return Verdicts(true & part.true, true & (part.raised | part.true & faulty))

    def means(self, slice_: Slice, inventory: Inventory) -> bool:
        """Whether any device of a slice, in use or not, matches or makes a selector raise."""
        part = slice_.verdicts(self.expressions, inventory.compiled)
        return bool(part.true or part.raised)

    def evaluate(self, pool: Pool, compiled: Compiled) -> Iterator[str]:
        """Has the slices of a pool evaluate the selectors, in parts."""
        # A copy, since slices may come and go at the pauses.
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
            # A journal that reaches back no further: all pools again, also those that are gone by now.
            stale = {*inventory.pools(), *self._parts} if changed is None or used is None else changed | used
            self._stale.update(dict.fromkeys(sorted(stale)))
            # Before the work: what changes while this pauses is in the journals of the next call.
            self._seen = now
        if not self._stale:
            return  # as when the caller has caught up in pieces
        done = 0
        # A selector that only a claim has asked for is charged to its tenant; those of classes serve everybody.
        common = inventory.compiled.common
        payer = next((text for query in self._queries for text in query.expressions if text not in common), "")
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

    @abstractmethod
    def part(self, inventory: Inventory, usage: Usage, pool: Pool) -> Part:
        """What a pool contributes: for its owning node the devices that this may use, else all that any node may
        use."""

    @abstractmethod
    def add(self, owning_node: str | None, part: Part, sign: int) -> None:
        """Counts a part in (1) or out (-1); ``owning_node`` is None for a cluster-wide pool."""

    def _recount(self, inventory: Inventory, usage: Usage, id_: PoolId) -> None:
        # Subtracted as it was added, although the pool may differ by now: otherwise the sums would drift.
        old = self._parts.pop(id_, None)
        if old is not None:
            self.add(*old, -1)
        pool = inventory.pool(id_)
        if pool is not None:
            new = self._parts[id_] = (pool.owning_node, self.part(inventory, usage, pool))
            self.add(*new, 1)


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
        self.query = query
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
        everything = self.query.everything
        # Node selectors that nobody can parse: nobody knows which nodes see the pool.
        if pool.malformed:
            return Count(fallible_elsewhere=True)
        # Nodes that see devices of the pool elsewhere cannot say what "all" of them are either.
        elsewhere = everything and pool.troubles_others
        view = pool.own_view()
        if view is None:
            return Count(fallible_elsewhere=elsewhere)
        troubled = view.status is not Status.USABLE
        # A pool in trouble offers its own node no device (allocator.md section 3), and a request for all devices cannot
        # be served there (allocator.md section 7).
        if not view.is_offered and pool.owning_node is not None:
            return Count(0, everything, elsewhere)
        matching, fallible, driver = 0, troubled and everything, ""
        for slice_ in view.slices if pool.owning_node is not None else pool.slices:
            found = self.query.matches(pool, slice_, usage, inventory)
            fallible |= bool(found.raised or (found.true and slice_.ambiguous))
            matching += found.true.bit_count()
            if found.true or found.raised or self.query.means(slice_, inventory):
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
            # From bucket to bucket, so that nodes with at least so many are found without a look at the others.
            if old + matching:
                self.totals[owning_node] = old + matching
                self._buckets.setdefault(old + matching, {})[owning_node] = None
        if fallible:
            self._fallible[owning_node] = self._fallible.get(owning_node, 0) + fallible
            if not self._fallible[owning_node]:
                del self._fallible[owning_node]


@dataclass(slots=True)
class ValueSupply:
    """One value. ``anywhere``: devices that several nodes may use have it, beside those of the ``nodes``."""

    value: AttributeValue
    nodes: set[str] = field(default_factory=set)
    anywhere: bool = False
    free: int = 0


def value_supplies(inventory: Inventory, attribute: str, usage: Usage) -> Generator[None, None, list[ValueSupply]]:
    """See ``Allocator.supplies``."""
    found: dict[tuple[str, object], ValueSupply] = {}
    # A copy, since pools may come and go at the pauses.
    for number, id_ in enumerate(list(inventory.pools())):
        if number % COUNTED_POOLS == COUNTED_POOLS - 1:
            yield
        pool = inventory.pool(id_)
        view = pool.own_view() if pool is not None else None
        if pool is None or view is None:
            continue
        node, held = pool.owning_node, usage.pool(id_)
        for device in view.devices:
            published = lookup(device, id_.driver, attribute)
            values = values_of(published, lists=inventory.features.list_attributes) if published is not None else ()
            for value in values if values is not UNKNOWN else ():
                supply = found.get(value)
                if supply is None:
                    supply = found[value] = ValueSupply(AttributeValue(attribute, value))
                supply.free += not held.holds(device, inventory.semantics)
                if node is None:
                    supply.anywhere = True
                else:
                    supply.nodes.add(node)
    # Ties are broken by the value, so that the same cluster gives the same plan.
    return sorted(found.values(), key=lambda it: (it.free, it.value.value[0], str(it.value.value[1])))


def published_device(inventory: Inventory, device: DeviceId) -> Device | None:
    """See ``Allocator.published``."""
    pool = inventory.pool(device.pool_id)
    view = pool.own_view() if pool is not None else None
    number = view.numbers.get(device.device) if view is not None else None
    return view.devices[number] if view is not None and number is not None else None


def published_values(inventory: Inventory, device: DeviceId, attribute: str) -> Values | None:
    """See ``Allocator.values``."""
    found = published_device(inventory, device)
    if found is None:
        return None
    published = lookup(found, device.driver, attribute)
    if published is None:
        return frozenset()
    values = values_of(published, lists=inventory.features.list_attributes)
    return frozenset() if values is UNKNOWN else values
