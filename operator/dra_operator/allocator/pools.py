"""Pools as one node sees them (allocator.md section 3).

A pool is all slices of one driver with the same pool name. Only its highest generation counts, looked for
in the whole cluster (the reference may use an older one, section 15). Which of these slices concern a node
differs from node to node; nodes that see the same slices share one ``PoolView``, which numbers the devices
in the order in which they are tried and keeps everything that depends on the devices alone: selector
verdicts, attribute columns, counters. A view lives as long as its slices stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum

from dra_api.core import Node, NodeSelector
from dra_api.quantity import Quantity
from dra_api.resource import Device, ResourceSlice

from .errors import NodeSelectionError
from .ids import DeviceId, PoolId
from .nodes import first_match, parse
from .rules import Rules
from .selectors import Compiled, Verdicts, evaluate

Requests = tuple[tuple[str, Quantity], ...]
Amounts = dict[str, Quantity]


class Status(Enum):
    """Whether a pool may be used."""

    USABLE = "usable"
    INCOMPLETE = "currently being updated"
    INVALID = "currently invalid"


class Reach(Enum):
    """Which nodes a slice concerns, as far as it can be told without a node."""

    NODE = "the node it names"
    ROAMING = "depends on the node"
    COUNTERS = "all nodes: it defines shared counters"
    NOWHERE = "none: it needs partitionable devices, which are off"


class Slice:
    """One published slice, with the verdicts of the selectors evaluated on it so far."""

    __slots__ = ("_verdicts", "devices", "generation", "name", "pool", "reach", "spec")

    def __init__(self, source: ResourceSlice, *, partitionable: bool) -> None:
        self.name = source.metadata.name
        self.spec = source.spec
        self.pool = PoolId(source.spec.driver, source.spec.pool.name)
        self.generation = source.spec.pool.generation
        self.devices: tuple[Device, ...] = source.spec.devices or ()
        self.reach = self._reach(partitionable=partitionable)
        self._verdicts: dict[str, Verdicts] = {}

    def _reach(self, *, partitionable: bool) -> Reach:
        spec = self.spec
        if not partitionable and (spec.per_device_node_selection is not None or spec.shared_counters):
            return Reach.NOWHERE
        if spec.shared_counters:
            return Reach.COUNTERS
        return Reach.NODE if spec.node_name else Reach.ROAMING

    @property
    def has_counters(self) -> bool:
        return bool(self.spec.shared_counters)

    @property
    def home(self) -> str | None:
        """The only node that the slice is for, when it names one."""
        return self.spec.node_name if self.reach is Reach.NODE else None

    def verdicts(self, expression: str, compiled: Compiled) -> Verdicts:
        """Where the selector is true, and where it raises; evaluated once."""
        known = self._verdicts.get(expression)
        if known is None:
            wanted = compiled.common if expression in compiled.common else (expression,)
            missing = [text for text in wanted if text not in self._verdicts]
            predicates = [compiled.predicate(text) for text in missing]
            self._verdicts.update(zip(missing, evaluate(predicates, self.pool.driver, self.devices), strict=True))
            known = self._verdicts[expression]
        return known

    def concerns(self, node: Node) -> bool:
        """The slice is relevant for the node. Raises NodeSelectionError for a malformed selector."""
        spec = self.spec
        if self.has_counters:
            return True
        try:
            if spec.node_name is not None or spec.all_nodes is not None or spec.node_selector is not None:
                return selects(spec.node_name, spec.all_nodes, spec.node_selector, node)
            return bool(spec.per_device_node_selection) and any(device_is_for(device, node) for device in self.devices)
        except NodeSelectionError as error:
            raise NodeSelectionError(f"slice {self.name}: {error}") from error


def selects(node_name: str | None, all_nodes: bool | None, selector: NodeSelector | None, node: Node) -> bool:
    """The node fields of a slice or device, in their order of precedence, select the node."""
    if node_name:
        return node_name == node.metadata.name
    if all_nodes:
        return True
    return selector is not None and first_match(parse(selector), node) is not None


def device_is_for(device: Device, node: Node) -> bool:
    """The node fields of a device select the node (``perDeviceNodeSelection``)."""
    return selects(device.node_name, device.all_nodes, device.node_selector, node)


class PoolView:
    """The devices of a pool that some nodes see, numbered in the order in which they are tried."""

    def __init__(self, pool: PoolId, slices: Sequence[Slice], others: Sequence[Slice], *, counters: bool) -> None:
        self.pool = pool
        self.slices = sorted((s for s in slices if s.devices), key=lambda s: s.name)
        self.devices: tuple[Device, ...] = tuple(device for s in self.slices for device in s.devices)
        self.numbers = {device.name: number for number, device in enumerate(self.devices)}
        self.origin: tuple[Slice, ...] = tuple(s for s in self.slices for _ in s.devices)
        self.everywhere = (1 << len(self.devices)) - 1
        self.binding = self._where(lambda device: bool(device.binding_conditions))
        self.consuming = self._where(lambda device: bool(device.consumes_counters))
        self.shareable = self._where(lambda device: bool(device.allow_multiple_allocations))
        self.tainted = self._where(lambda device: bool(device.taints))
        self.per_device = any(s.spec.per_device_node_selection for s in self.slices)
        self.last = any(device.binding_conditions is not None for device in self.devices)
        self.counters = CounterTable([*slices, *others]) if counters else CounterTable(())
        first = min(slices, key=lambda s: s.name)
        self.status = self._status(first, len(slices), len(slices) + len(others))
        self.counter_groups = self._counter_groups()
        """The consuming devices by what they consume."""
        self.consumptions: dict[Requests, dict[int, Amounts | None]] = {}
        """What a share of a device consumes, by what is requested; kept for whoever computes it."""
        self._verdicts: dict[str, Verdicts] = {}

    def _status(self, first: Slice, relevant: int, total: int) -> Status:
        wanted = first.spec.pool.resource_slice_count
        if wanted not in (relevant, total):
            return Status.INCOMPLETE
        if len(self.numbers) != len(self.devices) or not self.counters.consistent:
            return Status.INVALID
        return Status.USABLE

    def _where(self, holds: Callable[[Device], bool]) -> int:
        bits = 0
        for number, device in enumerate(self.devices):
            if holds(device):
                bits |= 1 << number
        return bits

    def verdicts(self, expression: str, compiled: Compiled) -> Verdicts:
        """The selector's verdicts over all devices of the view."""
        known = self._verdicts.get(expression)
        if known is None:
            true = raised = shift = 0
            for slice_ in self.slices:
                part = slice_.verdicts(expression, compiled)
                true |= part.true << shift
                raised |= part.raised << shift
                shift += len(slice_.devices)
            known = self._verdicts[expression] = Verdicts(true, raised)
        return known

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
        """The devices of these names, as far as the view has them."""
        bits = 0
        numbers = self.numbers
        for name in names:
            number = numbers.get(name)
            if number is not None:
                bits |= 1 << number
        return bits


