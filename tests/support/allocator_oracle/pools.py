"""What the oracle is asked, as plain objects in plain containers (terms of allocator.md), and the rules for devices.

Each rule is one plain question (sections 3, 8, 9 and 11): the pools that a node sees, in the order in which they are
tried; constraints, consumable capacity, taints.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dra_api.codec import convert
from dra_api.core import Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from dra_api.resource import (
    CapacityRequestPolicy,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    DeviceClass,
    DeviceConstraint,
    DeviceTaint,
    DeviceTaintRule,
    DeviceToleration,
    ResourceClaim,
    ResourceSlice,
)
from dra_api.values import NANO, Quantity
from dra_cel import Environment, compile, device_selectors, prepare
from msgspec.structs import replace

Id = tuple[str, str, str]
"""Driver, pool, device."""


class Fault(Exception):
    """The claims cannot be decided. ``of_node``: because of what this node sees (section 15)."""

    def __init__(self, text: str, *, of_node: bool = False) -> None:
        super().__init__(text)
        self.of_node = of_node


class OutOfSteps(Exception):
    """The search was stopped before it came to an end."""


class Gates:
    """Feature gates by their names, and which of the reference's mistakes to repeat."""

    def __init__(self, names: Iterable[str], release: tuple[int, int] = (1, 36), **mistakes: bool) -> None:
        on = frozenset(names)
        self.admin = "DRAAdminAccess" in on
        self.prioritized = "DRAPrioritizedList" in on
        self.partitionable = "DRAPartitionableDevices" in on
        self.taints = "DRADeviceTaints" in on
        self.capacity = "DRAConsumableCapacity" in on
        self.lists = "DRAListTypeAttributes" in on
        self.binding = {"DRADeviceBindingConditions", "DRAResourceClaimDeviceStatus"} <= on
        self.stable = not (self.binding or self.capacity or self.lists)
        """The oldest implementation answers, which knows less (section 14)."""
        self.counters_apart = self.partitionable and release >= (1, 35)
        """A slice with counters has no devices."""
        self.incomplete_pools_do = release < (1, 35)
        """A request for a number of devices gets those of incomplete pools (section 3)."""
        self.nothing_is_all = release == (1, 32)
        """A request for all devices is served where there is none (section 7)."""
        self.newest_generation_only = mistakes.pop("newest_generation_only", True)
        self.admin_ignores_allocations = mistakes.pop("admin_ignores_allocations", True)
        self.errors_stay_on_node = mistakes.pop("errors_stay_on_node", True)
        self.shares_stay_held = mistakes.pop("shares_stay_held", True)
        assert not mistakes


@dataclass(frozen=True)
class Taken:
    """The allocated state (section 1)."""

    devices: frozenset[Id] = frozenset()
    shares: frozenset[tuple[Id, str]] = frozenset()
    capacity: Mapping[Id, Mapping[str, int]] = field(default_factory=dict)
    """Consumed billionths."""

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> Taken:
        """From ``allocatedState`` of a corpus case."""

        def identity(entry: Mapping[str, str]) -> Id:
            return entry["driver"], entry["pool"], entry["device"]

        capacity: dict[Id, dict[str, int]] = {}
        for entry in state.get("aggregatedCapacity") or []:
            sums = capacity.setdefault(identity(entry), {})
            for name, text in entry["capacity"].items():
                sums[name] = sums.get(name, 0) + Quantity(text).nanos
        return cls(
            frozenset(identity(entry) for entry in state.get("allocatedDevices") or []),
            frozenset((identity(entry), entry["shareID"]) for entry in state.get("allocatedSharedDeviceIDs") or []),
            capacity,
        )

    def charged(self, device: Id) -> bool:
        """A claim holds the device in some way, so its counters are spent."""
        return device in self.devices or device in self.capacity or any(held == device for held, _ in self.shares)


