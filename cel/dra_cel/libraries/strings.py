"""Functions of texts: search, cut, replace, split, join, quote, and ``"%s has %d".format([...])``.

Positions count code points. The placeholders of a format are read at run time and as a check of literals. ``%f`` and
``%e`` print as the reference does for English: with thousands separators, and as ``1.500000×10⁰³``.
"""

from __future__ import annotations

import math
import re
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
from dra_cel.basics.errors import EvaluationError, EvaluationStopped, spend
from dra_cel.basics.types import BOOL, DYN, INT, STRING, Type, list_of, type_of
from dra_cel.basics.values import UINT_MAX, Duration, Timestamp, Uint, unwrap_key
from dra_cel.libraries import regexes
from dra_cel.libraries.containers import LIST_ELEMENTS, TEXT_CHARACTERS, bounded
from dra_cel.libraries.conversions import to_string

_CLAUSE: Final = re.compile(r"%(?:(%)|(\.[0-9]*)?(.)?)", re.DOTALL)
_MOST_PRECISION_DIGITS: Final = 1_000_000
_EXACT_DIGITS: Final = 1100  # no double has more
_PRECISION_DIGITS: Final = 18
_SUPERSCRIPTS: Final = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
_PRINTABLE: Final = frozenset(
    {"list", "map", "int", "uint", "double", "bool", "string", "timestamp", "bytes", "duration", "type", "null_type"}
)
ALLOWED: Final = {
    "s": _PRINTABLE,
    "d": frozenset({"int", "uint"}),
    "f": frozenset({"double", "string"}),
    "e": frozenset({"double", "string"}),
    "b": frozenset({"int", "uint", "bool"}),
    "x": frozenset({"int", "uint", "string", "bytes"}),
    "X": frozenset({"int", "uint", "string", "bytes"}),
    "o": frozenset({"int", "uint"}),
}
"""Placeholder -> kinds of types that it can print."""


def clauses(pattern: str) -> list[tuple[str, str, int]]:
    """The pattern in pieces: (text before, placeholder or empty at the end, precision). Raises EvaluationError."""
    pieces: list[tuple[str, str, int]] = []
    text = ""
    at = 0
    for match in _CLAUSE.finditer(pattern):
        text += pattern[at : match.start()]
        at = match.end()
        if match[1]:
            text += "%"
            continue
        pieces.append((text, _placeholder(match), _precision(match[2])))
        text = ""
    pieces.append((text + pattern[at:], "", 0))
    return pieces


def _placeholder(match: re.Match[str]) -> str:
    letter = match[3]
    if letter is None:
        raise EvaluationError("format", "unexpected end of string")
    if letter not in ALLOWED:
        raise EvaluationError("format", f'could not parse formatting clause: unrecognized formatting clause "{letter}"')
    return letter


def _precision(text: str | None) -> int:
    if text is None:
        return 6
    digits = text[1:]
    if not digits or len(digits) > _PRECISION_DIGITS:
        raise EvaluationError("format", f"could not parse formatting clause: precision {text!r} is not possible")
    return int(digits)


def not_printable(letter: str, type_: Type) -> str:
    """The complaint about a value that a placeholder cannot print."""
    allowed = ", ".join(sorted(ALLOWED[letter]))
    return f"error during formatting: %{letter} can only print {allowed}, not {type_.name}"


def format_text(pattern: str, values: Sequence[Any]) -> str:
    """The pattern with its placeholders replaced. Raises EvaluationError."""
    parts: list[str] = []
    size = 0
    for position, (text, letter, precision) in enumerate(clauses(pattern)):
        parts.append(text)
        if letter:
            if position >= len(values):
                raise EvaluationError("format", f"index {position} out of range")
            parts.append(_print(letter, precision, values[position]))
        size += sum(map(len, parts[-2:]))
        bounded(size, TEXT_CHARACTERS)
    return "".join(parts)


def _print(letter: str, precision: int, value: Any) -> str:
    type_ = type_of(value)
    special = letter in "fe" and isinstance(value, str)
    if type_.kind not in ALLOWED[letter] or (special and value not in ("NaN", "Infinity", "-Infinity")):
        raise EvaluationError("format", not_printable(letter, type_))
    if letter == "s":
        try:
            return _Plain().text(value)
        except EvaluationStopped:
            raise
        except EvaluationError as error:
            raise EvaluationError("format", f"error during formatting: {error.message}") from None
    if letter == "d":
        return str(int(value))
    if letter in "fe":
        if precision // 10 > _MOST_PRECISION_DIGITS:
            return "%!(NOVERB)"
        return _decimal(float(value), precision) if letter == "f" else _scientific(float(value), precision)
    if letter in "xX" and isinstance(value, (str, bytes)):
        digits = (value.encode("utf-8", "replace") if isinstance(value, str) else value).hex()
        return digits.upper() if letter == "X" else digits
    return f"{int(value):{letter}}"


