"""Capacities of devices, and how much of a shared capacity may be requested. Spec: api.md section 4
(DeviceCapacity).

From 1.37 on a policy has no negative amounts and none that 64 bits cannot count. With DRAFractionalCapacityRange the
steps of a range with fractions are counted in thousandths (K37-FR-05 to -08).
"""

from __future__ import annotations

import itertools
from typing import Final

from dra_api.releases.gates import FeatureGates
from dra_api.releases.release import Release
from dra_api.resource import CapacityRequestPolicy, CapacityRequestPolicyRange, DeviceCapacity
from dra_api.validation.errors import Errors, duplicate, forbidden, invalid, required, too_many
from dra_api.values.quantity import NANO, Quantity

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
