"""Pools: all slices of one driver with the same pool name (allocator.md section 3).

Only the highest generation in the cluster counts (the reference may use an older one, section 15). Which of its slices
concern a node differs from node to node. Nodes that see the same slices share one ``PoolView``: the devices, numbered
in the order in which they are tried, with everything that depends on them alone (verdicts of selectors, counters, sets
of devices of one kind). It lives as long as its slices stay as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from enum import Enum
from functools import cached_property
from operator import attrgetter
from typing import Final, NamedTuple

from dra_api.core import Node
from dra_api.gates import POOL_RULES, PoolRules
from dra_api.resource import Device, ResourceSlice
from dra_api.values import Quantity

from .basics import DeviceId, Expressions, Memo, PoolId, are_short
from .capacity import Requests
from .counters import NOTHING_DRAWN, Charges, CompatibilityTable, CounterGroups, CounterTable, Drawn, note_drawn
from .errors import NodeSelectionError
from .features import Features, Semantics
from .predicates import Compiled, Verdicts
from .slices import Reach, Slice
from .usage import PoolUsage

Quantities = dict[str, Quantity]


_NAME: Final = attrgetter("name")
NO_COUNTERS: Final = CounterTable(())
NO_COUNTER_GROUPS: Final = CounterGroups((), ())
"""For the many pools that have none."""


def _minds_counters(slice_: Slice) -> bool:
    return slice_.has_counters or any(device.consumes_counters for device in slice_.devices)


class Status(Enum):
    """Whether a pool may be used."""

    USABLE = "usable"
    INCOMPLETE = "currently being updated"
    INVALID = "currently invalid"


class PoolView:
    """The devices of a pool that some nodes see, numbered in the order in which they are tried."""

    def __init__(
        self,
        pool: PoolId,
        slices: Sequence[Slice],
        others: Sequence[Slice],
        *,
        rules: PoolRules,
        counters: bool,
        drawn: Mapping[str, Drawn] | None,
        shares_stay_held: bool,
    ) -> None:
        self.pool = pool
        self._shares_stay_held = shares_stay_held
        self.slices = [s for s in slices if s.devices]
        self.devices: tuple[Device, ...] = tuple(device for s in self.slices for device in s.devices)
        self.numbers = {device.name: number for number, device in enumerate(self.devices)}
        self.origin: tuple[Slice, ...] = tuple(s for s in self.slices for _ in s.devices)
        self.everywhere = (1 << len(self.devices)) - 1
        self.binding = self.consuming = self.shareable = self.has_request_policy = self.tainted = 0
        """Devices with such fields; request policies may forbid what a plain request consumes (section 9)."""
        self._sort_devices()
        self.skipping = self._of_slices(lambda slice_: bool(slice_.spec.skip_node_operations))
        """Devices without some calls of whose driver the node has to manage."""
        self.per_device = any(s.spec.per_device_node_selection for s in self.slices)
        self.last = any(device.binding_conditions is not None for device in self.devices)
        self._every_slice = (*slices, *others)
        self._drawn = drawn or NOTHING_DRAWN
        is_counted = counters and any(map(_minds_counters, self._every_slice))
        self.counters = (
            CounterTable(self._every_slice, self._drawn, minds_unknown=drawn is not None) if is_counted else NO_COUNTERS
        )
        self._found = len(self._every_slice)
        self._announced = slices[0].spec.pool.resource_slice_count
        """If the slices disagree about their number, the first one by name counts."""
        self.status = self._status(len(slices), rules)
        self.is_offered = self.status is Status.USABLE or (
            rules.gives_of_incomplete_pools and self.status is Status.INCOMPLETE
        )
        """Whether its devices are allocated. A request for all devices needs more: a usable pool."""
        self.counter_groups = (
            CounterGroups([name for _, name in self.counters.names], self._counter_groups())
            if is_counted
            else NO_COUNTER_GROUPS
        )
        self.consumptions: Memo[Requests, dict[int, Quantities | None]] = Memo()
        """What a share of a device consumes, by what is requested; a cache for its users."""
        self._verdicts: Memo[Expressions, Verdicts] = Memo(keeps=are_short)

    @cached_property
    def compatibility(self) -> CompatibilityTable:
        """The compatibility groups of the pool's devices."""
        return CompatibilityTable(self._every_slice, self.devices, self._drawn)

    def _status(self, relevant: int, rules: PoolRules) -> Status:
        """Return the status. An incomplete invalid pool is invalid on releases that allocate from incomplete pools."""
        is_incomplete = self._announced not in (relevant, self._found)
        if is_incomplete and not rules.gives_of_incomplete_pools:
            return Status.INCOMPLETE
        if len(self.numbers) != len(self.devices) or self.counters.fault:
            return Status.INVALID
        return Status.INCOMPLETE if is_incomplete else Status.USABLE

    @property
    def complaint(self) -> str:
        """Why the pool cannot be used, as a sentence that names it. It stays the same while slices arrive."""
        return f"resource pool {self.pool} is {self.status.value}, since {self.fault}"

    @property
    def fault(self) -> str:
        """Why the pool cannot be used, as a clause."""
        if self.status is Status.INCOMPLETE:
            announced = "1 slice" if self._announced == 1 else f"{self._announced} slices"
            amount = "fewer" if self._found < self._announced else "more"
            return f"it announces {announced} of its newest generation and has {amount}"
        twice = next((name for name, count in Counter(d.name for d in self.devices).items() if count > 1), None)
        return f"two devices are named {twice}" if twice is not None else self.counters.fault

    def _sort_devices(self) -> None:
        for number, device in enumerate(self.devices):
            if device.binding_conditions:
                self.binding |= 1 << number
            if device.consumes_counters:
                self.consuming |= 1 << number
            if device.allow_multiple_allocations:
                self.shareable |= 1 << number
            if device.taints:
                self.tainted |= 1 << number
            if device.capacity and any(it.request_policy for it in device.capacity.values()):
                self.has_request_policy |= 1 << number

    def held(self, usage: PoolUsage) -> int:
        """Return the devices that nobody else gets (``PoolUsage.holds``)."""
        found = self.bits(usage.exclusive) if usage.exclusive else 0
        if usage.shares and self._shares_stay_held:
            found |= self.bits(usage.shares) & ~self.shareable
        return found

    def _of_slices(self, holds: Callable[[Slice], bool]) -> int:
        bits = shift = 0
        for slice_ in self.slices:
            if holds(slice_):
                bits |= (1 << len(slice_.devices)) - 1 << shift
            shift += len(slice_.devices)
        return bits

    def verdicts(self, expressions: Expressions, compiled: Compiled) -> Verdicts:
        """The selectors' verdicts over all devices of the view."""
        known = self._verdicts.get(expressions)
        if known is None:
            true = raised = shift = 0
            for slice_ in self.slices:
                part = slice_.verdicts(expressions, compiled)
                true |= part.true << shift
                raised |= part.raised << shift
                shift += len(slice_.devices)
            known = self._verdicts.put(expressions, Verdicts(true, raised))
        return known

    def faulty(self, requests: Requests, features: Features) -> int:
        """The devices of which these requests would consume a fatal amount."""
        bits = shift = 0
        for slice_ in self.slices:
            bits |= slice_.faulty(requests, features) << shift
            shift += len(slice_.devices)
        return bits

    def failure(self, expressions: Expressions, number: int) -> tuple[str, Exception] | None:
        """The costly selector that failed on a device, and how."""
        slice_ = self.origin[number]
        return slice_.failure(expressions, number - self.origin.index(slice_))

    def _counter_groups(self) -> list[tuple[Charges, int]]:
        groups: dict[Charges, int] = {}
        for number, device in enumerate(self.devices):
            charges = self.counters.charges.get(device.name)
            if charges:
                groups[charges] = groups.get(charges, 0) | 1 << number
        return list(groups.items())

    def id(self, number: int) -> DeviceId:
        """The identity of a device."""
        return DeviceId(self.pool.driver, self.pool.pool, self.devices[number].name)

    def bits(self, names: Iterable[str]) -> int:
        """Those devices of these names that the view has."""
        bits = 0
        numbers = self.numbers
        for name in names:
            number = numbers.get(name)
            if number is not None:
                bits |= 1 << number
        return bits


