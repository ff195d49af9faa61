"""Consumable capacity: what a request consumes of a device, and whether its policy allows that.

Rules of allocator.md section 9. A step rounds in whole numbers, or in thousandths where DRAFractionalCapacityRange is
on and the range has no finer amounts (K37-FR-01 to -04); without a step the requested quantity is used unchanged. A
step of zero, which releases before 1.37 admit, divides by zero in the reference: here nothing can be consumed with it.

From 1.37 on an amount is fatal if it is negative, or if no quantity can say it (K37-ALLOC-01, K37-BUG-05). Up to 1.36 a
negative request gives capacity to others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dra_api.releases import Release
from dra_api.resource import CapacityRequestPolicy, CapacityRequestPolicyRange, DeviceCapacity
from dra_api.values import NANO, Quantity

from .features import Features

Requests = tuple[tuple[str, Quantity], ...]
LARGEST_QUANTITY: Final = 2**63 - 1
MILLI: Final = NANO // 1000
_PLAIN_QUANTITY: Final = 2**62 // 1000
"""Up to this, rounding cannot overflow in a policy that the API server admits."""


def consumed(requested: Quantity | None, capacity: DeviceCapacity, features: Features | None = None) -> Quantity:
    """What one share consumes of one capacity, rounded as the policy says.

    A rounded amount is written with Ki, Mi, ... up to 1.36, and as the step is from 1.37 on (K37-FR-09).
    """
    policy = capacity.request_policy
    if requested is None:
        return policy.default if policy is not None and policy.default is not None else capacity.value
    if policy is None:
        return requested
    if policy.valid_range is not None and policy.valid_range.min is not None:
        return _rounded_to_range(requested, policy.valid_range.min, policy.valid_range, features or Features())
    if policy.valid_values is not None:
        return next((value for value in policy.valid_values if value >= requested), requested)
    return requested


def _rounded_to_range(
    requested: Quantity, least: Quantity, allowed: CapacityRequestPolicyRange, features: Features
) -> Quantity:
    if requested < least:
        return least
    unit = _unit(allowed, features)
    step = allowed.step
    if step is None or not step.rounded_up(unit):
        return requested
    base, width = least.rounded_up(unit), step.rounded_up(unit)
    steps = -(-(requested.rounded_up(unit) - base) // width)
    rounded = (base + steps * width) * unit
    if features.release < Release.V1_37:
        return Quantity.from_nanos(rounded, binary=True)
    return Quantity.of_format(rounded, step.format)


def _unit(allowed: CapacityRequestPolicyRange, features: Features) -> int:
    """Billionths in which a range is counted: thousandths of one if its bounds and step are whole ones, else ones."""
    bounds = [bound for bound in (allowed.min, allowed.max, allowed.step) if bound is not None]
    if not features.fractional_capacity_ranges or allowed.step is None or allowed.step.nanos < MILLI:
        return NANO
    return (
        MILLI if all(not bound.nanos % MILLI and bound.nanos // MILLI <= LARGEST_QUANTITY for bound in bounds) else NANO
    )


def violates(amount: Quantity, policy: CapacityRequestPolicy | None, features: Features | None = None) -> bool:
    """Whether the policy forbids this amount; the default is always allowed."""
    if policy is None or amount == policy.default:
        return False
    if policy.valid_range is not None:
        return _outside(amount, policy.valid_range, features or Features())
    return bool(policy.valid_values) and amount not in (policy.valid_values or ())


def _outside(amount: Quantity, allowed: CapacityRequestPolicyRange, features: Features) -> bool:
    if allowed.max is not None and amount > allowed.max:
        return True
    if allowed.step is None:
        return False
    unit = _unit(allowed, features)
    width = allowed.step.rounded_up(unit)
    base = allowed.min.rounded_up(unit) if allowed.min is not None else 0
    return width == 0 or (amount.rounded_up(unit) - base) % width != 0


def consumption(
    requests: Mapping[str, Quantity], capacities: Mapping[str, DeviceCapacity], features: Features | None = None
) -> dict[str, Quantity] | None:
    """What one share consumes of every capacity of a device.

    None when a request names a capacity that the device does not have, a policy is violated, or an amount is fatal.
    """
    features = features or Features()
    if any(name not in capacities for name in requests) or fault(requests, capacities, features):
        return None
    amounts = {name: consumed(requests.get(name), capacity, features) for name, capacity in capacities.items()}
    if any(violates(amounts[name], capacity.request_policy, features) for name, capacity in capacities.items()):
        return None
    return amounts


def fault(requests: Mapping[str, Quantity], capacities: Mapping[str, DeviceCapacity], features: Features) -> str:
    """Why what a share consumes of a device ends the attempt, with a remedy; empty if it does not."""
    if features.release < Release.V1_37 or any(name not in capacities for name in requests):
        return ""
    for name, capacity in capacities.items():
        if name not in requests and capacity.request_policy is None and capacity.value.nanos >= 0:
            continue  # all of it is consumed
        if found := _fault(name, requests.get(name), capacity, features):
            return found
    return ""


def _fault(name: str, requested: Quantity | None, capacity: DeviceCapacity, features: Features) -> str:
    amount = consumed(requested, capacity, features)
    if amount.nanos < 0:
        if requested is None:
            return f"it would consume {amount} of {name}, which is negative: have its driver publish no such amount"
        return f"{amount} of {name} is negative: ask for zero or more"
    policy = capacity.request_policy
    allowed = policy.valid_range if policy is not None else None
    if requested is None or allowed is None or allowed.min is None or allowed.step is None or requested < allowed.min:
        return ""
    unit = _unit(allowed, features)
    if unit == MILLI and requested.nanos % MILLI:
        return f"{requested} of {name} is not a multiple of 1m, the unit of its device: ask for such an amount"
    if max(requested.rounded_up(unit), amount.rounded_up(unit)) > LARGEST_QUANTITY:
        return f"{requested} of {name} is more than can be counted when it is rounded up: ask for less"
    return ""


def is_extreme(requests: Requests) -> bool:
    """Whether some device may be unable to count what is requested. If not, a fault is the device's alone."""
    return any(q.nanos < 0 or q.nanos % MILLI or q.nanos > _PLAIN_QUANTITY * NANO for _, q in requests)
