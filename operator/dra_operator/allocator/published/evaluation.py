"""The selectors of a request on the devices of a slice, evaluated device by device, with pauses.

On each device the selectors are asked in their order until one is not true, as in the reference: what a selector of a
class excludes costs nothing more. A pause may come between two devices, or amid one selector if it is costly. What was
found is kept at each device. Attempts that want the same share the work: each moves it on in its turn. When the last
one is dropped, what was begun on a device is dropped with it, and the next attempt begins at that device.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence

from dra_api.resource import Device

from .predicates import COSTLY_UNITS, DEFAULT_COST_UNITS, Compiled, Predicate, Verdicts, Weighed


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
        self._due: str | None = None
        """The costly selector that was asked about a device: there is a pause once the answer is noted."""
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
        predicates = [(expression, compiled.predicate(expression)) for expression in self._expressions]
        while self._next < len(devices):
            if self._within.true >> self._next & 1:
                yield from self._evaluate_on(self._next, driver, devices[self._next], predicates, compiled)
            self._next += 1
            if self._due is not None:
                due, self._due = self._due, None
                yield due
        compiled.in_work.left(self)

    def _evaluate_on(
        self, number: int, driver: str, device: Device, predicates: Sequence[tuple[str, Predicate]], compiled: Compiled
    ) -> Generator[str, None, None]:
        expression = ""
        try:
            for expression, predicate in predicates:
                payer = "" if expression in compiled.common else expression
                cost = predicate.cost if isinstance(predicate, Weighed) else DEFAULT_COST_UNITS
                if isinstance(predicate, Weighed) and cost > COSTLY_UNITS:
                    compiled.in_work.entered(self, self._tenant)
                    self._due = payer
                    answer = yield from _paused(predicate, driver, device, payer)
                else:
                    answer = predicate(driver, device)
                    if compiled.spend(cost):
                        yield payer
                if not answer:
                    return
        except Exception as error:
            self._raised |= 1 << number
            if compiled.is_costly(expression):
                self.failures[number] = expression, error
        else:
            self._true |= 1 << number


def _paused(predicate: Weighed, driver: str, device: Device, payer: str) -> Generator[str, None, bool]:
    """A costly predicate's answer."""
    parts = predicate.in_parts(driver, device)
    while True:
        try:
            next(parts)
        except StopIteration as end:
            answer: bool = end.value
            return answer
        yield payer
