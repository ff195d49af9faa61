"""Devices from plain Python values.

``device("gpu-0", attributes={"model": "A100", "index": 0}, capacity={"memory": "80Gi"})`` is what most drivers need;
other fields of the API's Device are further keyword arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from dra_api.codec import convert
from dra_api.resource import Counter, CounterSet, Device, DeviceAttribute, DeviceCapacity, DeviceCounterConsumption
from dra_api.validation.formats import ATTRIBUTE_VALUE_LIMIT
from dra_api.values.quantity import Quantity

_INT64 = range(-(2**63), 2**63)
Given = TypeVar("Given")
Made = TypeVar("Made")

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
    Raises TypeError for values of other types and ValueError for values that no API server takes: malformed quantities,
    numbers of more than 64 bits, texts of more than 64 bytes.
    """
    return Device(
        name=name,
        attributes=_each(attribute, attributes, f"device {name!r}, attribute") or None,
        capacity=_each(_capacity, capacity, f"device {name!r}, capacity") or None,
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
    """The attribute that holds a Python value. Raises TypeError when there is none, ValueError when it is too large."""
    if not isinstance(value, DeviceAttribute):
        for item in value if isinstance(value, Sequence) and not isinstance(value, str) else (value,):
            _check_size(item)
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


def _check_size(value: object) -> None:
    if type(value) is int and value not in _INT64:
        raise ValueError(f"{value} needs more than 64 bits: make it a string, or use a larger unit")
    if isinstance(value, str) and len(value.encode(errors="surrogatepass")) > ATTRIBUTE_VALUE_LIMIT:
        raise ValueError(f"{value!r} has more than {ATTRIBUTE_VALUE_LIMIT} bytes: shorten it")


def _each(make: Callable[[Given], Made], values: Mapping[str, Given] | None, what: str) -> dict[str, Made]:
    made = {}
    for key, value in (values or {}).items():
        try:
            made[key] = make(value)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{what} {key!r}: {error}") from error
    return made


def _capacity(value: CapacityValue) -> DeviceCapacity:
    return value if isinstance(value, DeviceCapacity) else DeviceCapacity(value=_quantity(value))


def _counters(amounts: Mapping[str, int | str | Quantity]) -> dict[str, Counter]:
    return {name: Counter(value=_quantity(amount)) for name, amount in amounts.items()}


def _quantity(value: int | str | Quantity) -> Quantity:
    return value if isinstance(value, Quantity) else Quantity(str(value))