Charges = tuple[tuple[int, int], ...]
"""(number of the counter, billionths) for each counter that a device consumes."""


class CounterTable:
    """The shared counters of a pool, and what each device of the pool takes from them (section 10).

    Counts all slices of the generation, also those for other nodes, since their devices draw on the same
    counters. ``consistent`` is False when a set is defined twice or a device consumes from nowhere.
    """

    def __init__(self, slices: Iterable[Slice]) -> None:
        self.names: list[tuple[str, str]] = []
        self.values: list[int] = []
        self.charges: dict[str, Charges] = {}
        self.consistent = True
        self._sets: set[str] = set()
        slices = list(slices)
        numbers = self._number([s for s in slices if s.has_counters])
        for slice_ in slices:
            for device in slice_.devices:
                if device.consumes_counters:
                    self._charge(device, numbers)

    def _number(self, slices: list[Slice]) -> dict[tuple[str, str], int]:
        numbers: dict[tuple[str, str], int] = {}
        for slice_ in slices:
            for counter_set in slice_.spec.shared_counters or ():
                self.consistent &= counter_set.name not in self._sets
                self._sets.add(counter_set.name)
                for name, counter in (counter_set.counters or {}).items():
                    numbers[counter_set.name, name] = len(self.values)
                    self.names.append((counter_set.name, name))
                    self.values.append(counter.value.nanos)
        return numbers

    def _charge(self, device: Device, numbers: dict[tuple[str, str], int]) -> None:
        charges: dict[int, int] = {}
        for consumed in device.consumes_counters or ():
            self.consistent &= consumed.counter_set in self._sets
            for name, counter in (consumed.counters or {}).items():
                number = numbers.get((consumed.counter_set, name))
                if number is None:
                    self.consistent = False
                    continue
                charges[number] = charges.get(number, 0) + counter.value.nanos
        self.charges[device.name] = tuple(charges.items())

    def available(self, charged: Iterable[str]) -> list[int]:
        """What is left of each counter when these devices are allocated; may be negative."""
        left = list(self.values)
        for name in charged:
            for number, amount in self.charges.get(name, ()):
                left[number] -= amount
        return left


