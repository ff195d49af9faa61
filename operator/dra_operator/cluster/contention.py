"""Which drivers' devices other schedulers allocate too.

Two schedulers that decide at the same moment may give one device to two claims: neither has seen the other's write.
A scheduler that knows of the danger can wait until its own write has come back on the watch, and look again. Where no
other scheduler allocates, that wait would be for nothing. So this module keeps count of *foreign* claims: those that a
pod of another scheduler uses, allocated or still waiting.

An allocated claim names its drivers. A waiting one names classes, and a class names its driver in a selector such as
``device.driver == "gpu.example.com"``; a class that does not say so stands for every driver.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from dra_api.resource import AllocationResult, DeviceClass

from .index import Index

ANY = "*"
_DRIVER = re.compile(r"""\s*\(?\s*device\.driver\s*==\s*(?:"([^"\\]+)"|'([^'\\]+)')\s*\)?\s*""")


class Contention:
    """Foreign claims, and pods with extended resources, by driver or by class."""

    def __init__(self) -> None:
        self._drivers: Index[str] = Index()
        self._classes: Index[str] = Index()
        self._class_drivers: dict[str, str] = {}

    def file(self, key: str, drivers: Iterable[str] = (), classes: Iterable[str] = ()) -> None:
        """A foreign claim or pod holds devices of these drivers, or wants some of these classes; none: forget it."""
        self._drivers.file(key, drivers)
        self._classes.file(key, classes)

    def put_class(self, class_: DeviceClass) -> None:
        """A class was added or changed."""
        self._class_drivers[class_.metadata.name] = driver_of(class_)

    def remove_class(self, name: str) -> None:
        """A class is gone: nothing can be allocated of it."""
        self._class_drivers.pop(name, None)

    def driver_of_class(self, name: str) -> str:
        """The only driver whose devices can be in the class, or ``ANY``."""
        return self._class_drivers.get(name, ANY)

    def is_contested(self, driver: str) -> bool:
        """Whether another scheduler allocates devices of the driver, or may be about to."""
        if self._drivers.keys(driver):
            return True
        return any(self._class_drivers.get(name) in (driver, ANY) for name in self._classes.values())

    def __contains__(self, key: str) -> bool:
        return key in self._drivers or key in self._classes

    def __bool__(self) -> bool:
        return bool(len(self._drivers) or len(self._classes))


def drivers_in(allocation: AllocationResult) -> set[str]:
    """The drivers whose devices an allocation takes; admin access takes none."""
    return {result.driver for result in allocation.results if not result.admin_access}


def driver_of(class_: DeviceClass) -> str:
    """The only driver whose devices can be in the class, or ``ANY`` if the selectors do not plainly say."""
    for selector in class_.spec.selectors or ():
        expression = selector.cel.expression if selector.cel is not None else ""
        if "||" in expression or "?" in expression:
            continue
        for part in expression.split("&&"):
            if match := _DRIVER.fullmatch(part):
                return match[1] or match[2]
    return ANY
