"""``"%s has %d".format([...])``: the placeholders, at run time and as a check of literals.

``%f`` and ``%e`` print as the reference does for English: with thousands separators, and as ``1.500000×10⁰³``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, Final

from dra_cel.basics import limits
from dra_cel.basics.declarations import CHARACTER_COST, Estimate, Function, Rule, method, scale, size_of
from dra_cel.basics.errors import EvaluationError, EvaluationStopped
from dra_cel.basics.types import DYN, STRING, Type, list_of, type_of
from dra_cel.basics.values import Duration, Timestamp, Uint, unwrap_key

from .containers import TEXT_CHARACTERS, bounded
from .conversions import to_string

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
            limits.spend(1)
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


_RULE: Final = Rule(
    lambda operands: Estimate(operands[0].size.scaled(CHARACTER_COST)),
    lambda values, result: scale(size_of(values[0]), CHARACTER_COST),
)
LIBRARY: Final = (Function("format", (method((STRING, list_of(DYN)), STRING, format_text, _RULE),), variadic=True),)