@dataclass(frozen=True)
class Problem:
    """One call: claims of a pod, one node, and everything published. The order of slices counts."""

    node: Node
    claims: tuple[ResourceClaim, ...]
    classes: tuple[DeviceClass, ...]
    slices: tuple[ResourceSlice, ...]
    taken: Taken
    gates: Gates

    @classmethod
    def from_case(
        cls, case: Mapping[str, Any], node: Mapping[str, Any], release: tuple[int, int] = (1, 36), /, **mistakes: bool
    ) -> Problem:
        slices = tuple(convert(ResourceSlice, slice_) for slice_ in case["slices"])
        rules = [convert(DeviceTaintRule, rule) for rule in case.get("rules") or []]
        return cls(
            node=convert(Node, node),
            claims=tuple(convert(ResourceClaim, claim) for claim in case["claims"]),
            classes=tuple(convert(DeviceClass, class_) for class_ in case["classes"]),
            slices=tuple(with_taints(slice_, rules) for slice_ in slices),
            taken=Taken.from_json(case.get("allocatedState") or {}),
            gates=Gates(case["features"], release, **mistakes),
        )

    @property
    def _environment(self) -> Environment:
        return device_selectors(consumable_capacity=self.gates.capacity, list_attributes=self.gates.lists)

    def selects(self, expression: str, driver: str, device: Device) -> bool:
        """One evaluation of one selector. Raises whatever is wrong with it."""
        prepared = prepare(driver, device, list_attributes=self.gates.lists)
        return compile(expression, self._environment).matches(prepared)

    def compiles(self, expression: str) -> bool:
        """Whether a selector is one, whatever it says of devices."""
        try:
            compile(expression, self._environment)
        except Exception:
            return False
        return True


def with_taints(slice_: ResourceSlice, rules: Iterable[DeviceTaintRule]) -> ResourceSlice:
    """The taint of each rule that applies to a device stands behind the device's own (section 13)."""
    devices = []
    for device in slice_.spec.devices or ():
        taints = list(device.taints or ())
        for rule in rules:
            wanted = rule.spec.device_selector
            if wanted is None:
                continue
            pairs = (
                (wanted.driver, slice_.spec.driver),
                (wanted.pool, slice_.spec.pool.name),
                (wanted.device, device.name),
            )
            if all(want is None or want == have for want, have in pairs):
                taints.append(rule.spec.taint)
        devices.append(replace(device, taints=tuple(taints) or None))
    return replace(slice_, spec=replace(slice_.spec, devices=tuple(devices) or None))


Pair = tuple[str, object]


# --- constraints --------------------------------------------------------------------------------


def attribute(device: Device, driver: str, name: str) -> DeviceAttribute | None:
    """The literal key first; the bare one when the domain is the driver's name."""
    published = device.attributes or {}
    domain, _, bare = name.partition("/")
    return published.get(name) or (published.get(bare) if domain == driver and bare else None)


def allows(constraint: DeviceConstraint, chosen: Sequence[tuple[str, Device]], *, lists: bool) -> bool:
    """The constraint holds among these devices of these drivers, the last of which is the newcomer."""
    matching = constraint.match_attribute is not None
    name = constraint.match_attribute or constraint.distinct_attribute or ""
    found = [attribute(device, driver, name) for driver, device in chosen]
    if any(published is None for published in found):
        return False
    values = [_values(published, lists=lists) for published in found if published is not None]
    if lists:
        if any(not pairs for pairs in values):
            return False
        if matching:
            return bool(set.intersection(*values))
        return all(one.isdisjoint(other) for place, one in enumerate(values) for other in values[:place])
    if len(values) > 1 and any(not pairs for pairs in values):
        return False
    if matching:
        return all(pairs == values[0] for pairs in values)
    return all(one != other for place, one in enumerate(values) for other in values[:place])


def _values(published: DeviceAttribute, *, lists: bool) -> set[Pair]:
    """The values with their types; none when the type is not known."""
    for type_ in ("string", "int_", "bool_", "version"):
        value = getattr(published, type_)
        if value is not None:
            return {(type_.rstrip("_"), value)}
    if lists:
        for type_ in ("string", "int", "bool", "version"):
            value = getattr(published, type_ + "s")
            if value is not None:
                return {(type_, item) for item in value}
    return set()


# --- consumable capacity ------------------------------------------------------------------------


def consumption(requested: Mapping[str, Quantity], device: Device) -> dict[str, Quantity] | None:
    """What a share takes of every capacity; None when the device cannot serve the request."""
    published = device.capacity or {}
    if not set(requested) <= set(published):
        return None
    amounts = {}
    for name, capacity in published.items():
        amount = _consumed(requested.get(name), capacity)
        if amount is None or not _permitted(amount, capacity.request_policy):
            return None
        amounts[name] = amount
    return amounts