class Superseded(NamedTuple):
    """A pool whose slices for a node are all of older generations, and one of its slices that counts."""

    pool: PoolId
    by: Slice

    def __str__(self) -> str:
        place = f" of node {self.by.owning_node}" if self.by.owning_node is not None else ""
        return (
            f"resource pool {self.pool} has only slices of older generations for this node: "
            f"ResourceSlice {self.by.name}{place} has generation {self.by.generation}"
        )


class Unreadable(NamedTuple):
    """A pool with a slice whose node selector is malformed, so that no node gets the devices that it is about."""

    pool: PoolId
    slice_name: str
    fault: str

    def __str__(self) -> str:
        return f"resource pool {self.pool} has devices for no node: ResourceSlice {self.slice_name}: {self.fault}"


class Pool:
    """All slices of a pool in the cluster, and its views."""

    def __init__(self, pool: PoolId, semantics: Semantics, features: Features) -> None:
        self.id = pool
        self._rules = POOL_RULES[features.release]
        self._newest_only, self._shares_stay_held = semantics.newest_generation_only, semantics.shares_stay_held
        self._errors_stay = semantics.errors_stay_on_node
        self._partitionable = features.partitionable_devices
        self._drawn: Mapping[str, Drawn] | None = NOTHING_DRAWN if semantics.counters_stay_drawn else None
        self._before: Mapping[str, Drawn] | None = None
        self._stale = False
        self._slices: dict[str, Slice] = {}
        self._views: dict[tuple[str, ...], PoolView] = {}
        self._by_owning_node: dict[str, list[Slice]] = {}
        self._multi_node: list[Slice] = []
        self._generation = 0
        self._owning_node: str | None = None
        self._superseded: Superseded | None = None
        self._unreadable: Unreadable | None = None

    def __len__(self) -> int:
        return len(self._slices)

    @property
    def slices(self) -> Iterable[Slice]:
        """All slices of all generations."""
        return self._slices.values()

    def by_age(self) -> tuple[list[Slice], list[Slice]]:
        """The slices of the highest generation, sorted by name, and the older ones."""
        self._refresh()
        every = self._slices.values()
        newest = [s for s in every if s.generation == self._generation]
        return newest, [s for s in every if s.generation != self._generation]

    def put(self, slice_: Slice) -> None:
        """A slice was added or replaced."""
        self._slices[slice_.name] = slice_
        self._stale = True

    def remove(self, name: str) -> Slice:
        """A slice is gone: this one."""
        self._stale = True
        return self._slices.pop(name)

    def keep_drawn(self, drawn: Mapping[str, Drawn]) -> None:
        """These devices drew this before they were published otherwise, and are in use still."""
        self._drawn = drawn
        self._stale = True

    def drawn_by(self, generation: int, names: Set[str] | None = None) -> dict[str, Drawn]:
        """Return the draws of the devices, or of those named, in the slices of a generation."""
        slices = [s for s in self._slices.values() if s.generation == generation]
        sets = [set_ for s in slices for set_ in s.spec.shared_counters or ()]
        counters = frozenset((set_.name, counter) for set_ in sets for counter in set_.counters or ())
        found: dict[str, Drawn] = {}
        for device in (device for s in slices for device in s.devices if names is None or device.name in names):
            note_drawn(found, device.name, Drawn.of(device.consumes_counters or (), counters))
        return found

    def _drawn_before(self) -> Mapping[str, Drawn] | None:
        """Return what devices in use may have drawn and the newest generation does not say."""
        if self._drawn is None or self._before is not None:
            return self._before
        self._before = self._drawn
        older = {s.generation for s in self._slices.values()} - {self._generation} if len(self._slices) > 1 else ()
        if older and any(s.has_counters for s in self._slices.values()):
            self._before = before = dict(self._drawn)
            for name, record in (drawn for generation in older for drawn in self.drawn_by(generation).items()):
                note_drawn(before, name, record)
        return self._before

    def _refresh(self) -> None:
        """Sorts the slices again after changes, on demand, so that many changes cost one pass."""
        if not self._stale:
            return
        self._stale = False
        self._views.clear()
        self._by_owning_node.clear()
        self._multi_node = []
        self._superseded = self._unreadable = self._before = None
        if len(self._slices) > 1:  # the order in which they came says nothing
            self._slices = dict(sorted(self._slices.items()))
        self._generation = max((s.generation for s in self._slices.values()), default=0)
        for slice_ in self._slices.values():
            if slice_.reach is Reach.NODE and slice_.owning_node is not None:
                self._by_owning_node.setdefault(slice_.owning_node, []).append(slice_)
            elif slice_.reach is not Reach.NOWHERE:
                self._multi_node.append(slice_)
        is_of_one = len(self._by_owning_node) == 1 and all(s.reach is Reach.COUNTERS for s in self._multi_node)
        self._owning_node = next(iter(self._by_owning_node)) if is_of_one else None

    def view(self, node: Node) -> PoolView | None:
        """What the node sees: None when the pool has no relevant slice of its highest generation.

        A node selector that is malformed matches no node; in the reference's semantics it raises NodeSelectionError.
        """
        self._refresh()
        return self._view([*self._by_owning_node.get(node.metadata.name, ()), *self._concerning(node)])

    def _concerning(self, node: Node) -> list[Slice]:
        """The multi-node slices for a node; of several malformed ones the error names the first by name."""
        try:
            return [s for s in self._multi_node if s.concerns(node)]
        except NodeSelectionError:
            return [s for s in sorted(self._multi_node, key=lambda s: s.name) if s.concerns(node)]

    @property
    def owning_node(self) -> str | None:
        """The one node that all slices are for; None when other nodes may see the pool as well."""
        self._refresh()
        return self._owning_node

    @property
    def malformed(self) -> bool:
        """Looking at the pool may fail on any node, because of a node selector that cannot be parsed."""
        self._refresh()
        return not self._errors_stay and any(s.malformed for s in self._multi_node)

    @property
    def unreadable(self) -> Unreadable | None:
        """What of its newest generation is for no node, because a node selector is malformed."""
        self._refresh()
        if self._unreadable is None:
            faulty = (s for s in self._multi_node if s.malformed and s.generation == self._generation)
            first = min(faulty, key=lambda s: s.name, default=None)
            self._unreadable = Unreadable(self.id, first.name, first.malformed) if first is not None else None
        return self._unreadable

    @property
    def troubles_others(self) -> bool:
        """Whether nodes may find the pool in trouble although ``own_view`` does not show it."""
        counters = self.counters_view()
        if counters is not None and counters.status is not Status.USABLE:
            return True
        if self.owning_node is not None:
            return False
        newest = [s for s in self._slices.values() if s.generation == self._generation]
        older = not self._newest_only and len(newest) < len(self._slices)
        return older or any(s.spec.pool.resource_slice_count != len(newest) for s in newest)

    @property
    def superseded(self) -> Superseded:
        """The pool, for a node that has no slice of the highest generation."""
        self._refresh()
        if self._superseded is None:
            newest = (s for s in self._slices.values() if s.generation == self._generation)
            self._superseded = Superseded(self.id, min(newest, key=lambda s: s.name))
        return self._superseded

    def own_view(self) -> PoolView | None:
        """All that any node sees of the pool; for a pool with an owning node, what that node sees."""
        self._refresh()
        return self._view([*(s for slices in self._by_owning_node.values() for s in slices), *self._multi_node])

    def counters_view(self) -> PoolView | None:
        """The view of nodes that only the counters of the pool affect: there are none from 1.37 on."""
        self._refresh()
        return self._view([s for s in self._multi_node if s.reach is Reach.COUNTERS])

    def _view(self, relevant: list[Slice]) -> PoolView | None:
        newest = self._generation
        if relevant and not self._newest_only:
            newest = max(s.generation for s in relevant)
        relevant = [s for s in relevant if s.generation == newest]
        relevant.sort(key=_NAME)
        if not relevant:
            return None
        if newest < self._generation and len(relevant) != relevant[0].spec.pool.resource_slice_count:
            return None  # obsolete
        key = tuple(s.name for s in relevant)
        view = self._views.get(key)
        if view is None:
            chosen = set(key)
            others = [s for s in self._slices.values() if s.generation == newest and s.name not in chosen]
            view = PoolView(
                self.id,
                relevant,
                others,
                rules=self._rules,
                counters=self._partitionable,
                drawn=self._drawn_before(),
                shares_stay_held=self._shares_stay_held,
            )
            self._views[key] = view
        return view


def newest_slices(slices: Iterable[ResourceSlice]) -> dict[PoolId, list[ResourceSlice]]:
    """By pool, sorted by name. Whether a pool is complete does not matter."""
    pools: dict[PoolId, list[ResourceSlice]] = {}
    for slice_ in slices:
        newest = pools.setdefault(PoolId.of(slice_), [])
        ahead = slice_.spec.pool.generation - newest[0].spec.pool.generation if newest else 0
        if ahead > 0:
            newest.clear()
        if ahead >= 0:
            newest.append(slice_)
    for newest in pools.values():
        newest.sort(key=lambda slice_: slice_.metadata.name)
    return pools
