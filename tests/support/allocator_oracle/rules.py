"""Constraints, consumable capacity, taints, each as one plain question (allocator.md sections 8, 9 and 11)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dra_api.quantity import NANO, Quantity
from dra_api.resource import (
    CapacityRequestPolicy,
    Device,
    DeviceAttribute,
    DeviceCapacity,
    DeviceConstraint,
    DeviceTaint,
    DeviceToleration,
)

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
