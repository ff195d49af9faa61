"""CEL selectors as sets (design.md section 3).

A selector is compiled once per expression and evaluated once per device and slice version; the result is
two bit sets over the devices: where it is true, and where it raised. An attempt then only combines sets.
Error texts are made again when an error is reached, so that no error is kept per device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from dra_api.resource import Device

from dra_operator.allocator.basics.memo import Memo

Predicate = Callable[[str, Device], bool]
"""``(driver, device) -> bool``; raises when the expression fails on the device."""


MISSING_NAME: Final = "no-such-key"
"""The ``kind`` of an exception that a predicate raises because the device does not publish a name."""


class Language(Protocol):
    """The language of selectors."""

    def compile(self, expression: str) -> Predicate:
        """Raises when the expression cannot be compiled."""


class Verdicts(NamedTuple):
    """Two disjoint bit sets over devices."""

    true: int
    raised: int


class CompileFailure(Exception):
    """The expression does not compile: it fails on every device it is evaluated on."""


class Compiled:
    """Remembers compiled expressions, also those that do not compile.

    ``common`` are the selectors of classes: a slice evaluates them all at once, so that a language prepares each device
    only once.
    """

    _LIMIT = 4096

    def __init__(self, language: Language) -> None:
        self._language = language
        self._known: Memo[str, Predicate] = Memo(self._LIMIT)
        self.common: dict[str, None] = {}

    def predicate(self, expression: str) -> Predicate:
        """The compiled expression; one that does not compile raises CompileFailure when called."""
        known = self._known.get(expression)
        return known if known is not None else self._known.put(expression, self._compile(expression))

    def _compile(self, expression: str) -> Predicate:
        try:
            return self._language.compile(expression)
        except Exception as error:
            failure = CompileFailure(str(error))

            def fail(driver: str, device: Device) -> bool:
                raise failure

            return fail


def evaluate(predicates: Sequence[Predicate], driver: str, devices: Sequence[Device]) -> list[Verdicts]:
    """The verdicts of each predicate over some devices, bit i standing for the i-th."""
    true = [0] * len(predicates)
    raised = [0] * len(predicates)
    for position, device in enumerate(devices):
        for number, predicate in enumerate(predicates):
            try:
                if predicate(driver, device):
                    true[number] |= 1 << position
            except Exception:
                raised[number] |= 1 << position
    return [Verdicts(*pair) for pair in zip(true, raised, strict=True)]
