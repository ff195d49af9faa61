"""Consumable capacity: what a request consumes of a device, and whether its policy allows that.

Rules of allocator.md section 9. Arithmetic with steps first rounds quantities up to whole numbers; without a step the
requested quantity is used unchanged. A step of zero, which the API does not reject, would divide by zero in the
reference: here nothing can be consumed with it.
"""

from __future__ import annotations

from collections.abc import Mapping

from dra_api.quantity import Quantity
from dra_api.resource import CapacityRequestPolicy, CapacityRequestPolicyRange, DeviceCapacity


def consumed(requested: Quantity | None, capacity: DeviceCapacity) -> Quantity:
    """What one share consumes of one capacity, rounded as the policy says."""
    policy = capacity.request_policy
    if requested is None:
        return policy.default if policy is not None and policy.default is not None else capacity.value
    if policy is None:
        return requested
    if policy.valid_range is not None and policy.valid_range.min is not None:
        return _rounded_to_range(requested, policy.valid_range.min, policy.valid_range.step)
    if policy.valid_values is not None:
        return next((value for value in policy.valid_values if value >= requested), requested)
    return requested


def _rounded_to_range(requested: Quantity, least: Quantity, step: Quantity | None) -> Quantity:
    if requested < least:
        return least
    if step is None or not step.rounded_up():
        return requested
    base, width = least.rounded_up(), step.rounded_up()
    steps = -(-(requested.rounded_up() - base) // width)
    return Quantity.of(base + steps * width, binary=True)


def violates(amount: Quantity, policy: CapacityRequestPolicy | None) -> bool:
    """Whether the policy forbids this amount; the default is always allowed."""
    if policy is None or amount == policy.default:
        return False
    if policy.valid_range is not None:
        return _outside(amount, policy.valid_range)
    return bool(policy.valid_values) and amount not in (policy.valid_values or ())


def _outside(amount: Quantity, allowed: CapacityRequestPolicyRange) -> bool:
    if allowed.max is not None and amount > allowed.max:
        return True
    if allowed.step is None:
        return False
    width = allowed.step.rounded_up()
    base = allowed.min.rounded_up() if allowed.min is not None else 0
    return width == 0 or (amount.rounded_up() - base) % width != 0


def consumption(
    requests: Mapping[str, Quantity], capacities: Mapping[str, DeviceCapacity]
) -> dict[str, Quantity] | None:
    """What one share consumes of every capacity of a device.

    None when a request names a capacity that the device does not have, or a policy is violated.
    """
    if any(name not in capacities for name in requests):
        return None
    amounts = {name: consumed(requests.get(name), capacity) for name, capacity in capacities.items()}
    if any(violates(amounts[name], capacity.request_policy) for name, capacity in capacities.items()):
        return None
    return amounts
