"""Selectors as predicates on devices, and their cost limits.

A selector is compiled once for each expression and evaluated once for each device and version of a slice. The result is
two bit sets over the devices: where it is true, and where it raised. An attempt then only combines sets. Error texts
are made again when an error is reached, so that no error is kept for each device.

Selectors come from users, and one of 300 characters can take half a second for each device. A ``Weighed`` predicate
says what it may cost, and one that may cost much is evaluated in parts. Costly evaluations under way hold the values
that they have built so far, up to some megabytes. There are seats for a few: when they are taken, the tenant (the
namespace) with the most gives up its oldest one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable
from typing import Final, NamedTuple, Protocol

from dra_api.resource import Device, DeviceAttribute

from .basics import KeptVerdicts
from .errors import NotEvaluated, shortened

SEAT_COUNT: Final = 16


class Work(Protocol):
    """What is under way."""

    def put_down(self) -> None:
        """Forget what was begun."""


class InWork:
    """``seats``: how many evaluations may be under way."""

    def __init__(self, seats: int = SEAT_COUNT) -> None:
        self._seats = seats
        self._tenants: dict[Work, str] = {}

    def entered(self, work: Work, tenant: str) -> None:
        """It begins on another device."""
        self._tenants.pop(work, None)
        if len(self._tenants) >= self._seats:
            greediest, _ = Counter(self._tenants.values()).most_common(1)[0]
            oldest = next(one for one, its in self._tenants.items() if its == greediest)
            del self._tenants[oldest]
            oldest.put_down()
        self._tenants[work] = tenant

    def left(self, work: Work) -> None:
        """It is done."""
        self._tenants.pop(work, None)


Predicate = Callable[[str, Device], bool]
"""``(driver, device) -> bool``; raises when the expression fails on the device."""
Parts = Generator[None, None, bool]
"""The same, with pauses."""


MISSING_NAME: Final = "no-such-key"
"""The ``kind`` of an exception that a predicate raises because the device does not publish a name."""
COSTLY_UNITS: Final = 5_000
"""Units from which on a predicate is evaluated in parts; a unit takes about a microsecond."""
UNITS_BETWEEN_PAUSES: Final = 5_000
"""Units of cheap predicates between two pauses: some milliseconds."""
DEFAULT_COST_UNITS: Final = 10
MOST_DERIVED_UNITS: Final = 100_000
"""What all derived attributes of a pod may cost on the devices of a node, where others wait: a tenth of a second, in
which nothing else is done."""


class Drivers(Protocol):
    """What a predicate says about drivers, before it sees a device."""

    @property
    def names_driver(self) -> bool:
        """It has a condition that depends on the driver alone."""

    def excludes(self, driver: str) -> bool:
        """It is false on all devices of the driver, whatever they publish."""


class Weighed:
    """A predicate that knows how many units it may cost on a device, and can be evaluated in parts.

    ``drivers``: which drivers it can mean; None if that is unknown.
    """

    def __init__(
        self, test: Predicate, cost: int, in_parts: Callable[[str, Device], Parts], drivers: Drivers | None = None
    ) -> None:
        self.test, self.cost, self.in_parts, self.drivers = test, cost, in_parts, drivers

    def __call__(self, driver: str, device: Device) -> bool:
        return self.test(driver, device)


class Language(Protocol):
    """The language of selectors.

    One that can compute attributes as well has ``attribute(expression)``: how, and the most units that it may cost on a
    device; raises when the expression cannot be compiled.
    """

    def compile(self, expression: str) -> Predicate:
        """Raises when the expression cannot be compiled."""


Derive = Callable[[str, Device], DeviceAttribute]
"""``(driver, device) -> attribute``; raises when the expression fails on the device."""


class Verdicts(NamedTuple):
    """Two disjoint bit sets over devices."""

    true: int
    raised: int


class CompileFailure(Exception):
    """The expression does not compile: it fails on every device it is evaluated on."""


class Compiled:
    """Expressions as predicates, those that do not compile included. The language remembers what it has compiled.

    ``common`` are the selectors of classes: a slice evaluates them all at once, so that a language prepares each device
    only once. ``kept`` decides which verdicts are remembered.
    """

    def __init__(self, language: Language, *, minds_other_drivers: bool) -> None:
        self._language = language
        self._minds_other_drivers = minds_other_drivers
        """A selector that fails on a device of a driver that is not meant is an error, as it is in the reference."""
        self.common: dict[str, None] = {}
        self.kept = KeptVerdicts()
        self.in_work = InWork()
        self.patient = True
        """Whether a caller may wait for costly selectors in one go; one with an event loop may not."""
        self._units = 0

    def predicate(self, expression: str) -> Predicate:
        """The compiled expression; one that does not compile raises CompileFailure when called."""
        try:
            return self._language.compile(expression)
        except Exception as error:
            failure = CompileFailure(str(error))

            def fail(driver: str, device: Device) -> bool:
                raise failure

            return fail

    def compiles(self, expression: str) -> bool:
        """Return whether the expression compiles."""
        try:
            self._language.compile(expression)
        except Exception:
            return False
        return True

    def attribute(self, expression: str) -> Derive:
        """An expression whose value is an attribute; one that does not compile raises CompileFailure when called.

        Raises NotEvaluated for one that must not be evaluated in one go.
        """
        derive, cost = self._attribute(expression)
        if cost > COSTLY_UNITS and not self.patient:
            raise NotEvaluated(
                f"gave up: a derived attribute may cost {cost} units on each device, more than {COSTLY_UNITS}: make it "
                f"cheaper: {shortened(expression)}"
            )
        return derive

    def check_derived(self, wanted: Iterable[tuple[int, Iterable[str]]]) -> None:
        """Raises NotEvaluated for expressions that must not be evaluated on so many devices each in one go."""
        if self.patient:
            return
        costs = ((devices, self._attribute(it)[1]) for devices, expressions in wanted for it in expressions)
        units = sum(devices * cost for devices, cost in costs if cost <= COSTLY_UNITS)  # others are refused alone
        if units > MOST_DERIVED_UNITS:
            raise NotEvaluated(
                f"gave up: derived attributes may cost {units} units on the devices of the node, more than "
                f"{MOST_DERIVED_UNITS}: make them cheaper, or leave devices out by selectors"
            )

    def _attribute(self, expression: str) -> tuple[Derive, int]:
        """How it is computed, and the most that it may cost on a device."""
        try:
            compute: Callable[[str], tuple[Derive, int]] | None = getattr(self._language, "attribute", None)
            if compute is None:
                raise CompileFailure("the language knows no derived attributes")
            return compute(expression)
        except Exception as error:
            failure = CompileFailure(str(error))

            def fail(driver: str, device: Device) -> DeviceAttribute:
                raise failure

            return fail, 0

    def cost(self, expression: str) -> int:
        """What the expression may cost on a device, in units of CEL."""
        predicate = self.predicate(expression)
        return predicate.cost if isinstance(predicate, Weighed) else DEFAULT_COST_UNITS

    def is_costly(self, expression: str) -> bool:
        """Whether it is evaluated in parts."""
        return self.cost(expression) > COSTLY_UNITS

    def drivers(self, expressions: Iterable[str]) -> list[Drivers]:
        """What those of the expressions say about drivers that name some."""
        predicates = [self.predicate(expression) for expression in expressions]
        found = [one.drivers for one in predicates if isinstance(one, Weighed) and one.drivers is not None]
        return [drivers for drivers in found if drivers.names_driver]

    def rules_out(self, expressions: Iterable[str], driver: str) -> bool:
        """Return whether one of the expressions is about the driver, and false on all of its devices.

        What the others say of such a device does not matter, nor whether they fail on it.
        """
        return not self._minds_other_drivers and any(one.excludes(driver) for one in self.drivers(expressions))

    def check(self, expressions: Iterable[str]) -> None:
        """Raises NotEvaluated for selectors that must not be evaluated in one go."""
        if self.patient:
            return
        for expression in expressions:
            if self.is_costly(expression):
                raise NotEvaluated(
                    f"gave up: a selector may cost {self.cost(expression)} units on each device, and its results for "
                    f"some devices were dropped to save memory: make it cheaper, or ask for devices with fewer "
                    f"selectors: {shortened(expression)}"
                )

    def spend(self, units: int) -> bool:
        """Counts units of cheap predicates; true when it is time for a pause."""
        self._units += units
        if self._units < UNITS_BETWEEN_PAUSES:
            return False
        self._units = 0
        return True
