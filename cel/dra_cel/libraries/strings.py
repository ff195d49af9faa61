"""Text functions: search, cut, replace, split, join and quote. Positions count code points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from dra_cel.basics.declarations import (  # fmt: skip
    CHARACTER_COST,
    MATCH,
    SEARCH,
    TRAVERSAL,
    UNKNOWN,
    Estimate,
    Function,
    Operand,
    Range,
    Rule,
    exactly,
    glob,
    method,
    scale,
    size_of,
    traversal,
)
from dra_cel.basics.errors import EvaluationError
from dra_cel.basics.types import BOOL, INT, STRING, list_of
from dra_cel.basics.values import UINT_MAX

from . import regexes
from .containers import LIST_ELEMENTS, TEXT_CHARACTERS, bounded
from .formatting import ESCAPES

_TWICE: Final = 2 * CHARACTER_COST
_ESCAPES: Final = str.maketrans(ESCAPES)
_SPACES: Final = (
    "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
)


def _outside(index: int) -> EvaluationError:
    return EvaluationError("index", f"index out of range: {index}")


def _char_at(text: str, index: int) -> str:
    if not 0 <= index <= len(text):
        raise _outside(index)
    return text[index : index + 1]


def _index_of(text: str, wanted: str, start: int = 0) -> int:
    if not wanted:
        return start
    if start < 0:
        raise _outside(start)
    return text.find(wanted, start) if start < len(text) else -1


def _last_index_of(text: str, wanted: str, start: int | None = None) -> int:
    if start is None:
        if not wanted:
            return len(text)
        if len(text) < len(wanted):
            return -1
        start = len(text) - 1
    if not wanted:
        return start
    if start < 0:
        raise _outside(start)
    return text.rfind(wanted, 0, start + len(wanted)) if start < len(text) else -1


def _substring(text: str, start: int, end: int | None = None) -> str:
    if end is not None and start > end:
        raise EvaluationError("index", f"invalid substring range. start: {start}, end: {end}")
    for index in (start,) if end is None else (start, end):
        if not 0 <= index <= len(text):
            raise _outside(index)
    return text[start:end]


def _replace(text: str, old: str, new: str, count: int = -1) -> str:
    times = text.count(old) if count < 0 else min(text.count(old), count)
    bounded(len(text) + times * (len(new) - len(old)), TEXT_CHARACTERS)
    return text.replace(old, new, count if count >= 0 else -1)


def _split(text: str, separator: str, limit: int = -1) -> list[str]:
    if limit == 0:
        return []
    bounded(len(text) if not separator else text.count(separator) + 1, LIST_ELEMENTS)
    if separator:
        return text.split(separator, limit - 1 if limit > 0 else -1)
    if limit < 0 or limit >= len(text):
        return [*text]
    return [*text[: limit - 1], text[limit - 1 :]]


def _join(items: Sequence[Any], separator: str = "") -> str:
    for item in items:
        if type(item) is not str:
            raise EvaluationError("other", "join: the list must hold nothing but strings")
    bounded(sum(map(len, items)) + len(separator) * len(items), TEXT_CHARACTERS)
    return separator.join(items)


def _ascii(change: Callable[[str], str]) -> Callable[[str], str]:
    table = {code: change(chr(code)) for code in range(128)}
    return lambda text: text.translate(table)


def _quote(text: str) -> str:
    return f'"{text.translate(_ESCAPES)}"'


# --- charges ----------------------------------------------------------------------------------


def _replace_estimate(operands: Sequence[Operand]) -> Estimate:
    size, old, new = (operand.size for operand in operands[:3])
    most, kept_most = _replaced(size.max, old.min, grows=new.max > old.min)
    least, kept_least = _replaced(size.min, old.max, grows=new.min < old.max)
    result = Range(least, most).times(new).plus(Range(kept_least, kept_most))
    return Estimate(size.scaled(_TWICE), result)


def _replaced(size: int, old: int, *, grows: bool) -> tuple[int, int]:
    """The most replacements in a text of that size, and how much of it is kept."""
    if old == 0:
        return min(size + 1, UINT_MAX), size
    if not grows:
        return 0, size
    return -(-size // old) if size < UINT_MAX else scale(size, 1 / old), 0


def _split_estimate(operands: Sequence[Operand]) -> Estimate:
    size = operands[0].size
    most = size.max
    if len(operands) > 2 and isinstance(operands[2].constant, int):
        most = operands[2].constant % 2**64
    return Estimate(size.scaled(_TWICE), Range(0, most))


def _join_estimate(operands: Sequence[Operand]) -> Estimate:
    length = operands[0].size
    size = length.times(operands[0].element_size) if operands[0].type.params else exactly(0)
    if len(operands) > 1:
        separators = Range(max(length.min - 1, 0), max(length.max - 1, 0))
        size = size.plus(operands[1].size.times(separators))
    return Estimate(size.scaled(CHARACTER_COST), size)


def _doubled(values: Sequence[Any], result: Any) -> int:
    return scale(2 * size_of(values[0]), CHARACTER_COST)


def _affix_estimate(operands: Sequence[Operand]) -> Estimate:
    return Estimate(operands[1].size.scaled(CHARACTER_COST))


def _contains_estimate(operands: Sequence[Operand]) -> Estimate:
    return Estimate(operands[0].size.scaled(CHARACTER_COST).times(operands[1].size.scaled(CHARACTER_COST)))


def _contains_count(values: Sequence[Any], result: Any) -> int:
    return scale(size_of(values[0]), CHARACTER_COST) * scale(size_of(values[1]), CHARACTER_COST)


def _quote_estimate(operands: Sequence[Operand]) -> Estimate:
    size = operands[0].size
    # The reference's sum overflows: the quoted form of a text of unknown size is taken to be empty.
    return Estimate(size.scaled(CHARACTER_COST), Range(size.min + 2, (2 * size.max + 2) % 2**64))


def _first_count(values: Sequence[Any], result: Any) -> int:
    return scale(size_of(values[0]), CHARACTER_COST)


_REPLACE: Final = Rule(_replace_estimate, _doubled)
_SPLIT: Final = Rule(_split_estimate, _doubled)
_JOIN: Final = Rule(
    _join_estimate,
    lambda values, result: scale(2 * size_of(result), CHARACTER_COST),
    lambda operands: UNKNOWN if operands[0].type.is_loose else _join_estimate(operands).cost.times(exactly(2)),
)
_AFFIX: Final = Rule(_affix_estimate, _first_count, lambda operands: operands[0].size.scaled(CHARACTER_COST))
_CONTAINS: Final = Rule(_contains_estimate, _contains_count)
_QUOTE: Final = Rule(
    _quote_estimate,
    _first_count,
    result_ceiling=lambda operands: operands[0].size.times(exactly(2)).plus(exactly(2)),
)
_WALK: Final = traversal(sized=True)

_TEXTS: Final = list_of(STRING)
_TWO: Final = (STRING, STRING)
_THREE: Final = (STRING, STRING, STRING)

LIBRARY: Final = (
    Function("charAt", (method((STRING, INT), STRING, _char_at),)),
    Function("indexOf", tuple(method(p, INT, _index_of, TRAVERSAL) for p in (_TWO, (*_TWO, INT))), rule=TRAVERSAL),
    Function(
        "lastIndexOf", tuple(method(p, INT, _last_index_of, TRAVERSAL) for p in (_TWO, (*_TWO, INT))), rule=TRAVERSAL
    ),
    Function("lowerAscii", (method((STRING,), STRING, _ascii(str.lower), _WALK),)),
    Function("upperAscii", (method((STRING,), STRING, _ascii(str.upper), _WALK),)),
    Function("replace", tuple(method(p, STRING, _replace, _REPLACE) for p in (_THREE, (*_THREE, INT)))),
    Function("split", tuple(method(p, _TEXTS, _split, _SPLIT) for p in (_TWO, (*_TWO, INT)))),
    Function("substring", tuple(method(p, STRING, _substring, _WALK) for p in ((STRING, INT), (STRING, INT, INT)))),
    Function("trim", (method((STRING,), STRING, lambda text: text.strip(_SPACES), _WALK),)),
    Function("strings.quote", (glob((STRING,), STRING, _quote, _QUOTE),)),
    Function("join", tuple(method(p, STRING, _join, _JOIN) for p in ((_TEXTS,), (_TEXTS, STRING)))),
    Function("contains", (method(_TWO, BOOL, lambda text, part: part in text, _CONTAINS),)),
    Function("startsWith", (method(_TWO, BOOL, str.startswith, _AFFIX),)),
    Function("endsWith", (method(_TWO, BOOL, str.endswith, _AFFIX),)),
    Function("matches", (glob(_TWO, BOOL, regexes.matches), method(_TWO, BOOL, regexes.matches, MATCH))),
    Function("find", (method(_TWO, STRING, regexes.find, SEARCH),)),
    Function("findAll", tuple(method(p, _TEXTS, regexes.find_all, SEARCH) for p in (_TWO, (*_TWO, INT)))),
)
