"""Slices as they are kept, and which nodes they concern (allocator.md section 3).

The node fields of a slice, or of a device with ``perDeviceNodeSelection``, have an order of precedence: ``nodeName``,
then ``allNodes``, then the selector. Devices of a cluster repeat a few hundred attribute values and capacities a
million times, and decoding makes new objects for all of them: the ``Interner`` keeps equal parts once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from enum import Enum
from sys import intern
from typing import Final

from dra_api.core import Node, NodeSelector
from dra_api.gates import POOL_RULES
from dra_api.releases import Release
from dra_api.resource import Device, DeviceAttribute, DeviceCapacity, ResourceSlice, ResourceSliceSpec
from msgspec import structs
from msgspec.structs import replace

from .basics import Expressions, Memo, PoolId
from .capacity import Requests, fault
from .errors import NodeSelectionError
from .evaluated import Evaluated
from .evaluation import Evaluation, at_once
from .features import Features, Semantics
from .node_selectors import first_match, parse
from .predicates import Compiled, Verdicts

NONE: Final = Verdicts(0, 0)


class Reach(Enum):
    """Which nodes a slice may concern, before a node is looked at."""

    NODE = "the node it names"
    MULTI_NODE = "depends on the node"
    COUNTERS = "all nodes, in the reference up to 1.36: it defines shared counters"
    NOWHERE = "none: it needs partitionable devices, which are off"


class Slice:
    """One published slice, with the verdicts of the selectors evaluated on it so far."""

    __slots__ = (
        "_all",
        "_evaluated",
        "_faulty",
        "devices",
        "generation",
        "malformed",
        "name",
        "pool",
        "reach",
        "sharing",
        "spec",
    )

    def __init__(self, source: ResourceSlice, features: Features, semantics: Semantics) -> None:
        self.name = source.metadata.name
        self.spec = source.spec
        self.malformed = self._find_malformed()
        """Why a node selector of the slice, or of one of its devices, cannot be understood; empty if all can be."""
        if self.malformed and semantics.errors_stay_on_node:
            self.spec = without_malformed(self.spec)
        self.pool = PoolId.of(source)
        self.generation = source.spec.pool.generation
        beside = POOL_RULES[features.release].counters_beside_devices
        self.devices: tuple[Device, ...] = () if self.has_counters and not beside else self.spec.devices or ()
        """From 1.35 on a slice with shared counters offers no devices, because it must not have any."""
        self._all = (1 << len(self.devices)) - 1
        self.sharing = any(device.allow_multiple_allocations for device in self.devices)
        self.reach = self._reach(features, semantics)
        self._evaluated = Evaluated()
        self._faulty: Memo[Requests, int] = Memo()

    def _find_malformed(self) -> str:
        per_device = self.spec.devices or () if self.spec.per_device_node_selection else ()
        places = [("", self.spec.node_selector), *((f"device {one.name}: ", one.node_selector) for one in per_device)]
        for place, selector in places:
            if fault := _selector_fault(selector):
                return f"{place}{fault}"
        return ""

    def _reach(self, features: Features, semantics: Semantics) -> Reach:
        """The node fields of a slice with shared counters count, in the reference from 1.37 on (K37-BUG-16)."""
        spec = self.spec
        partitioned = spec.per_device_node_selection is not None or spec.shared_counters
        if partitioned and not features.partitionable_devices:
            return Reach.NOWHERE
        of_its_own = spec.shared_counters and not POOL_RULES[features.release].counters_beside_devices
        if of_its_own and features.release < Release.V1_37 and not semantics.errors_stay_on_node:
            return Reach.COUNTERS
        return Reach.NODE if spec.node_name else Reach.MULTI_NODE

    @property
    def has_counters(self) -> bool:
        return bool(self.spec.shared_counters)

    @property
    def owning_node(self) -> str | None:
        """The only node that the slice is for, when it names one."""
        return self.spec.node_name if self.reach is Reach.NODE else None

    @property
    def ambiguous(self) -> bool:
        """The node selector has several terms: an allocation cannot name the nodes of its devices (section 12)."""
        selector = self.spec.node_selector
        return selector is not None and len(selector.node_selector_terms or ()) > 1

    def faulty(self, requests: Requests, features: Features) -> int:
        """The devices of which these requests would consume a fatal amount (section 9)."""
        if not features.consumable_capacity or features.release < Release.V1_37:
            return 0
        known = self._faulty.get(requests)
        if known is None:
            asked = dict(requests)
            capacities = [device.capacity for device in self.devices]
            faults = (capacity and fault(asked, capacity, features) for capacity in capacities)
            known = self._faulty.put(requests, sum(1 << number for number, text in enumerate(faults) if text))
        return known

    def verdicts(self, expressions: Expressions, compiled: Compiled) -> Verdicts:
        """Where all selectors are true, and where the first one that is not true raises; evaluated once."""
        known = self._evaluated.verdicts.get(expressions)
        if known is None:
            if not expressions:
                return Verdicts(self._all, 0)
            if self._is_ruled_out(expressions, compiled):
                return NONE
            compiled.check(expressions)
            for _ in self.evaluate(expressions, compiled):
                pass
            known = self._evaluated.verdicts[expressions]
        return known

    def evaluate(self, expressions: Expressions, compiled: Compiled) -> Iterator[str]:
        """The same in parts of some milliseconds. Yields the expression that takes the time, empty for one of a class.

        After a drop, the next call continues with the device at which this one was.
        """
        if expressions in self._evaluated.verdicts or self._is_ruled_out(expressions, compiled):
            return
        classes = tuple(itertools.takewhile(compiled.common.__contains__, expressions))
        if len(expressions) == 1 and classes:  # all classes at once: a language then prepares each device only once
            for expression in compiled.common:
                yield from self._evaluate((expression,), Verdicts(self._all, 0), compiled)
            return
        before = classes[:-1] if classes == expressions else classes
        if before:
            yield from self.evaluate(before, compiled)
        yield from self._evaluate(
            expressions, self._evaluated.verdicts.get(before) or Verdicts(self._all, 0), compiled, len(before)
        )

    def _is_ruled_out(self, expressions: Expressions, compiled: Compiled) -> bool:
        if not compiled.rules_out(expressions, self.pool.driver):
            return False
        self._evaluated.verdicts[expressions] = NONE
        compiled.kept.added(expressions, self._evaluated)
        return True

    def _evaluate(
        self, expressions: Expressions, within: Verdicts, compiled: Compiled, asked: int = 0
    ) -> Iterator[str]:
        """Ask all selectors but the first, which were asked before."""
        if expressions in self._evaluated.verdicts:
            return
        begun = self._evaluated.begun.get(expressions)
        if begun is None:
            found = at_once(within, expressions[asked:], self.pool.driver, self.devices, compiled)
            if found is not None:
                self._evaluated.verdicts[expressions], due = found
                compiled.kept.added(expressions, self._evaluated)
                if due is not None:
                    yield due
                return
            begun = self._evaluated.begun[expressions] = Evaluation(
                within, expressions[asked:], compiled.kept.tenant_of(expressions)
            )
            compiled.kept.added(expressions, self._evaluated)
        yield from begun.go_on(self.pool.driver, self.devices, compiled)
        if expressions in self._evaluated.verdicts:  # another attempt has come to the end meanwhile
            return
        self._evaluated.verdicts[expressions] = begun.verdicts
        if begun.failures:
            self._evaluated.failures[expressions] = begun.failures
        if self._evaluated.begun.pop(expressions, None) is None:
            compiled.kept.added(expressions, self._evaluated)

    def failure(self, expressions: Expressions, device: int) -> tuple[str, Exception] | None:
        """The costly selector that failed on a device, and how: evaluating it again would take too long."""
        for asked in range(len(expressions), 0, -1):
            found = self._evaluated.failures.get(expressions[:asked], {}).get(device)
            if found is not None:
                return found
        return None

    def concerns(self, node: Node) -> bool:
        """The slice is relevant for the node. Raises NodeSelectionError for a malformed selector."""
        spec = self.spec
        if self.reach is Reach.COUNTERS:
            return True
        try:
            if spec.node_name or spec.all_nodes or spec.node_selector is not None:
                return selects(spec.node_name, spec.all_nodes, spec.node_selector, node)
            return bool(spec.per_device_node_selection) and any(device_is_for(device, node) for device in self.devices)
        except NodeSelectionError as error:
            raise NodeSelectionError(f"slice {self.name}: {error}") from error


def _selector_fault(selector: NodeSelector | None) -> str:
    """Why a node selector cannot be parsed; empty if it can be."""
    try:
        if selector is not None:
            parse(selector)
    except NodeSelectionError as error:
        return str(error)
    return ""


def without_malformed(spec: ResourceSliceSpec) -> ResourceSliceSpec:
    """The same with node selectors that match no node, instead of those that cannot be parsed (section 15)."""

    def readable(selector: NodeSelector | None) -> NodeSelector | None:
        return NodeSelector(node_selector_terms=()) if _selector_fault(selector) else selector

    devices = spec.devices
    if devices is not None and spec.per_device_node_selection:
        devices = tuple([replace(device, node_selector=readable(device.node_selector)) for device in devices])
    return replace(spec, node_selector=readable(spec.node_selector), devices=devices)


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


Capacity = dict[str, DeviceCapacity]


class Interner:
    """Hands out slices whose parts are shared with those of earlier slices."""

    _LIMIT = 100_000

    def __init__(self) -> None:
        self._attributes: dict[DeviceAttribute, DeviceAttribute] = {}
        self._capacities: dict[tuple[tuple[str, str], ...], Capacity] = {}

    def slice(self, source: ResourceSlice) -> ResourceSlice:
        """An equal slice."""
        devices = source.spec.devices
        if not devices:
            return source
        if len(self._attributes) + len(self._capacities) > self._LIMIT:  # parts in use are kept alive by their slices
            self._attributes.clear()
            self._capacities.clear()
        return structs.replace(source, spec=structs.replace(source.spec, devices=tuple(map(self._device, devices))))

    def _device(self, device: Device) -> Device:
        attributes = device.attributes
        return structs.replace(
            device,
            name=intern(device.name),
            attributes={name: self._attribute(value) for name, value in attributes.items()} if attributes else None,
            capacity=self._capacity(device.capacity),
        )

    def _attribute(self, value: DeviceAttribute) -> DeviceAttribute:
        return self._attributes.setdefault(value, value)

    def _capacity(self, capacity: Capacity | None) -> Capacity | None:
        """The whole map, which is mostly equal for all devices of a model. Quantities keep their text."""
        if not capacity or any(entry.request_policy is not None for entry in capacity.values()):
            return capacity
        key = tuple((name, entry.value.text) for name, entry in capacity.items())
        return self._capacities.setdefault(key, capacity)