def _special(value: float) -> str | None:
    if math.isnan(value):
        return "NaN"
    return None if math.isfinite(value) else ("∞" if value > 0 else "-∞")


def _decimal(value: float, precision: int) -> str:
    """With ``precision`` decimals. The reference keeps their least number in 8 bits and their greatest in 16."""
    if (special := _special(value)) is not None:
        return special
    most = precision % 2**16
    least = precision % 2**8
    text = f"{value if value else 0.0:,.{min(most, _EXACT_DIGITS)}f}"
    if least == most:
        return text
    whole, _, decimals = text.partition(".")
    decimals = decimals[:least] + decimals[least:].rstrip("0")
    return f"{whole}.{decimals}" if decimals else whole


def _scientific(value: float, width: int) -> str:
    """With six decimals: the reference takes the precision for the least width, in 16 bits."""
    text = _special(value)
    if text is None:
        mantissa, _, exponent = f"{value if value else 0.0:.6e}".partition("e")
        text = f"{mantissa}×10{exponent.removeprefix('+').translate(_SUPERSCRIPTS)}"
    return text.rjust(width % 2**16)


class _Plain:
    """``%s``: values as CEL literals, at a length that is watched, because shared lists print exponentially long."""

    def __init__(self) -> None:
        self.size = 0

    def text(self, value: Any) -> str:
        if isinstance(value, (list, tuple, dict)):
            return self.nested(value)
        if value is None:
            return "null"
        return value.name if isinstance(value, Type) else to_string(value)

    def nested(self, value: Any) -> str:
        """A value inside a list or map; deep nesting uses a list of open brackets, not the Python stack."""
        parts: list[str] = []
        pending: list[Any] = [value]
        while pending:
            item = pending.pop()
            if isinstance(item, _Text):
                piece = item.text
            elif isinstance(item, (list, tuple)):
                inner = [part for entry in item for part in (_Text(", "), entry)][1:]
                pending += [_Text("]"), *reversed(inner)]
                piece = "["
            elif isinstance(item, dict):
                pending += [_Text("}"), *reversed(_entries(item))]
                piece = "{"
            else:
                piece = _literal(item)
            parts.append(piece)
            spend(1)
            self.size += len(piece)
            bounded(self.size, TEXT_CHARACTERS)
        return "".join(parts)


class _Text:
    """A piece that is text already."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


def _entries(mapping: dict[Any, Any]) -> list[Any]:
    printed: list[tuple[str, Any]] = []
    for key, value in mapping.items():
        plain = unwrap_key(key)
        if not isinstance(plain, (str, bool, int)):
            raise EvaluationError("format", f"no formatting function for map key of type {type_of(plain).name}")
        printed.append((_literal(plain), value))
    printed.sort(key=lambda pair: pair[0])
    return [part for key, value in printed for part in (_Text(", "), _Text(f"{key}:"), value)][1:]


def _literal(value: Any) -> str:
    match value:
        case bool() | Type() | None:
            return _Plain().text(value)
        case str():
            return quoted(value)
        case bytes():
            return "b" + quoted(to_string(value))
        case Uint() | int():
            return str(int(value))
        case float():
            if math.isfinite(value):
                return f"{value:.6f}"
            return f'"{"NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"}"'
        case Timestamp():
            return f'timestamp("{to_string(value)}")'
        case Duration():
            return f'duration("{to_string(value)}")'
    raise EvaluationError("format", f"no formatting function for {type_of(value).name}")


ESCAPES: Final = {
    "\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v", "\\": "\\\\", '"': '\\"',
}  # fmt: skip


def quoted(text: str) -> str:
    return '"' + "".join(ESCAPES.get(character) or _visible(character) for character in text) + '"'


def _visible(character: str) -> str:
    if character.isprintable():
        return character
    code = ord(character)
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


_FORMAT_RULE: Final = Rule(
    lambda operands: Estimate(operands[0].size.scaled(CHARACTER_COST)),
    lambda values, result: scale(size_of(values[0]), CHARACTER_COST),
)
FORMATTING: Final = (
    Function("format", (method((STRING, list_of(DYN)), STRING, format_text, _FORMAT_RULE),), variadic=True),
)


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

STRINGS: Final = (
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
