"""Checks of a device in a slice: name, attributes, capacity with request policies, counters, taints, cost on the node.

From 1.37 on a request policy has no negative amounts and none that 64 bits cannot count. With
DRAFractionalCapacityRange the steps of a range with fractions are counted in thousandths (K37-FR-05 to -08). Spec:
api.md sections 4 and 6, kubernetes-1.37.md section 12.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import partial
from typing import Final

from dra_api.gates import POOL_RULES, FeatureGates
from dra_api.releases import Release
from dra_api.resource import (
    CapacityRequestPolicy,
    CapacityRequestPolicyRange,
    Counter,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    DeviceCounterConsumption,
    DeviceTaint,
    DeviceToleration,
    NodeAllocatableMapping,
    NodeAllocatableResource,
    NodeAllocatableResourceMapping,
)
from dra_api.validation.formats import (
    Errors,
    attribute_string,
    attribute_version,
    checked,
    counter_name,
    dns_label,
    duplicate,
    forbidden,
    invalid,
    is_native_resource,
    label_key,
    label_value,
    node_choice,
    not_found,
    not_supported,
    qualified_name,
    required,
    too_many,
)
from dra_api.validation.metadata import binding_conditions, each, limited, mapping, unique
from dra_api.values import NANO, Quantity, same

_EFFECTS: Final = {"None", "NoSchedule", "NoExecute"}
_OPERATORS: Final = {"Equal", "Exists"}


def taint(taint: DeviceTaint, path: str, old: DeviceTaint | None = None) -> Errors:
    """A taint; an effect that ``old`` already had is valid, even if it is unknown."""
    yield from checked(label_key, taint.key, f"{path}.key")
    yield from checked(label_value, taint.value, f"{path}.value")
    if old is not None and old.effect == taint.effect:
        return
    if not taint.effect:
        yield required(f"{path}.effect")
    elif taint.effect not in _EFFECTS:
        yield not_supported(f"{path}.effect", taint.effect, _EFFECTS)


def toleration(toleration: DeviceToleration, path: str) -> Errors:
    """A toleration; no key tolerates all keys, no effect all effects."""
    if toleration.key:
        yield from checked(label_key, toleration.key, f"{path}.key")
    match toleration.operator:
        case "Exists":
            if toleration.value:
                yield invalid(f"{path}.value", toleration.value, "must be empty for operator `Exists`")
        case "Equal":
            yield from checked(label_value, toleration.value, f"{path}.value")
        case "":
            yield required(f"{path}.operator")
        case operator:
            yield not_supported(f"{path}.operator", operator, _OPERATORS)
    if toleration.effect and toleration.effect not in _EFFECTS:
        yield not_supported(f"{path}.effect", toleration.effect, _EFFECTS)


def node_allocatable_resource(
    name: str, item: NodeAllocatableResource, capacities: Mapping[str, DeviceCapacity], path: str
) -> Errors:
    """One resource of the node: a mapping, an overhead, or both."""
    if not is_native_resource(name):
        yield invalid(path, name, "must be a node allocatable resource name")
    if item.mapping is None and item.overhead is None:
        yield required(path, "at least one of `mapping` or `overhead` is required")
    if item.mapping is not None:
        yield from _mapping(item.mapping, capacities, f"{path}.mapping")
    if item.overhead is not None:
        amounts = {"perPod": item.overhead.per_pod, "perContainer": item.overhead.per_container}
        if not any(amount is not None for amount in amounts.values()):
            yield required(f"{path}.overhead", "at least one of `perPod` or `perContainer` is required")
        yield from _positive(amounts, f"{path}.overhead")


def _mapping(mapping: NodeAllocatableMapping, capacities: Mapping[str, DeviceCapacity], path: str) -> Errors:
    one_of = "exactly one of `capacityKey` or `deviceMultiplier` is required"
    if mapping.capacity_key is not None and mapping.device_multiplier is not None:
        yield invalid(path, mapping, f"{one_of}, but multiple fields are set")
    elif mapping.capacity_key is None and mapping.device_multiplier is None:
        yield required(path, one_of)
    if mapping.capacity_key is not None and mapping.capacity_multiplier is None:
        yield required(f"{path}.capacityMultiplier", "required when `capacityKey` is set")
    if mapping.capacity_key is None and mapping.capacity_multiplier is not None:
        yield required(f"{path}.capacityKey", "required when `capacityMultiplier` is set")
    if mapping.capacity_key is not None and mapping.capacity_key not in capacities:
        yield not_found(f"{path}.capacityKey", mapping.capacity_key)
    multipliers = {"capacityMultiplier": mapping.capacity_multiplier, "deviceMultiplier": mapping.device_multiplier}
    yield from _positive(multipliers, path)


def _positive(amounts: Mapping[str, Quantity | None], path: str) -> Errors:
    for name, amount in amounts.items():
        if amount is not None and amount.nanos <= 0:
            yield invalid(f"{path}.{name}", str(amount), "must be positive")


ATTRIBUTES_AND_CAPACITIES_LIMIT: Final = 32
ATTRIBUTE_VALUES_LIMIT: Final = 48
COUNTERS_LIMIT: Final = 32
COMPATIBILITY_GROUPS_LIMIT: Final = 2

_LISTS: Final = ("bools", "ints", "strings", "versions")
_NO_LISTS: Final = (None, None, None, None)
_ONE_NODE_CHOICE: Final = (
    "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required "
    "when `perDeviceNodeSelection` is set to true in the ResourceSlice spec"
)


def has_list_attributes(device: Device) -> bool:
    """Whether any attribute is a list, which lowers the number of devices that a slice may have."""
    return any(_lists(attribute) for attribute in (device.attributes or {}).values())


def device(device: Device, path: str, *, old: Device | None, chooses_node: bool, gates: FeatureGates) -> Errors:
    """A device; ``old`` is the stored one of that name, ``chooses_node``: each device of the slice names its nodes."""
    rules = POOL_RULES[gates.release]
    yield from checked(dns_label, device.name, f"{path}.name")
    yield from _sizes(device, path)
    yield from mapping(device.attributes, f"{path}.attributes", qualified_name, device_attribute)
    if old is None or not same(old.capacity, device.capacity):
        check = partial(capacity, shareable=bool(device.allow_multiple_allocations), gates=gates)
        yield from mapping(device.capacity, f"{path}.capacity", qualified_name, check)
    if old is None or not same(old.taints, device.taints):
        yield from limited(device.taints, f"{path}.taints", rules.taints, taint)
    yield from unique(
        device.consumes_counters,
        f"{path}.consumesCounters",
        rules.sets_of_device or len(device.consumes_counters or ()),
        _consumption,
        lambda item: item.counter_set,
    )
    if chooses_node:
        yield from node_choice(device, path, _ONE_NODE_CHOICE)
    elif device.node_name is not None or device.node_selector is not None or device.all_nodes is not None:
        detail = (
            "`nodeName`, `nodeSelector` and `allNodes` can only be set "
            "if `perDeviceNodeSelection` is set to true in the ResourceSlice spec"
        )
        yield invalid(path, None, detail)
    yield from binding_conditions(device, path)
    for name, item in (device.node_allocatable_resource_mappings or {}).items():
        item_path = f"{path}.nodeAllocatableResourceMappings[{name}]"
        yield from _native_resource(name, item, device.capacity or {}, item_path)
    for name, resource in (device.node_allocatable_resources or {}).items():
        item_path = f"{path}.nodeAllocatableResources[{name}]"
        yield from node_allocatable_resource(name, resource, device.capacity or {}, item_path)


def counters(items: dict[str, Counter] | None, path: str) -> Errors:
    """1 to 32 counters, of any quantity."""
    if not items:
        yield required(path)
    elif len(items) > COUNTERS_LIMIT:
        yield too_many(path, len(items), COUNTERS_LIMIT)
    else:
        for name in items:
            yield from checked(dns_label, name, path)


def device_attribute(attribute: DeviceAttribute, path: str) -> Errors:
    """One scalar, or one list that is not empty."""
    if attribute.string is not None:
        yield from attribute_string(attribute.string, f"{path}.string")
    if attribute.version is not None:
        yield from attribute_version(attribute.version, f"{path}.version")
    lists = _lists(attribute)
    for name, values in lists.items():
        if not values:
            yield invalid(f"{path}.{name}", [], "must not be empty if specified")
    yield from each(attribute.strings, f"{path}.strings", attribute_string)
    yield from each(attribute.versions, f"{path}.versions", attribute_version)
    scalars = (attribute.bool_, attribute.int_, attribute.string, attribute.version)
    if len(lists) + sum(value is not None for value in scalars) != 1:
        yield invalid(path, attribute, "exactly one value must be specified")


def _lists(attribute: DeviceAttribute) -> dict[str, tuple[object, ...]]:
    lists = (attribute.bools, attribute.ints, attribute.strings, attribute.versions)
    if lists == _NO_LISTS:  # the usual case, checked first because this runs for every attribute in a cluster
        return {}
    return {name: values for name, values in zip(_LISTS, lists, strict=True) if values is not None}


def _sizes(device: Device, path: str) -> Errors:
    entries = len(device.attributes or {}) + len(device.capacity or {})
    if entries > ATTRIBUTES_AND_CAPACITIES_LIMIT:
        detail = f"the total number of attributes and capacities must not exceed {ATTRIBUTES_AND_CAPACITIES_LIMIT}"
        yield invalid(path, entries, detail)
    values = sum(sum(map(len, _lists(attribute).values())) or 1 for attribute in (device.attributes or {}).values())
    if values > ATTRIBUTE_VALUES_LIMIT:
        yield invalid(path, values, f"the total number of attribute values must not exceed {ATTRIBUTE_VALUES_LIMIT}")


def _consumption(consumption: DeviceCounterConsumption, path: str) -> Errors:
    yield from counter_name(consumption.counter_set, f"{path}.counterSet")
    yield from counters(consumption.counters, f"{path}.counters")
    yield from unique(
        consumption.compatibility_groups,
        f"{path}.compatibilityGroups",
        COMPATIBILITY_GROUPS_LIMIT,
        lambda item, path: checked(dns_label, item, path),
        lambda item: item,
    )


def _native_resource(
    name: str, item: NodeAllocatableResourceMapping, capacities: Mapping[str, DeviceCapacity], path: str
) -> Errors:
    if not is_native_resource(name):
        yield invalid(path, name, "must be a node allocatable resource name")
    if item.capacity_key == "":
        yield invalid(f"{path}.capacityKey", "", "capacityKey must not be an empty string")
    elif item.capacity_key is not None and item.capacity_key not in capacities:
        yield not_found(f"{path}.capacityKey", item.capacity_key)
    if item.allocation_multiplier is not None and item.allocation_multiplier.nanos <= 0:
        yield invalid(f"{path}.allocationMultiplier", str(item.allocation_multiplier), "must be positive")
    if item.capacity_key is None and item.allocation_multiplier is None:
        yield invalid(path, None, "at least one of allocationMultiplier or capacityKey must be set")


VALID_VALUES_LIMIT: Final = 10
_LARGEST_VALUE: Final = 2**63 - 1
_MILLI: Final = NANO // 1000


def capacity(capacity: DeviceCapacity, path: str, *, shareable: bool, gates: FeatureGates) -> Errors:
    """A capacity; only a device that allows multiple allocations may have a request policy."""
    policy, path = capacity.request_policy, f"{path}.requestPolicy"
    if policy is None:
        return
    if not shareable:
        yield forbidden(path, "allowMultipleAllocations must be true")
    elif policy.valid_values and policy.valid_range is not None:
        detail = 'exactly one policy can be specified, cannot specify "validValues" and "validRange" at the same time'
        yield forbidden(path, detail)
    elif policy.valid_values or policy.valid_range is not None:
        if gates.release >= Release.V1_37:
            yield from _amounts(policy, path)
        yield from _policy(policy, capacity.value, path, gates)


def _amounts(policy: CapacityRequestPolicy, path: str) -> Errors:
    bounds = policy.valid_range or CapacityRequestPolicyRange()
    limits = {"validRange.min": bounds.min, "validRange.max": bounds.max, "validRange.step": bounds.step}
    for name, amount in {"default": policy.default, **limits}.items():
        if amount is not None and amount.nanos < 0:
            yield invalid(f"{path}.{name}", str(amount), "must be greater than or equal to zero")
        elif amount is not None and amount.nanos > _LARGEST_VALUE * NANO:
            yield invalid(f"{path}.{name}", str(amount), f"must be less than or equal to {_LARGEST_VALUE}")


def _policy(policy: CapacityRequestPolicy, value: Quantity, path: str, gates: FeatureGates) -> Errors:
    kind = "validRange" if policy.valid_range is not None else "validValues"
    if policy.default is None:
        yield required(f"{path}.default", f"required when {kind} is defined")
    elif policy.valid_range is not None:
        fractions = gates.fractional_capacity_ranges and _has_fractions(policy.valid_range, policy.default)
        if fractions:
            yield from _in_thousandths(policy.valid_range, policy.default, path)
        yield from _range(
            policy.valid_range, policy.default, value, f"{path}.validRange", _MILLI if fractions else NANO
        )
    else:
        yield from _values(policy.valid_values or (), policy.default, value, f"{path}.validValues")


def _has_fractions(bounds: CapacityRequestPolicyRange, default: Quantity) -> bool:
    amounts = (default, bounds.min, bounds.max, bounds.step)
    return any(amount.nanos % NANO for amount in amounts if amount is not None)


def _in_thousandths(bounds: CapacityRequestPolicyRange, default: Quantity, path: str) -> Errors:
    limits = {"validRange.min": bounds.min, "validRange.max": bounds.max, "validRange.step": bounds.step}
    for name, amount in {"default": default, **limits}.items():
        if amount is not None and amount.nanos % _MILLI:
            yield invalid(f"{path}.{name}", str(amount), "value cannot be represented as a milli value")


def _values(values: tuple[Quantity, ...], default: Quantity, value: Quantity, path: str) -> Errors:
    for index, (lower, higher) in enumerate(itertools.pairwise(values)):
        if higher < lower:
            yield invalid(f"{path}[{index + 1}]", str(higher), "values must be sorted in ascending order")
    if len(values) > VALID_VALUES_LIMIT:
        yield too_many(path, len(values), VALID_VALUES_LIMIT)
    else:
        seen = set()
        for index, option in enumerate(values):
            if option > value:
                detail = f"option is larger than capacity value: {value}"
                yield invalid(f"{path}[{index}]", str(option), detail)
            if option.rounded_up() in seen:
                yield duplicate(f"{path}[{index}]", str(option.rounded_up()))
            seen.add(option.rounded_up())
    if default not in values:
        yield invalid(path, str(default), "default value is not valid according to the requestPolicy")


def _range(bounds: CapacityRequestPolicyRange, default: Quantity, value: Quantity, path: str, unit: int) -> Errors:
    lowest, highest, step = bounds.min, bounds.max, bounds.step
    if lowest is None:
        yield required(f"{path}.min", "required when validRange is defined")
        return
    if lowest > value:
        yield invalid(f"{path}.min", str(lowest), f"min is larger than capacity value: {value}")
    if default < lowest:
        yield invalid(f"{path}.min", str(default), f"default is less than min: {lowest}")
    if highest is not None:
        if lowest > highest:
            yield invalid(f"{path}.max", str(lowest), f"min is larger than max: {highest}")
        if highest > value:
            yield invalid(f"{path}.max", str(highest), f"max is larger than capacity value: {value}")
        if default > highest:
            yield invalid(f"{path}.max", str(default), f"default is more than max: {highest}")
    if step is not None:
        reached = [default] if highest is None else [default, highest]
        yield from _step(step, lowest, reached, value, f"{path}.step", unit)


def _step(step: Quantity, lowest: Quantity, reached: list[Quantity], value: Quantity, path: str, unit: int) -> Errors:
    """Steps are whole numbers of units: every quantity is rounded up first."""
    width = step.rounded_up(unit)
    if width <= 0:  # the reference divides by it
        yield invalid(path, str(step), "must be greater than zero")
        return
    if lowest + step > value:
        yield invalid(path, str(step), f"one step {lowest + step} is larger than capacity value: {value}")
    for end in reached:
        if (end.rounded_up(unit) - lowest.rounded_up(unit)) % width:
            yield invalid(path, str(end), f"value is not a multiple of a given step ({step}) from ({lowest})")