class Pool:
    """All slices of a pool in the cluster, and its views."""

    def __init__(self, pool: PoolId, rules: Rules, *, partitionable: bool) -> None:
        self.id = pool
        self._newest_only = rules.newest_generation_only
        self._partitionable = partitionable
        self._stale = False
        self._slices: dict[str, Slice] = {}
        self._views: dict[tuple[str, ...], PoolView] = {}
        self._by_home: dict[str, list[Slice]] = {}
        self._roaming: list[Slice] = []
        self._generation = 0

    def __len__(self) -> int:
        return len(self._slices)

    @property
    def slices(self) -> Iterable[Slice]:
        """All slices of all generations."""
        return self._slices.values()

    def put(self, slice_: Slice) -> None:
        """A slice was added or replaced."""
        self._slices[slice_.name] = slice_
        self._stale = True

    def remove(self, name: str) -> None:
        """A slice is gone."""
        del self._slices[name]
        self._stale = True

    def _refresh(self) -> None:
        """Sorts the slices anew after changes; only when somebody asks, so that many changes cost one pass."""
        if not self._stale:
            return
        self._stale = False
        self._views.clear()
        self._by_home.clear()
        self._roaming = []
        self._generation = max((s.generation for s in self._slices.values()), default=0)
        for slice_ in self._slices.values():
            if slice_.reach is Reach.NODE and slice_.home is not None:
                self._by_home.setdefault(slice_.home, []).append(slice_)
            elif slice_.reach is not Reach.NOWHERE:
                self._roaming.append(slice_)

    def view(self, node: Node) -> PoolView | None:
        """What the node sees: None when the pool has no relevant slice of its highest generation.

        Raises NodeSelectionError for a malformed node selector in any of its slices.
        """
        self._refresh()
        relevant = [*self._by_home.get(node.metadata.name, ()), *(s for s in self._roaming if s.concerns(node))]
        return self._view(relevant)

    @property
    def home(self) -> str | None:
        """The one node that all slices are for; None when other nodes may see the pool, too."""
        self._refresh()
        if len(self._by_home) != 1 or any(s.reach is not Reach.COUNTERS for s in self._roaming):
            return None
        return next(iter(self._by_home))

    def own_view(self) -> PoolView | None:
        """All that anybody can see of the pool; for a pool with a home exactly what that node sees."""
        self._refresh()
        return self._view([*(s for slices in self._by_home.values() for s in slices), *self._roaming])

    def counters_view(self) -> PoolView | None:
        """What nodes see that only the counters of the pool concern."""
        self._refresh()
        return self._view([s for s in self._roaming if s.has_counters])

    def _view(self, relevant: list[Slice]) -> PoolView | None:
        newest = self._generation
        if relevant and not self._newest_only:
            newest = max(s.generation for s in relevant)
        relevant = [s for s in relevant if s.generation == newest]
        if not relevant:
            return None
        if newest < self._generation and len(relevant) != relevant[0].spec.pool.resource_slice_count:
            return None  # obsolete
        key = tuple(s.name for s in relevant)
        view = self._views.get(key)
        if view is None:
            chosen = set(key)
            others = [s for s in self._slices.values() if s.generation == newest and s.name not in chosen]
            view = PoolView(self.id, relevant, others, counters=self._partitionable)
            self._views[key] = view
        return view
