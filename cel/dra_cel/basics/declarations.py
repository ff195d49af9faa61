"""Declarations of the functions of libraries, and the cost of a call.

A function is a name and its overloads. An overload is everything about one signature in one place: types,
implementation, charge. Methods (``text.size()``) have their receiver as first parameter.

A charge is a rule that both the estimate and the run-time count use. Costs are whole units (one unit is about one
simple step). An estimate is a range, because sizes are only known within limits. It saturates at 2**64-1: unbounded.

``guarded`` functions check at run time that the values have the declared types; the others (operators, ``size``, ...)
have one implementation for all overloads, and it distinguishes the values itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, NoReturn, Protocol

from dra_cel.basics.errors import EvaluationError
from dra_cel.basics.types import Type
from dra_cel.basics.values import UINT_MAX, Optional, accepts, unwrap_key

SELECT_COST: Final = 1
LIST_COST: Final = 10
MAP_COST: Final = 30
STRUCT_COST: Final = 40
CHARACTER_COST: Final = 0.1
PATTERN_CHARACTER_COST: Final = 0.25


def scale(size: int, factor: float) -> int:
    """Size times factor, rounded up, at most 2**64-1."""
    product = float(size) * factor
    return UINT_MAX if product >= 2.0**64 else math.ceil(product)


class Range(NamedTuple):
    """An inclusive range of sizes or costs."""

    min: int
    max: int

    def plus(self, other: Range) -> Range:
        return Range(min(self.min + other.min, UINT_MAX), min(self.max + other.max, UINT_MAX))

    def times(self, other: Range) -> Range:
        return Range(min(self.min * other.min, UINT_MAX), min(self.max * other.max, UINT_MAX))

    def scaled(self, factor: float) -> Range:
        return Range(scale(self.min, factor), scale(self.max, factor))

    def union(self, other: Range) -> Range:
        return Range(min(self.min, other.min), max(self.max, other.max))


def exactly(number: int) -> Range:
    return Range(number, number)


UNKNOWN: Final = Range(0, UINT_MAX)
FREE: Final = exactly(0)
ONE: Final = exactly(1)


class Operand(Protocol):
    """An operand of a call as estimates see it."""

    @property
    def type(self) -> Type: ...

    @property
    def size(self) -> Range:
        """Characters, bytes or entries; UNKNOWN when nothing is known."""

    @property
    def known_size(self) -> Range | None:
        """The size if the expression itself shows it."""

    @property
    def element_size(self) -> Range:
        """Size of the elements of a list, as declared."""

    @property
    def constant(self) -> Any:
        """The value of a literal, else None."""


class Estimate(NamedTuple):
    """Cost of a call without its operands, and the size of its result if the rule knows it."""

    cost: Range
    size: Range | None = None


Estimator = Callable[[Sequence[Operand]], Estimate]
Counter = Callable[[Sequence[Any], Any], int]


@dataclass(frozen=True, slots=True)
class Rule:
    """How a function is charged: before the run from its operands (receiver first), afterwards from their values.

    The estimate is the reference's, and not always an upper bound of the count; where it is not, ``ceiling`` is.
    ``result_ceiling`` is the same for the size of the result.
    """

    estimate: Estimator
    count: Counter
    ceiling: Callable[[Sequence[Operand]], Range] | None = None
    result_ceiling: Callable[[Sequence[Operand]], Range] | None = None


def size_of(value: Any) -> int:
    """The size that costs are computed from: 1 for everything that has no length."""
    while isinstance(value, Optional) and value.present:
        value = value.value
    if isinstance(value, (str, bytes, list, tuple, dict)):
        return len(value)
    return int(getattr(value, "cel_size", 1))


FIXED: Final = Rule(lambda operands: Estimate(ONE), lambda values, result: 1)


def traversal(*, sized: bool = False) -> Rule:
    """The charge for walking through the characters of an operand; ``sized``: the result has the same length."""

    def estimate(operands: Sequence[Operand]) -> Estimate:
        size = operands[0].size
        return Estimate(size.scaled(CHARACTER_COST), size if sized else None)

    return Rule(estimate, lambda values, result: scale(size_of(values[0]), CHARACTER_COST))


def _pattern(operands: Sequence[Operand]) -> Range:
    """Text length times pattern length; one is added so that an empty text still costs something."""
    text = operands[0].size.plus(ONE).scaled(CHARACTER_COST)
    return text.times(operands[1].size.scaled(PATTERN_CHARACTER_COST))


def _pattern_count(values: Sequence[Any], result: Any) -> int:
    return scale(size_of(values[0]) + 1, CHARACTER_COST) * scale(size_of(values[1]), PATTERN_CHARACTER_COST)


MATCH: Final = Rule(lambda operands: Estimate(_pattern(operands)), _pattern_count)
SEARCH: Final = Rule(lambda operands: Estimate(_pattern(operands), Range(0, operands[0].size.max)), _pattern_count)


def _comparison(operands: Sequence[Operand]) -> Estimate:
    shorter = min(operands[0].size.max, operands[1].size.max)
    return Estimate(Range(int(shorter > 0), shorter).scaled(CHARACTER_COST))


def _comparison_ceiling(operands: Sequence[Operand]) -> Range:
    """Values without a size compare in one step, whatever the other side is."""
    if any(operand.type.kind in ("struct", "type", "null_type") for operand in operands[:2]):
        return ONE
    return _comparison(operands).cost


COMPARISON: Final = Rule(
    _comparison,
    lambda values, result: scale(min(size_of(values[0]), size_of(values[1])), CHARACTER_COST),
    _comparison_ceiling,
)


_ENOUGH_ELEMENTS: Final = 1_000_001


def _estimate(operands: Sequence[Operand]) -> Estimate:
    operand = operands[0]
    if not operand.type.params:
        return Estimate(operand.size.scaled(CHARACTER_COST))
    each = ONE
    if operand.type.params[0].kind in ("string", "bytes"):
        each = each.plus(operand.element_size.scaled(CHARACTER_COST))
    return Estimate(operand.size.times(each))


def _count(values: Sequence[Any], result: Any) -> int:
    """One unit per leaf, a tenth per byte of text. Stops where every limit is exceeded anyway."""
    total = 0
    pending = [values[0]]
    while pending and total < _ENOUGH_ELEMENTS:
        value = pending.pop()
        if isinstance(value, str):
            total += int(len(value.encode("utf-8", "replace")) * CHARACTER_COST)
        elif isinstance(value, bytes):
            total += int(len(value) * CHARACTER_COST)
        elif isinstance(value, (list, tuple)):
            pending.extend(value)
        elif isinstance(value, dict):
            pending.extend(part for key, entry in value.items() for part in (unwrap_key(key), entry))
        else:
            total += 1
    return total


def _ceiling(operands: Sequence[Operand]) -> Range:
    """No bound is known for lists of unknown elements, and a character may take four bytes."""
    if operands[0].type.is_loose:
        return UNKNOWN
    return _estimate(operands).cost.times(exactly(4))


TRAVERSAL: Final = Rule(_estimate, _count, _ceiling)


Implementation = Callable[..., Any]


@dataclass(frozen=True, slots=True, eq=False)
class Overload:
    """One signature.

    ``checks`` states that the implementation itself raises for values of other types, so that compiled expressions
    need no check. ``inline`` is Python source for them, with ``{0}`` for the first operand, under the same condition.
    ``against_zero`` is such source for comparing the result with 0 by the operator ``{2}``.
    """

    params: tuple[Type, ...]
    result: Type
    run: Implementation
    method: bool = False
    rule: Rule = FIXED
    inline: str | None = None
    checks: bool = False
    against_zero: str | None = None

    def accepts(self, values: Sequence[Any]) -> bool:
        return len(values) == len(self.params) and all(map(accepts, self.params, values))


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """A name, and the overloads that a call of it may mean.

    ``rule`` is charged when several overloads may be meant (a fixed unit otherwise). ``variadic`` functions stop at
    the first operand that fails, which matters for what a failed call costs.
    """

    name: str
    overloads: tuple[Overload, ...]
    guarded: bool = True
    rule: Rule | None = None
    variadic: bool = False


Library = Sequence[Function]


def built_in(*operands: object) -> NoReturn:
    """Stands for the implementation where the evaluators do the work: selections, and operators that may skip
    operands."""
    raise AssertionError("the evaluators call no implementation here")


def glob(params: Sequence[Type], result: Type, run: Implementation, rule: Rule = FIXED) -> Overload:
    """An overload that is called as ``f(x)``."""
    return Overload(tuple(params), result, run, rule=rule)


def method(
    params: Sequence[Type],
    result: Type,
    run: Implementation,
    rule: Rule = FIXED,
    inline: str | None = None,
    *,
    against_zero: str | None = None,
) -> Overload:
    """An overload that is called as ``x.f()``."""
    checks = against_zero is not None
    return Overload(tuple(params), result, run, True, rule, inline, checks, against_zero)


def succeeds(run: Implementation) -> Implementation:
    """Whether an implementation has an answer: ``isIP`` beside ``ip``."""

    def check(*values: Any) -> bool:
        try:
            run(*values)
        except EvaluationError:
            return False
        return True

    return check


def merge(*libraries: Library) -> dict[str, Function]:
    """The functions of several libraries by name; overloads of the same name are put together."""
    merged: dict[str, Function] = {}
    for library in libraries:
        for function in library:
            known = merged.get(function.name)
            if known is None:
                merged[function.name] = function
            else:
                merged[function.name] = Function(
                    function.name,
                    known.overloads + function.overloads,
                    known.guarded or function.guarded,
                    known.rule or function.rule,
                    known.variadic or function.variadic,
                )
    return merged
