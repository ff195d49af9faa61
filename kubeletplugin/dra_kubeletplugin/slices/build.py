"""Devices from plain Python values.

``device("gpu-0", attributes={"model": "A100", "index": 0}, capacity={"memory": "80Gi"})`` is what most drivers need;
other fields of the API's Device are further keyword arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dra_api.codec import convert
from dra_api.quantity import Quantity
from dra_api.resource import Counter, CounterSet, Device, DeviceAttribute, DeviceCapacity, DeviceCounterConsumption

AttributeValue = bool | int | str | Sequence[bool] | Sequence[int] | Sequence[str] | DeviceAttribute
CapacityValue = int | str | Quantity | DeviceCapacity


def device(
    name: str,
    *,
    attributes: Mapping[str, AttributeValue] | None = None,
    capacity: Mapping[str, CapacityValue] | None = None,
    consumes: Mapping[str, Mapping[str, int | str | Quantity]] | None = None,
    **others: Any,
) -> Device:
    """A Device; ``consumes`` maps counter set to counter to amount, ``others`` are further fields of Device.

    Attributes: bool, int or str, or a sequence of one of these; a version is ``DeviceAttribute(version="1.2.3")``.
    Raises TypeError for other values and QuantityError (a ValueError) for malformed quantities.
    """
    return Device(
        name=name,
        attributes={key: attribute(value) for key, value in (attributes or {}).items()} or None,
        capacity={key: _capacity(value) for key, value in (capacity or {}).items()} or None,
        consumes_counters=tuple(
            DeviceCounterConsumption(counter_set=counter_set, counters=_counters(amounts))
            for counter_set, amounts in (consumes or {}).items()
        )
        or None,
        **others,
    )


def counter_set(name: str, counters: Mapping[str, int | str | Quantity]) -> CounterSet:
    """A set of counters that devices of the same pool draw from."""
    return CounterSet(name=name, counters=_counters(counters))


def attribute(value: AttributeValue) -> DeviceAttribute:
    """The attribute that holds a Python value. Raises TypeError when there is none."""
    match value:
        case DeviceAttribute():
            return value
        case bool():
            return DeviceAttribute(bool_=value)
        case int():
            return DeviceAttribute(int_=value)
        case str():
            return DeviceAttribute(string=value)
    for kind, field in ((bool, "bools"), (int, "ints"), (str, "strings")):
        if isinstance(value, Sequence) and value and all(type(item) is kind for item in value):
            return convert(DeviceAttribute, {field: value})
    raise TypeError(f"{value!r} is not an attribute value: use bool, int, str, or a list of one of these")


def _capacity(value: CapacityValue) -> DeviceCapacity:
    return value if isinstance(value, DeviceCapacity) else DeviceCapacity(value=_quantity(value))


def _counters(amounts: Mapping[str, int | str | Quantity]) -> dict[str, Counter]:
    return {name: Counter(value=_quantity(amount)) for name, amount in amounts.items()}


def _quantity(value: int | str | Quantity) -> Quantity:
    return value if isinstance(value, Quantity) else Quantity(str(value))