def _consumed(requested: Quantity | None, capacity: DeviceCapacity) -> Quantity | None:
    policy = capacity.request_policy
    if requested is None:
        return policy.default if policy and policy.default is not None else capacity.value
    if policy is None:
        return requested
    span = policy.valid_range
    if span is not None and span.min is not None:
        if requested <= span.min:
            return span.min
        if span.step is None:
            return requested
        step, amount = _whole(span.step), _whole(span.min)
        if step <= 0:
            return None
        while amount < _whole(requested):
            amount += step
        return Quantity.of(amount, binary=True)
    if policy.valid_values is not None:
        return min((value for value in policy.valid_values if value >= requested), default=requested)
    return requested


def _permitted(amount: Quantity, policy: CapacityRequestPolicy | None) -> bool:
    if policy is None or (policy.default is not None and policy.default == amount):
        return True
    span = policy.valid_range
    if span is not None:
        if span.max is not None and amount > span.max:
            return False
        if span.step is None:
            return True
        start, step = _whole(span.min) if span.min is not None else 0, _whole(span.step)
        return step > 0 and (_whole(amount) - start) % step == 0
    return policy.valid_values is None or amount in policy.valid_values


def _whole(quantity: Quantity) -> int:
    return -(-quantity.nanos // NANO)


# --- taints -------------------------------------------------------------------------------------


def tolerated(taints: Sequence[DeviceTaint], tolerations: Sequence[DeviceToleration]) -> bool:
    """Every taint that matters for scheduling is tolerated."""
    return all(
        any(_tolerates(toleration, taint) for toleration in tolerations)
        for taint in taints
        if taint.effect in ("NoSchedule", "NoExecute")
    )


def _tolerates(toleration: DeviceToleration, taint: DeviceTaint) -> bool:
    same_effect = toleration.effect in ("", taint.effect)
    same_key = toleration.key in ("", taint.key)
    same_value = toleration.operator in ("", "Equal") and toleration.value == taint.value
    return same_effect and same_key and (toleration.operator == "Exists" or same_value)


# --- The pools that a node sees, in the order in which they are tried (allocator.md section 3) ---


@dataclass
class Pool:
    """``slices`` are those with devices that are relevant for the node; ``all`` those of the same generation."""

    driver: str
    name: str
    slices: list[ResourceSlice]
    all: list[ResourceSlice]
    complete: bool
    incomplete_do: bool = False
    valid: bool = True

    @property
    def binding(self) -> bool:
        return any(device.binding_conditions is not None for s in self.slices for device in s.spec.devices or ())


@dataclass
class Candidate:
    """A device as one pool offers it."""

    pool: Pool
    slice_: ResourceSlice
    device: Device
    id: Id = field(init=False)

    def __post_init__(self) -> None:
        self.id = (self.pool.driver, self.pool.name, self.device.name)


def gather(problem: Problem) -> list[Pool]:
    """All pools that have a relevant slice, unusable ones included.

    Raises Fault for a malformed node selector, unless errors stay on their node.
    """
    relevant: dict[tuple[str, str], list[ResourceSlice]] = {}
    for slice_ in problem.slices:
        if _relevant(problem, slice_):
            relevant.setdefault(_key(slice_), []).append(slice_)
    pools = []
    for key in sorted(relevant):
        pool = _pool(problem, key, relevant[key])
        if pool is not None:
            pools.append(pool)
    return [pool for pool in pools if not pool.binding] + [pool for pool in pools if pool.binding]


def candidates(pools: list[Pool]) -> list[Candidate]:
    """The devices of all usable pools."""
    return [
        Candidate(pool, slice_, device)
        for pool in pools
        if (pool.complete or pool.incomplete_do) and pool.valid
        for slice_ in pool.slices
        for device in slice_.spec.devices or ()
    ]


def _key(slice_: ResourceSlice) -> tuple[str, str]:
    return slice_.spec.driver, slice_.spec.pool.name


def _relevant(problem: Problem, slice_: ResourceSlice) -> bool:
    spec = slice_.spec
    if not problem.gates.partitionable and (spec.per_device_node_selection is not None or spec.shared_counters):
        return False
    if spec.shared_counters and problem.gates.counters_apart and not problem.gates.errors_stay_on_node:
        return True
    if spec.node_name or spec.all_nodes or spec.node_selector is not None:
        return node_matches(problem, spec.node_name, spec.all_nodes, spec.node_selector)
    return bool(spec.per_device_node_selection) and any(
        node_matches(problem, device.node_name, device.all_nodes, device.node_selector) for device in spec.devices or ()
    )


def _pool(problem: Problem, key: tuple[str, str], relevant: list[ResourceSlice]) -> Pool | None:
    everywhere = [slice_ for slice_ in problem.slices if _key(slice_) == key]
    newest = max(slice_.spec.pool.generation for slice_ in everywhere)
    generation = max(slice_.spec.pool.generation for slice_ in relevant)
    if problem.gates.newest_generation_only:
        generation = newest
    relevant = [slice_ for slice_ in relevant if slice_.spec.pool.generation == generation]
    if not relevant:
        return None
    wanted = relevant[0].spec.pool.resource_slice_count
    kept = [slice_ for slice_ in everywhere if slice_.spec.pool.generation == generation]
    complete = len(relevant) == wanted
    if not complete:
        if newest > generation:
            return None
        complete = len(kept) == wanted
    with_devices = [slice_ for slice_ in relevant if not (problem.gates.counters_apart and slice_.spec.shared_counters)]
    incomplete_do = problem.gates.incomplete_pools_do
    pool = Pool(*key, sorted(with_devices, key=lambda s: s.metadata.name), kept, complete, incomplete_do)
    pool.valid = not (complete or incomplete_do) or _valid(problem, pool)
    return pool


def _valid(problem: Problem, pool: Pool) -> bool:
    names = [device.name for slice_ in pool.slices for device in slice_.spec.devices or ()]
    if len(set(names)) != len(names):
        return False
    if not problem.gates.partitionable:
        return True
    sets = [counters for slice_ in pool.all for counters in slice_.spec.shared_counters or ()]
    known = {counters.name: set(counters.counters or ()) for counters in sets}
    if len(known) != len(sets):
        return False
    return all(
        consumed.counter_set in known and set(consumed.counters or ()) <= known[consumed.counter_set]
        for slice_ in pool.all
        for device in slice_.spec.devices or ()
        for consumed in device.consumes_counters or ()
    )


# --- node selection -----------------------------------------------------------------------------


def node_matches(problem: Problem, name: str | None, all_nodes: bool | None, selector: NodeSelector | None) -> bool:
    """The fields of a slice or device in their order of precedence. Raises Fault."""
    node = problem.node
    if name:
        return name == node.metadata.name
    if all_nodes:
        return True
    if selector is None:
        return False
    try:
        for term in selector.node_selector_terms or ():
            _check(term)
    except Fault:
        if problem.gates.errors_stay_on_node:
            return False
        raise
    return any(term_matches(node, term) for term in selector.node_selector_terms or ())


def term_matches(node: Node, term: NodeSelectorTerm) -> bool:
    """All requirements hold; an empty term matches nothing."""
    labels = [_label_matches(node, requirement) for requirement in term.match_expressions or ()]
    fields = [
        (requirement.operator == "In") == (node.metadata.name == (requirement.values or ("",))[0])
        for requirement in term.match_fields or ()
    ]
    return bool(labels or fields) and all(labels) and all(fields)


def _label_matches(node: Node, requirement: NodeSelectorRequirement) -> bool:
    value = (node.metadata.labels or {}).get(requirement.key)
    values = requirement.values or ()
    match requirement.operator:
        case "In":
            return value is not None and value in values
        case "NotIn":
            return value is None or value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    try:
        number, bound = int(value or "none"), int(values[0])
    except ValueError:
        return False
    return number > bound if requirement.operator == "Gt" else number < bound


def _check(term: NodeSelectorTerm) -> None:
    for requirement in term.match_expressions or ():
        values = requirement.values or ()
        match requirement.operator:
            case "In" | "NotIn":
                is_sound = len(values) > 0
            case "Exists" | "DoesNotExist":
                is_sound = len(values) == 0
            case "Gt" | "Lt":
                is_sound = len(values) == 1 and re.fullmatch(r"[+-]?\d+", values[0]) is not None
            case _:
                is_sound = False
        if not is_sound:
            raise Fault(f"malformed node selector: {requirement}")
    for requirement in term.match_fields or ():
        if requirement.operator not in ("In", "NotIn") or len(requirement.values or ()) != 1:
            raise Fault(f"malformed node selector: {requirement}")
