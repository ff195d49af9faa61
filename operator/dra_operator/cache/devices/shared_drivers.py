"""Which drivers' devices other schedulers allocate too.

Two schedulers that decide at the same moment may give one device to two claims: neither has seen the other's write.
A scheduler that knows of the danger can wait until its own write has come back on the watch, and look again. Where no
other scheduler allocates, that wait would be for nothing. So this module keeps count of the claims that a
pod of another scheduler uses, allocated or still waiting, and calls their drivers *shared*.

An allocated claim names its drivers. A waiting one names classes, and a class names its driver in a selector such as
``device.driver == "gpu.example.com"``; a class that does not say so stands for every driver.

A claim or pod is *queued* as long as its scheduler has not said whether it can be placed: it may be deciding right
now. What starts such decisions is counted as a *cluster event*: something was queued, or devices came free while a
claim of theirs waits.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Set
from typing import NamedTuple

from dra_api.resource import AllocationResult, DeviceClass

from dra_operator.cache.index import Index
from dra_operator.scheduling import ANY_DRIVER

_DRIVER = re.compile(r"""\s*\(?\s*device\.driver\s*==\s*(?:"([^"\\]+)"|'([^'\\]+)')\s*\)?\s*""")


class OthersDecide(NamedTuple):
    """Whether claims of theirs have or want devices, want some, are queued, and how many cluster events there were."""

    present: bool
    waiting: bool
    queued: bool
    cluster_events: int


class SharedDrivers:
    """Claims of other schedulers' pods, and pods with extended resources, by driver or by class."""

    def __init__(self) -> None:
        self._drivers: Index[str] = Index()
        self._classes: Index[str] = Index()
        self._queued: Index[str] = Index()
        self._class_drivers: dict[str, str] = {}
        self._gone_classes: set[str] = set()
        """Those of them that do not exist any more."""
        self._cluster_events: Counter[str] = Counter()

    def file(
        self, key: str, drivers: Iterable[str] = (), classes: Iterable[str] = (), *, is_queued: bool = False
    ) -> None:
        """A claim or pod of theirs holds devices of these drivers, or wants some of these classes; none: forget it."""
        wanted, before = frozenset(classes), self._classes.values_of(key)
        self._drivers.file(key, drivers)
        self._classes.file(key, wanted)
        self._forget_gone(before - wanted)
        if is_queued and key not in self._queued:
            self._cluster_events.update(map(self.driver_of_class, wanted))
        self._queued.file(key, wanted if is_queued else ())

    def freed(self, drivers: Iterable[str]) -> None:
        """Devices of the drivers came free, or were published."""
        self._cluster_events.update(drivers)

    def put_class(self, class_: DeviceClass) -> None:
        """A class was added or changed."""
        self._gone_classes.discard(class_.metadata.name)
        self._class_drivers[class_.metadata.name] = driver_of(class_)

    def remove_class(self, name: str) -> None:
        """A class is gone. It counts while they want it: what they decided before may be on its way."""
        self._gone_classes.add(name)
        self._forget_gone((name,))

    def _forget_gone(self, classes: Iterable[str]) -> None:
        for name in self._gone_classes.intersection(classes):
            if not self._classes.has(name):
                self._gone_classes.discard(name)
                self._class_drivers.pop(name, None)

    def driver_of_class(self, name: str) -> str:
        """The only driver whose devices can be in the class, or ``ANY_DRIVER``."""
        return self._class_drivers.get(name, ANY_DRIVER)

    def is_shared(self, driver: str) -> bool:
        """Whether another scheduler allocates devices of the driver, or may be about to."""
        return bool(self._drivers.keys(driver)) or self._is_among(self._classes, {driver})

    def others_decide(self, drivers: Set[str]) -> OthersDecide:
        """Whether other schedulers may be giving away devices of the drivers."""
        is_any = ANY_DRIVER in drivers
        is_wanted = self._is_among(self._classes, drivers)
        is_held = any(map(self._drivers.keys, self._drivers.values() if is_any else drivers))
        counts = self._cluster_events
        events = counts.total() if is_any else sum(counts[driver] for driver in {*drivers, ANY_DRIVER})
        return OthersDecide(is_wanted or is_held, is_wanted, self._is_among(self._queued, drivers), events)

    def _is_among(self, wanted: Index[str], drivers: Set[str]) -> bool:
        """Goes through the classes that there are: pods may name others by the thousand."""
        known = (driver for name, driver in self._class_drivers.items() if wanted.has(name))
        return any(ANY_DRIVER in (driver, *drivers) or driver in drivers for driver in known)

    def namespaces(self) -> set[str]:
        """Return the namespaces whose pods or claims are filed."""
        return {key.removeprefix("pod ").partition("/")[0] for key in (*self._drivers, *self._classes)}

    def __contains__(self, key: str) -> bool:
        return key in self._drivers or key in self._classes

    def __bool__(self) -> bool:
        return bool(len(self._drivers) or len(self._classes))


def drivers_in(allocation: AllocationResult) -> set[str]:
    """The drivers whose devices an allocation takes; admin access takes none."""
    return {result.driver for result in allocation.results if not result.admin_access}


def driver_of(class_: DeviceClass) -> str:
    """The only driver whose devices can be in the class, or ``ANY_DRIVER`` if the selectors do not plainly say."""
    for selector in class_.spec.selectors or ():
        expression = selector.cel.expression if selector.cel is not None else ""
        if "||" in expression or "?" in expression:
            continue
        for part in expression.split("&&"):
            if match := _DRIVER.fullmatch(part):
                return match[1] or match[2]
    return ANY_DRIVER
