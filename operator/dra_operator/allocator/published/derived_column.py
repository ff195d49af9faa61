"""An attribute that a request computes for each device, as a column (kubernetes-1.37.md section 10)."""

from __future__ import annotations

from collections.abc import Callable

from dra_api.resource import DeviceAttribute

from dra_operator.allocator.basics.bits import each

from .columns import Column, values_of


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
