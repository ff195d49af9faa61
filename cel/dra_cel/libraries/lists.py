"""List functions: order, extremes, sums, sorting, slices, sets, the making of maps in loops, and ``includes``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cmp_to_key
from typing import Any, Final

from dra_cel.basics.declarations import (
    CHARACTER_COST,
    LIST_COST,
    ONE,
    TRAVERSAL,
    Estimate,
    Function,
    Operand,
    Range,
    Rule,
    exactly,
    glob,
    method,
    size_of,
)
from dra_cel.basics.errors import EvaluationError, EvaluationStopped, spend
from dra_cel.basics.types import (
    BOOL,
    BYTES,
    DOUBLE,
    DURATION,
    DYN,
    INT,
    STRING,
    TIMESTAMP,
    UINT,
    list_of,
    map_of,
    param,
    type_of,
)  # fmt: skip
from dra_cel.basics.values import (
    MISSING,
    UINT_MAX,
    Duration,
    Made,
    Uint,
    contains,
    find,
    no_overload,
    order,
    unequal,
    unwrap_key,
    wrap_key,
)

from .containers import LIST_ELEMENTS, MapAccumulator, bounded
from .operators import add

COMPARABLE: Final = (INT, UINT, DOUBLE, BOOL, DURATION, TIMESTAMP, STRING, BYTES)
_ZEROS: Final = {INT: 0, UINT: Uint(0), DOUBLE: 0.0, DURATION: Duration(0)}
T: Final = param("T")
K: Final = param("K")
V: Final = param("V")
_LIST: Final = list_of(T)
_MAP: Final = map_of(K, V)
_CALL: Final = exactly(1 + LIST_COST)
_PAIRS_LIMIT: Final = 1_000_000


def _order(left: Any, right: Any) -> int:
    """The order of two elements. As in the reference, comparable elements of different types count as equal."""
    for value in (left, right):
        if type_of(value) not in COMPARABLE:
            raise no_overload("compare", value)
    try:
        return order(left, right)
    except EvaluationError:
        return 0


def _is_sorted(items: Sequence[Any]) -> bool:
    return all(_order(items[at], items[at + 1]) <= 0 for at in range(len(items) - 1))


def _extreme(name: str, sign: int) -> Callable[[Sequence[Any]], Any]:
    def run(items: Sequence[Any]) -> Any:
        if not items:
            raise EvaluationError("other", f"{name} called on empty list")
        best = items[0]
        for item in items[1:]:
            if _order(item, best) == sign:
                best = item
        return best

    return run


def _sum(zero: Any) -> Callable[[Sequence[Any]], Any]:
    def run(items: Sequence[Any]) -> Any:
        total = zero
        for item in items:
            total = add(total, item)
        return total

    return run


def _index_of(items: Sequence[Any], wanted: Any) -> int:
    return _position(items, wanted, range(len(items)))


def _last_index_of(items: Sequence[Any], wanted: Any) -> int:
    return _position(items, wanted, range(len(items) - 1, -1, -1))


def _position(items: Sequence[Any], wanted: Any, positions: range) -> int:
    spend(len(positions))
    return next((position for position in positions if not unequal(items[position], wanted)), -1)


def _slice(items: Sequence[Any], start: int, end: int) -> list[Any]:
    if start < 0 or end < 0:
        raise EvaluationError("index", f"cannot slice({start}, {end}), negative indexes not supported")
    if start > end:
        raise EvaluationError("index", f"cannot slice({start}, {end}), start index must not be above end index")
    if end > len(items):
        raise EvaluationError("index", f"cannot slice({start}, {end}), list is length {len(items)}")
    return [*items[start:end]]


def _flatten(items: Sequence[Any], depth: int = 1) -> list[Any]:
    if not isinstance(items, (list, tuple)) or type(depth) is not int:
        raise no_overload("flatten", items, depth)
    if depth < 0:
        raise EvaluationError("other", "level must be non-negative")
    flat = list(items)
    while depth > 0 and any(isinstance(item, (list, tuple)) for item in flat):
        depth -= 1
        nested = [item if isinstance(item, (list, tuple)) else (item,) for item in flat]
        spend(sum(map(len, nested)))
        flat = [item for inner in nested for item in inner]
    return flat


def _range(count: int) -> list[int]:
    bounded(count, LIST_ELEMENTS)
    return list(range(count))


def _reverse(items: Sequence[Any]) -> list[Any]:
    return [*items[::-1]]


def _distinct(items: Sequence[Any]) -> list[Any]:
    bounded(len(items) ** 2, _PAIRS_LIMIT)
    kept: list[Any] = []
    for item in items:
        if _position(kept, item, range(len(kept))) < 0:
            kept.append(item)
    return kept


def _sort_by(items: Any, keys: Any) -> list[Any]:
    if not isinstance(items, (list, tuple)) or not isinstance(keys, (list, tuple)):
        raise no_overload("sort", items)
    bounded(len(keys) ** 2, _PAIRS_LIMIT)
    if keys and type_of(keys[0]) not in COMPARABLE:
        raise EvaluationError("other", "list elements must be comparable")
    if any(type_of(key) != type_of(keys[0]) for key in keys):
        raise EvaluationError("other", "list elements must have the same type")

    def compare(left: int, right: int) -> int:
        return order(keys[left], keys[right])

    return [items[position] for position in sorted(range(len(items)), key=cmp_to_key(compare))]


def _contains_all(items: Sequence[Any], wanted: Sequence[Any]) -> bool:
    bounded(len(items) * len(wanted), _PAIRS_LIMIT)
    return all(contains(items, item) for item in wanted)


def _equivalent(left: Sequence[Any], right: Sequence[Any]) -> bool:
    return _contains_all(left, right) and _contains_all(right, left)


def _intersects(left: Sequence[Any], right: Sequence[Any]) -> bool:
    bounded(len(left) * len(right), _PAIRS_LIMIT)
    return any(contains(right, item) for item in left)


def _insert(mapping: dict[Any, Any], *entry: Any) -> dict[Any, Any]:
    """The map with one more entry, or with all entries of another map. A map that a fold builds is extended in
    place."""
    grown = mapping if isinstance(mapping, MapAccumulator) else Made(mapping)
    pairs = [entry] if len(entry) == 2 else [(unwrap_key(key), value) for key, value in entry[0].items()]
    for key, value in pairs:
        if find(grown, key) is not MISSING:
            shown = str(key)[:100] if isinstance(key, (str, int)) else type_of(key).name
            raise EvaluationError("other", f"insert failed: key {shown} already exists")
        grown[wrap_key(key)] = value
    return grown


# --- charges ----------------------------------------------------------------------------------


def _constant(operand: Operand, default: int) -> int:
    value = operand.constant
    return max(value, 0) if type(value) is int else default


def _made(size: Range, factor: float = 1.0) -> Estimate:
    return Estimate(size.scaled(factor).plus(_CALL), size)


def _slice_estimate(operands: Sequence[Operand]) -> Estimate:
    length = _constant(operands[2], operands[0].size.max) - _constant(operands[1], 0)
    return _made(exactly(length % (UINT_MAX + 1)))


def _flatten_estimate(operands: Sequence[Operand]) -> Estimate:
    depth = _constant(operands[1], UINT_MAX) if len(operands) > 1 else 1
    return _made(operands[0].size, float(depth))


def _flatten_count(values: Sequence[Any], result: Any) -> int:
    depth = values[1] if len(values) > 1 else 1
    if type(depth) is not int:
        raise EvaluationStopped("other", "flatten: the depth is not an int")
    return (_as_uint64(size_of(values[0]) * float(depth)) + 1 + LIST_COST) % 2**64


def _as_uint64(product: float) -> int:
    """The float as uint64, as the reference converts it: negative and too large numbers give these values."""
    return int(product) % 2**64 if -(2.0**63) <= product < 2.0**64 else 2**63


def _made_count(values: Sequence[Any], result: Any) -> int:
    return size_of(result) + 1 + LIST_COST


def _pairwise(operand: int, factor: float = 2.0) -> Rule:
    """Comparing every element with every other one."""

    def estimate(operands: Sequence[Operand]) -> Estimate:
        size = operands[operand].size
        return _made(size.times(size), factor)

    def count(values: Sequence[Any], result: Any) -> int:
        keys = values[operand]
        if not isinstance(keys, (list, tuple)):
            raise EvaluationStopped("other", "internal error: the charge of comparing elements needs a list")
        if not keys:
            return 1 + LIST_COST
        each = 2.0 + (CHARACTER_COST if isinstance(keys[0], (str, bytes)) else 0.0)
        return int(len(keys) ** 2 * each) + 1 + LIST_COST

    return Rule(estimate, count)


def _sets(factor: int) -> Rule:
    def estimate(operands: Sequence[Operand]) -> Estimate:
        return Estimate(operands[0].size.times(operands[1].size).scaled(float(factor)).plus(ONE))

    return Rule(estimate, lambda values, result: 1 + size_of(values[0]) * size_of(values[1]) * factor)


_SLICE: Final = Rule(_slice_estimate, _made_count)
_FLATTEN: Final = Rule(_flatten_estimate, _flatten_count)
_MAKE: Final = Rule(lambda operands: _made(exactly(_constant(operands[0], UINT_MAX))), _made_count)
_REVERSE: Final = Rule(lambda operands: _made(operands[0].size), _made_count)


def _sorting(operand: int, type_: Any) -> Rule:
    return _pairwise(operand, 2.0 + CHARACTER_COST if type_ in (STRING, BYTES) else 2.0)


def _each(name: str, run: Callable[..., Any], result: Any = None) -> Function:
    overloads = tuple(method((list_of(t),), result or t, run, TRAVERSAL) for t in COMPARABLE)
    return Function(name, overloads, rule=TRAVERSAL)


LIBRARY: Final = (
    _each("isSorted", _is_sorted, BOOL),
    _each("max", _extreme("max", 1)),
    _each("min", _extreme("min", -1)),
    Function(
        "sum", tuple(method((list_of(t),), t, _sum(zero), TRAVERSAL) for t, zero in _ZEROS.items()), rule=TRAVERSAL
    ),
    Function("indexOf", (method((_LIST, T), INT, _index_of, TRAVERSAL),), rule=TRAVERSAL),
    Function("lastIndexOf", (method((_LIST, T), INT, _last_index_of, TRAVERSAL),), rule=TRAVERSAL),
    Function("slice", (method((_LIST, INT, INT), _LIST, _slice, _SLICE),)),
    Function(
        "flatten",
        (
            method((list_of(_LIST),), _LIST, _flatten, _FLATTEN),
            method((list_of(DYN), INT), list_of(DYN), _flatten, _FLATTEN),
        ),
        guarded=False,
    ),
    Function(
        "sort",
        tuple(
            method((list_of(t),), list_of(t), lambda items: _sort_by(items, items), _sorting(0, t)) for t in COMPARABLE
        ),
        guarded=False,
    ),
    Function(
        "@sortByAssociatedKeys",
        tuple(method((_LIST, list_of(t)), _LIST, _sort_by, _sorting(1, t)) for t in COMPARABLE),
        guarded=False,
    ),
    Function("lists.range", (glob((INT,), list_of(INT), _range, _MAKE),)),
    Function("reverse", (method((_LIST,), _LIST, _reverse, _REVERSE),)),
    Function("distinct", (method((_LIST,), _LIST, _distinct, _pairwise(0)),)),
    Function("sets.contains", (glob((_LIST, _LIST), BOOL, _contains_all, _sets(1)),)),
    Function("sets.equivalent", (glob((_LIST, _LIST), BOOL, _equivalent, _sets(2)),)),
    Function("sets.intersects", (glob((_LIST, _LIST), BOOL, _intersects, _sets(1)),)),
    Function("cel.@mapInsert", (glob((_MAP, K, V), _MAP, _insert), glob((_MAP, _MAP), _MAP, _insert))),
)


MOST_VALUES: Final = 48


def _includes(value: Any, wanted: Any) -> bool:
    """Return whether an attribute is, or lists, a value. Only device selectors have it."""
    if not isinstance(value, (list, tuple)):
        return not unequal(value, wanted)
    for position, item in enumerate(value):
        if position >= MOST_VALUES:
            raise EvaluationError(
                "list-too-long", f"'includes' cannot be applied to lists of more than {MOST_VALUES} values"
            )
        if not unequal(item, wanted):
            return True
    return False


INCLUDES: Final = (
    Function(
        "includes",
        (method((DYN, DYN), BOOL, _includes, Rule(lambda operands: Estimate(Range(0, MOST_VALUES)), lambda v, r: 1)),),
    ),
)
