"""The precise evaluator: a small stack machine.

It decides what an expression means: errors are values that ``&&``, ``||`` and loops may absorb, names bound by
``cel.bind`` are computed when first needed, every step is charged as the reference charges it, and evaluation stops
when the limit is exceeded. It uses no Python recursion.

A program is a list of instructions. An instruction is a function that works on the machine and returns the index of the
next one, or None for the following one. A failed computation leaves an EvaluationError on the stack, in place of its value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from . import effort
from .errors import CostLimitExceeded, EvaluationError

MEMORY_LIMIT: Final = 20_000_000
"""Characters and list elements that one evaluation may produce in total."""


class Machine:
    """The state of one evaluation."""

    __slots__ = ("allocated", "bindings", "cost", "limit", "returns", "slots", "stack")

    def __init__(self, bindings: Mapping[str, Any], slots: int, limit: int) -> None:
        self.bindings = bindings
        self.slots: list[Any] = [None] * slots
        self.stack: list[Any] = []
        self.returns: list[int] = []
        self.cost = 0
        self.limit = limit
        self.allocated = 0

    def charge(self, units: int) -> None:
        self.cost += units
        if self.cost > self.limit:
            self._check()

    def refund(self, units: int) -> None:
        """Take back what was charged. The reference does so even where nothing was: its unsigned cost then wraps."""
        self.cost -= units
        self._check()

    def _check(self) -> None:
        self.cost %= 2**64
        if self.cost > self.limit:
            raise CostLimitExceeded(f"the expression costs more than {self.limit} units to evaluate")

    def produced(self, size: int) -> None:
        """Note the memory that a new value takes."""
        self.allocated += size
        if self.allocated > MEMORY_LIMIT:
            raise CostLimitExceeded("the expression needs too much memory")


Instruction = Callable[[Machine], "int | None"]


def run(code: Sequence[Instruction], machine: Machine) -> Any:
    """The value that the program leaves. Raises EvaluationError."""
    effort.begin()
    at = 0
    end = len(code)
    while at < end:
        target = code[at](machine)
        at = at + 1 if target is None else target
    value = machine.stack.pop()
    if isinstance(value, EvaluationError):
        raise value
    return value
