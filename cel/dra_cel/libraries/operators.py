"""Operators, ``size`` and membership: expressions use them without calling anything."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from dra_cel.basics.declarations import (
    CHARACTER_COST,
    COMPARISON,
    FIXED,
    ONE,
    Estimate,
    Function,
    Implementation,
    Operand,
    Range,
    Rule,
    built_in,
    glob,
    method,
    scale,
    size_of,
)
from dra_cel.basics.errors import EvaluationError
from dra_cel.basics.types import (
    BOOL,
    BYTES,
    CIDR,
    DOUBLE,
    DURATION,
    FORMAT,
    INT,
    IP,
    QUANTITY,
    SEMVER,
    STRING,
    TIMESTAMP,
    UINT,
    URL,
    Type,
    list_of,
    map_of,
    param,
    type_of,
)  # fmt: skip
from dra_cel.basics.values import (
    INT_MAX,
    INT_MIN,
    UINT_MAX,
    Duration,
    Timestamp,
    Uint,
    equal,
    no_overload,
    order,
    unequal,
)

from .containers import LIST_ELEMENTS, TEXT_CHARACTERS, Accumulator, bounded, size, within

A: Final = param("A")
B: Final = param("B")
LIST_A: Final = list_of(A)
MAP_AB: Final = map_of(A, B)


def _whole(value: int) -> int:
    if INT_MIN <= value <= INT_MAX:
        return value
    raise EvaluationError("overflow", "integer overflow")


def _unsigned(value: int) -> Uint:
    if 0 <= value <= UINT_MAX:
        return Uint(value)
    raise EvaluationError("overflow", "unsigned integer overflow")


def add(left: Any, right: Any) -> Any:
    kind = type(left)
    if kind is type(right):
        if kind is int:
            return _whole(left + right)
        if kind is str or kind is bytes:
            bounded(len(left) + len(right), TEXT_CHARACTERS)
            return left + right
        if kind is float:
            return left + right
        if kind is Uint:
            return _unsigned(int(left) + int(right))
        if kind is Duration:
            return Duration(left.nanos + right.nanos)
    if kind is Accumulator and isinstance(right, (list, tuple)):
        bounded(len(left) + len(right), LIST_ELEMENTS)
        left.extend(right)
        return left
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        bounded(len(left) + len(right), LIST_ELEMENTS)
        return [*left, *right]
    if {kind, type(right)} == {Duration, Timestamp}:
        return Timestamp(left.nanos + right.nanos, (left if kind is Timestamp else right).offset)
    raise no_overload("_+_", left, right)


def subtract(left: Any, right: Any) -> Any:
    kind = type(left)
    if kind is type(right):
        if kind is int:
            return _whole(left - right)
        if kind is float:
            return left - right
        if kind is Uint:
            return _unsigned(int(left) - int(right))
        if kind is Duration or kind is Timestamp:
            return Duration(left.nanos - right.nanos)
    if kind is Timestamp and type(right) is Duration:
        _whole(-right.nanos)  # the reference adds the negated span, and the longest span cannot be negated
        return Timestamp(left.nanos - right.nanos, left.offset)
    raise no_overload("_-_", left, right)


def multiply(left: Any, right: Any) -> Any:
    kind = type(left)
    if kind is type(right):
        if kind is int:
            return _whole(left * right)
        if kind is float:
            return left * right
        if kind is Uint:
            return _unsigned(int(left) * int(right))
    raise no_overload("_*_", left, right)


def divide(left: Any, right: Any) -> Any:
    kind = type(left)
    if kind is not type(right) or kind not in (int, Uint, float):
        raise no_overload("_/_", left, right)
    if kind is float:
        if right == 0.0:
            sign = math.copysign(1.0, left) * math.copysign(1.0, right)
            return math.nan if left == 0.0 or math.isnan(left) else math.inf * sign
        return left / right
    if right == 0:
        raise EvaluationError("divide", "division by zero")
    quotient = abs(int(left)) // abs(int(right))
    return Uint(quotient) if kind is Uint else _whole(quotient if (left < 0) == (right < 0) else -quotient)


def modulo(left: Any, right: Any) -> Any:
    kind = type(left)
    if kind is not type(right) or kind not in (int, Uint):
        raise no_overload("_%_", left, right)
    if right == 0:
        raise EvaluationError("divide", "modulus by zero")
    if left == INT_MIN and right == -1:
        raise EvaluationError("overflow", "integer overflow")
    rest = abs(int(left)) % abs(int(right))
    return Uint(rest) if kind is Uint else (rest if left >= 0 else -rest)


def negate(value: Any) -> Any:
    if type(value) is int:
        return _whole(-value)
    if type(value) is float:
        return -value
    if type(value) is Duration:
        return Duration(-value.nanos)
    raise no_overload("-_", value)


def invert(value: Any) -> bool:
    if type(value) is not bool:
        raise no_overload("!_", value)
    return not value


def _opaque_equal(operands: Sequence[Operand]) -> Estimate:
    """Kubernetes' own types compare in one step, if both sides are known to be of the same one."""
    if operands[0].type == operands[1].type:
        if operands[0].type in (QUANTITY, SEMVER, IP, CIDR):
            return Estimate(ONE)
        if operands[0].type == URL:
            # The reference means to take the larger operand, but looks at the right one twice.
            size = operands[1].known_size or ONE
            return Estimate(Range(1, size.max).scaled(CHARACTER_COST))
        if operands[0].type == FORMAT:
            return Estimate(Range(1, 7))
    return COMPARISON.estimate(operands)


