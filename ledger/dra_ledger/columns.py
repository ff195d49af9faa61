"""Attributes as columns: which devices have an attribute, and which have which value (allocator.md section 8).

Values carry their type, so that ``1`` and ``true`` differ; versions compare as strings. With list-valued attributes a
scalar counts as a list of one. A ``DerivedColumn`` has what a request computes (kubernetes-1.37.md section 10).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dra_api.resource import Device, DeviceAttribute

from .basics import each

Values = frozenset[tuple[str, object]]
UNKNOWN: Values = frozenset({("unknown", None)})


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
    """The typed values; empty if this attribute excludes the device from a constraint."""
    scalar = _scalar(attribute)
    if scalar is not None:
        return frozenset((scalar,))
    return _listed(attribute) if lists else UNKNOWN


class Column:
    """One attribute over the devices of a node; each is a ``(driver, device)``."""

    def __init__(self, attribute: str, devices: Iterable[tuple[str, Device]], *, lists: bool) -> None:
        self.attribute = attribute
        self.values: dict[int, Values] = {}
        self.having: dict[tuple[str, object], int] = {}
        self.present = 0
        for number, (driver, device) in enumerate(devices):
            found = lookup(device, driver, attribute)
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


class DerivedColumn(Column):
    """Computed once for those devices only for which it is asked (K37-DA-07), and kept for a search (K37-DA-11).

    ``derive`` computes the attribute of a device by its number.
    """

    def __init__(self, attribute: str, derive: Callable[[int], DeviceAttribute], *, lists: bool) -> None:
        super().__init__(attribute, (), lists=lists)
        self.failures: dict[int, Exception] = {}
        """Why it could not be computed, by device."""
        self.failed = 0
        self._derive = derive
        self._lists = lists
        self._known = 0

    def cover(self, devices: int) -> None:
        """Computes the attribute of these devices, unless it is known."""
        for number in each(devices & ~self._known):
            try:
                values = values_of(self._derive(number), lists=self._lists)
            except Exception as error:
                error.__cause__ = error.__context__ = error.__traceback__ = None  # they hold the evaluation's frames
                self.failures[number] = error
                self.failed |= 1 << number
                continue
            if values:
                self._put(number, values)
        self._known |= devices
