"""What a device may be given for, each rule as one plain question (allocator.md sections 3, 8, 9 and 11).

The pools that a node sees, in the order in which they are tried; constraints, consumable capacity, taints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dra_api.core import Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from dra_api.quantity import NANO, Quantity
from dra_api.resource import (
    CapacityRequestPolicy,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    DeviceConstraint,
    DeviceTaint,
    DeviceToleration,
    ResourceSlice,
)

from allocator_oracle.problem import Fault, Id, Problem

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
        count = len(requirement.values or ())
        allowed = {
            "In": count > 0,
            "NotIn": count > 0,
            "Exists": count == 0,
            "DoesNotExist": count == 0,
            "Gt": count == 1,
            "Lt": count == 1,
        }
        if not allowed.get(requirement.operator, False):
            raise Fault(f"malformed node selector: {requirement}")
        if requirement.operator in ("Gt", "Lt"):
            try:
                int((requirement.values or ("",))[0])
            except ValueError:
                raise Fault(f"malformed node selector: {requirement}") from None
    for requirement in term.match_fields or ():
        if requirement.operator not in ("In", "NotIn") or len(requirement.values or ()) != 1:
            raise Fault(f"malformed node selector: {requirement}")