def _equal_count(values: Sequence[Any], result: Any) -> int:
    return 1 if type_of(values[0]) in (QUANTITY, SEMVER, IP, CIDR, URL, FORMAT) else COMPARISON.count(values, result)


_EQUALITY: Final = Rule(_opaque_equal, _equal_count, COMPARISON.ceiling)


def _concatenation(factor: float | None) -> Rule:
    """The charge for ``+``. Text and bytes are copied; lists are not, but later charges depend on their size."""

    def estimate(operands: Sequence[Operand]) -> Estimate:
        total = operands[0].size.plus(operands[1].size)
        return Estimate(ONE if factor is None else total.scaled(factor), total)

    if factor is None:
        return Rule(estimate, lambda values, result: 1)
    return Rule(estimate, lambda values, result: scale(size_of(values[0]) + size_of(values[1]), factor))


_IN_LIST: Final = Rule(
    lambda operands: Estimate(operands[1].size.scaled(1.0)), lambda values, result: size_of(values[1])
)


def _operator(name: str, run: Implementation, *signatures: tuple[Sequence[Type], Type], rule: Rule = FIXED) -> Function:
    return Function(name, tuple(glob(params, result, run, rule) for params, result in signatures), guarded=False)


def _ordering(name: str, run: Implementation) -> Function:
    numbers = (INT, UINT, DOUBLE)
    pairs = [(BOOL, BOOL), *((left, right) for left in numbers for right in numbers)]
    pairs += [(TIMESTAMP, TIMESTAMP), (DURATION, DURATION)]
    plain = [glob(pair, BOOL, run) for pair in pairs]
    texts = [glob((type_, type_), BOOL, run, COMPARISON) for type_ in (STRING, BYTES)]
    return Function(name, (*plain, *texts), guarded=False)


def _same(*types: Type) -> list[tuple[Sequence[Type], Type]]:
    return [((type_, type_), type_) for type_ in types]


LIBRARY: Final = (
    Function(
        "_+_",
        (
            *(glob((t, t), t, add, _concatenation(CHARACTER_COST)) for t in (BYTES, STRING)),
            glob((LIST_A, LIST_A), LIST_A, add, _concatenation(None)),
            *(glob((t, t), t, add) for t in (DOUBLE, DURATION, INT, UINT)),
            glob((DURATION, TIMESTAMP), TIMESTAMP, add),
            glob((TIMESTAMP, DURATION), TIMESTAMP, add),
        ),
        guarded=False,
    ),
    _operator(
        "_-_",
        subtract,
        *_same(DOUBLE, DURATION, INT, UINT),
        ((TIMESTAMP, DURATION), TIMESTAMP),
        ((TIMESTAMP, TIMESTAMP), DURATION),
    ),
    _operator("_*_", multiply, *_same(DOUBLE, INT, UINT)),
    _operator("_/_", divide, *_same(DOUBLE, INT, UINT)),
    _operator("_%_", modulo, *_same(INT, UINT)),
    _operator("-_", negate, ((DOUBLE,), DOUBLE), ((INT,), INT)),
    _operator("!_", invert, ((BOOL,), BOOL)),
    _operator("_==_", equal, ((A, A), BOOL), rule=_EQUALITY),
    _operator("_!=_", unequal, ((A, A), BOOL), rule=COMPARISON),
    _ordering("_<_", lambda left, right: order(left, right) < 0),
    _ordering("_<=_", lambda left, right: order(left, right) <= 0),
    _ordering("_>_", lambda left, right: order(left, right) > 0),
    _ordering("_>=_", lambda left, right: order(left, right) >= 0),
    Function("@in", (glob((A, LIST_A), BOOL, within, _IN_LIST), glob((A, MAP_AB), BOOL, within)), guarded=False),
    Function("_[_]", (glob((LIST_A, INT), A, built_in), glob((MAP_AB, A), B, built_in)), guarded=False),
    Function(
        "size",
        tuple(make((type_,), INT, size) for type_ in (BYTES, LIST_A, MAP_AB, STRING) for make in (glob, method)),
        guarded=False,
    ),
    _operator("_?_:_", built_in, ((BOOL, A, A), A)),
    _operator("_&&_", built_in, ((BOOL, BOOL), BOOL)),
    _operator("_||_", built_in, ((BOOL, BOOL), BOOL)),
    _operator("@not_strictly_false", built_in, ((BOOL,), BOOL)),
)
"""Operators under the names that messages use, ``_+_`` for instance."""
