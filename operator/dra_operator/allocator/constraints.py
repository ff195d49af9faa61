"""Constraints of a claim over attributes (allocator.md section 8, AL-13).

A ``Column`` turns one attribute into sets: which devices have it, and which have which value. A constraint
is then a ledger whose ``admit`` is an intersection, not a trial. Values carry their type, so that ``1`` and
``true`` differ; versions compare as strings. With list-valued attributes a scalar counts as a list of one.

An attribute whose value is of no known type can stand alone, but no second device can join it.
"""

from __future__ import annotations

from collections.abc import Hashable

from dra_api.resource import Device, DeviceAttribute

from .ledgers import Taker
from .node_view import NodeView, each

Values = frozenset[tuple[str, object]]
_UNKNOWN: Values = frozenset({("unknown", None)})


def lookup(device: Device, driver: str, attribute: str) -> DeviceAttribute | None:
    """The attribute under its literal key; else, when the domain is the driver, under its bare id."""
    attributes = device.attributes
    if not attributes:
        return None
    found = attributes.get(attribute)
    if found is None:
        domain, slash, bare = attribute.partition("/")
        if slash and domain == driver:
            found = attributes.get(bare)
    return found


def _scalar(attribute: DeviceAttribute) -> tuple[str, object] | None:
    if attribute.string is not None:
        return ("string", attribute.string)
    if attribute.int_ is not None:
        return ("int", attribute.int_)
    if attribute.bool_ is not None:
        return ("bool", attribute.bool_)
    if attribute.version is not None:
        return ("version", attribute.version)
    return None


def _listed(attribute: DeviceAttribute) -> Values:
    for type_, values in (
        ("string", attribute.strings),
        ("int", attribute.ints),
        ("bool", attribute.bools),
        ("version", attribute.versions),
    ):
        if values is not None:
            return frozenset((type_, value) for value in values)
    return frozenset()


def values_of(attribute: DeviceAttribute, *, lists: bool) -> Values:
    """The typed values; empty when the device cannot take part in a constraint because of it."""
    scalar = _scalar(attribute)
    if scalar is not None:
        return frozenset((scalar,))
    return _listed(attribute) if lists else _UNKNOWN


class Column:
    """One attribute over the devices of a node."""

    def __init__(self, view: NodeView, attribute: str, *, lists: bool) -> None:
        self.attribute = attribute
        self.values: dict[int, Values] = {}
        self.having: dict[tuple[str, object], int] = {}
        self.present = 0
        for number, device in enumerate(view.devices):
            found = lookup(device, view.driver(number), attribute)
            values = values_of(found, lists=lists) if found is not None else None
            if values:
                self._put(number, values)

    def _put(self, number: int, values: Values) -> None:
        bit = 1 << number
        self.values[number] = values
        self.present |= bit
        for value in values:
            self.having[value] = self.having.get(value, 0) | bit

    def with_any(self, values: Values) -> int:
        """The devices that have at least one of the values."""
        devices = 0
        for value in values:
            devices |= self.having.get(value, 0)
        return devices


class Match:
    """``matchAttribute``: all devices have a value in common."""

    def __init__(self, column: Column) -> None:
        self.column = column
        self._common: list[Values] = []

    def admit(self, devices: int, taker: Taker | None = None) -> int:
        if not self._common:
            return devices & self.column.present
        common = self._common[-1]
        return 0 if common is _UNKNOWN else devices & self.column.with_any(common)

    def take(self, device: int, taker: Taker | None = None) -> None:
        values = self.column.values[device]
        self._common.append(self._common[-1] & values if self._common else values)

    def give_back(self, device: int, taker: Taker | None = None) -> None:
        self._common.pop()

    def state(self) -> Hashable:
        return self._common[-1] if self._common else None


class Distinct:
    """``distinctAttribute``: no two devices have a value in common."""

    def __init__(self, column: Column) -> None:
        self.column = column
        self._used: list[Values] = []

    def admit(self, devices: int, taker: Taker | None = None) -> int:
        devices &= self.column.present
        for values in self._used:
            if values is _UNKNOWN:
                return 0
            devices &= ~self.column.with_any(values)
        return devices

    def take(self, device: int, taker: Taker | None = None) -> None:
        self._used.append(self.column.values[device])

    def give_back(self, device: int, taker: Taker | None = None) -> None:
        self._used.pop()

    def state(self) -> Hashable:
        return frozenset(value for values in self._used for value in values)


Constraint = Match | Distinct

__all__ = ["Column", "Constraint", "Distinct", "Match", "each", "lookup", "values_of"]
