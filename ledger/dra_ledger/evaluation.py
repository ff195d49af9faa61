"""The selectors of a request on the devices of a slice, evaluated device by device, with pauses.

On each device the selectors are asked in their order until one is not true, as in the reference: what a selector of a
class excludes costs nothing more. A pause may come between two devices, or amid one selector if it is costly. What was
found is kept at each device. Attempts that want the same share the work: each moves it on in its turn. When the last
one is dropped, what was begun on a device is dropped with it, and the next attempt begins at that device.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import NamedTuple

from dra_api.resource import Device

from .basics import each
from .predicates import (
    COSTLY_UNITS,
    DEFAULT_COST_UNITS,
    UNITS_BETWEEN_PAUSES,
    Compiled,
    Parts,
    Predicate,
    Verdicts,
    Weighed,
)


def at_once(
    within: Verdicts, expressions: Sequence[str], driver: str, devices: Sequence[Device], compiled: Compiled
) -> tuple[Verdicts, str | None] | None:
    """The answers of selectors that take less than a pause on all these devices together; None if they may take longer.

    ``within`` as in ``Evaluation``. Also the selector after which there is a pause.
    """
    asked = [_Asked.of(expression, compiled) for expression in expressions]
    if len(devices) * sum([one.cost for one in asked]) > UNITS_BETWEEN_PAUSES:
        return None
    true, raised, due = within.true, within.raised, None
    for one in asked:
        test, selected = one.test, 0
        if compiled.spend(one.cost * true.bit_count()):
            due = one.payer
        for number in each(true):
            try:
                if test(driver, devices[number]):
                    selected |= 1 << number
            except Exception:
                raised |= 1 << number
        true = selected
    return Verdicts(true, raised), due


class Evaluation:
    """``within``: the devices that are asked at all, and those that raised before. ``tenant``: whose selectors."""

    def __init__(self, within: Verdicts, expressions: Sequence[str], tenant: str) -> None:
        self._within = within
        self._expressions = expressions
        self._tenant = tenant
        self._next = 0
        self._true = 0
        self._raised = within.raised
        self._work: Generator[str, None, None] | None = None
        self._users = 0
        self.failures: dict[int, tuple[str, Exception]] = {}
        """By device: the costly selector that failed on it, and how."""

    @property
    def verdicts(self) -> Verdicts:
        """What was found so far."""
        return Verdicts(self._true, self._raised)

    def go_on(self, driver: str, devices: Sequence[Device], compiled: Compiled) -> Iterator[str]:
        """Ask the devices that are left. Yields the selector that takes the time; empty if that is one of a class."""
        self._users += 1
        try:
            while self._next < len(devices):
                self._work = self._work or self._evaluate_all(driver, devices, compiled)
                try:
                    expression = next(self._work)
                except StopIteration:
                    return
                yield expression
        finally:
            self._users -= 1
            if not self._users:
                self.put_down()

    def put_down(self) -> None:
        """Forget what was begun on a device: it takes memory."""
        if self._work is not None:
            self._work.close()
            self._work = None

    def _evaluate_all(self, driver: str, devices: Sequence[Device], compiled: Compiled) -> Generator[str, None, None]:
        asked = [_Asked.of(expression, compiled) for expression in self._expressions]
        is_cheap = all(one.in_parts is None for one in asked)
        while self._next < len(devices):
            number, due = self._next, None
            if self._within.true >> number & 1:
                if is_cheap:
                    due = self._evaluate_on(number, driver, devices[number], asked, compiled)
                else:
                    due = yield from self._evaluate_in_parts(number, driver, devices[number], asked, compiled)
            self._next += 1
            if due is not None:
                yield due
        compiled.in_work.left(self)

    def _evaluate_on(
        self, number: int, driver: str, device: Device, asked: Sequence[_Asked], compiled: Compiled
    ) -> str | None:
        """Note the answer of cheap selectors. Returns the one after which there is a pause."""
        due = None
        try:
            for one in asked:
                answer = one.test(driver, device)
                if compiled.spend(one.cost):
                    due = one.payer
                if not answer:
                    return due
        except Exception:
            self._raised |= 1 << number
        else:
            self._true |= 1 << number
        return due

    def _evaluate_in_parts(
        self, number: int, driver: str, device: Device, asked: Sequence[_Asked], compiled: Compiled
    ) -> Generator[str, None, str | None]:
        """The same for selectors of which some are costly."""
        due = None
        for one in asked:
            try:
                if one.in_parts is not None:
                    compiled.in_work.entered(self, self._tenant)
                    due = one.payer
                    answer = yield from _paused(one.in_parts(driver, device), one.payer)
                else:
                    answer = one.test(driver, device)
                    if compiled.spend(one.cost):
                        yield one.payer
            except Exception as error:
                self._raised |= 1 << number
                if one.in_parts is not None:
                    self.failures[number] = one.expression, error
                return due
            if not answer:
                return due
        self._true |= 1 << number
        return due


class _Asked(NamedTuple):
    """A selector that is asked about device after device. ``payer``: whose time that takes."""

    expression: str
    test: Predicate
    in_parts: Callable[[str, Device], Parts] | None
    """Instead of ``test`` if it is costly."""
    payer: str
    cost: int

    @classmethod
    def of(cls, expression: str, compiled: Compiled) -> _Asked:
        predicate, payer = compiled.predicate(expression), "" if expression in compiled.common else expression
        if not isinstance(predicate, Weighed):
            return cls(expression, predicate, None, payer, DEFAULT_COST_UNITS)
        in_parts = predicate.in_parts if predicate.cost > COSTLY_UNITS else None
        return cls(expression, predicate.test, in_parts, payer, predicate.cost)


def _paused(parts: Parts, payer: str) -> Generator[str, None, bool]:
    """A costly predicate's answer."""
    while True:
        try:
            next(parts)
        except StopIteration as end:
            answer: bool = end.value
            return answer
        yield payer
