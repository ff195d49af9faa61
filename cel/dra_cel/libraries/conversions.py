"""Conversions between types: ``int(x)``, ``string(x)``, ``timestamp(x)``, ..., ``dyn`` and ``type``."""

from __future__ import annotations

import math
import re
from typing import Any, Final, NoReturn

from dra_cel.basics.declarations import (
    CHARACTER_COST,
    Estimate,
    Function,
    Implementation,
    Range,
    Rule,
    glob,
    scale,
    size_of,
)
from dra_cel.basics.errors import EvaluationError
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
    Type,
    param,
    type_of,
    type_type,
)  # fmt: skip
from dra_cel.basics.values import (
    INT_MAX,
    INT_MIN,
    NANOS,
    TIMESTAMP_MAX_SECONDS,
    TIMESTAMP_MIN_SECONDS,
    UINT_MAX,
    Duration,
    Timestamp,
    Uint,
)

from . import clock

_INTEGER: Final = re.compile(r"[+-]?[0-9]+", re.ASCII)
_FLOAT: Final = re.compile(
    r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|inf(?:inity)?|nan)", re.ASCII | re.IGNORECASE
)
_HEX_FLOAT: Final = re.compile(r"[+-]?0x(?:[0-9a-f]+\.?[0-9a-f]*|\.[0-9a-f]+)p[+-]?[0-9]+", re.ASCII | re.IGNORECASE)
_BOOLS: Final = {
    **dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True),
    **dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False),
}
_INTEGER_DIGITS: Final = 25
A: Final = param("A")


def _impossible(value: Any, target: Type) -> NoReturn:
    raise EvaluationError("conversion", f"type conversion error from '{type_of(value)}' to '{target}'")


def _overflow(what: str) -> NoReturn:
    raise EvaluationError("overflow", f"{what} overflow")


def _same(value: Any) -> Any:
    return value


def _to_int(value: Any) -> int:
    if isinstance(value, str):
        if not _INTEGER.fullmatch(value) or len(value.lstrip("+-0")) > _INTEGER_DIGITS:
            _impossible(value, INT)
        number = int(value)
        return number if INT_MIN <= number <= INT_MAX else _impossible(value, INT)
    if isinstance(value, float):
        if not (-(2.0**63) < value < 2.0**63):
            _overflow("integer")
        return int(value)
    if isinstance(value, Timestamp):
        return value.nanos // NANOS
    if isinstance(value, Duration):
        return value.nanos
    return int(value) if value <= INT_MAX else _overflow("integer")


def _to_uint(value: Any) -> Uint:
    if isinstance(value, str):
        if not _INTEGER.fullmatch(value) or value[0] in "+-" or len(value.lstrip("0")) > _INTEGER_DIGITS:
            _impossible(value, UINT)
        number = int(value)
        return Uint(number) if number <= UINT_MAX else _impossible(value, UINT)
    if isinstance(value, float):
        if not (0 <= value < 2.0**64):
            _overflow("unsigned integer")
        return Uint(int(value))
    return Uint(value) if value >= 0 else _overflow("unsigned integer")


def _to_double(value: Any) -> float:
    if not isinstance(value, str):
        return float(value)
    if _HEX_FLOAT.fullmatch(value):
        try:
            return float.fromhex(value)
        except OverflowError:
            _impossible(value, DOUBLE)
    if not _FLOAT.fullmatch(value):
        _impossible(value, DOUBLE)
    number = float(value)
    if math.isinf(number) and "i" not in value.lower():
        _impossible(value, DOUBLE)
    return number


def double_text(value: float) -> str:
    """A double as the reference writes it: shortest digits, with an exponent below 1e-4 and from 1e6 on."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    mantissa, _, exponent = f"{value!r}".replace("E", "e").partition("e")
    sign = "-" if mantissa.startswith("-") else ""
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    fraction = "" if fraction == "0" else fraction
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    if not digits:
        return sign + "0"
    if not -4 <= point - 1 < _EXPONENT_FROM_DIGITS:
        tail = "." + digits[1:] if len(digits) > 1 else ""
        return f"{sign}{digits[0]}{tail}e{'-' if point < 1 else '+'}{abs(point - 1):02d}"
    if point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    if point >= len(digits):
        return sign + digits + "0" * (point - len(digits))
    return f"{sign}{digits[:point]}.{digits[point:]}"


_EXPONENT_FROM_DIGITS: Final = 6


def to_string(value: Any) -> str:
    """The text of a scalar. Raises EvaluationError for bytes that are not UTF-8."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return double_text(value)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise EvaluationError("conversion", "invalid UTF-8 in bytes, cannot convert to string") from None
    if isinstance(value, Duration):
        return clock.duration_text(value)
    if isinstance(value, Timestamp):
        return clock.timestamp_text(value)
    return str(value)


def to_timestamp(value: Any) -> Timestamp:
    if isinstance(value, str):
        return clock.parse_timestamp(value)
    if not TIMESTAMP_MIN_SECONDS <= value <= TIMESTAMP_MAX_SECONDS:
        raise EvaluationError("overflow", "timestamp overflow")
    return Timestamp(value * NANOS)


def to_duration(value: Any) -> Duration:
    return clock.parse_duration(value) if isinstance(value, str) else _impossible(value, DURATION)


def _to_bool(value: str) -> bool:
    found = _BOOLS.get(value)
    return _impossible(value, BOOL) if found is None else found


def _convert(name: str, target: Type, run: Implementation, *sources: Type) -> Function:
    same = glob((target,), target, _same)
    return Function(name, (same, *(glob((source,), target, run) for source in sources)))


def _resized(shrink: int, grow: int) -> Rule:
    def estimate(operands: Any) -> Estimate:
        size = operands[0].size
        return Estimate(size.scaled(CHARACTER_COST), Range(size.min // shrink, min(size.max * grow, UINT_MAX)))

    return Rule(estimate, lambda values, result: scale(size_of(values[0]), CHARACTER_COST))


LIBRARY: Final = (
    _convert("bool", BOOL, _to_bool, STRING),
    Function(
        "bytes",
        (
            glob((BYTES,), BYTES, _same),
            glob((STRING,), BYTES, lambda text: text.encode("utf-8", "replace"), _resized(1, 4)),
        ),
    ),
    _convert("double", DOUBLE, _to_double, INT, STRING, UINT),
    _convert("duration", DURATION, to_duration, INT, STRING),
    _convert("int", INT, _to_int, DOUBLE, DURATION, STRING, TIMESTAMP, UINT),
    Function(
        "string",
        (
            glob((STRING,), STRING, _same),
            glob((BYTES,), STRING, to_string, _resized(4, 1)),
            *(glob((source,), STRING, to_string) for source in (BOOL, DOUBLE, DURATION, INT, TIMESTAMP, UINT)),
        ),
    ),
    _convert("timestamp", TIMESTAMP, to_timestamp, INT, STRING),
    _convert("uint", UINT, _to_uint, DOUBLE, INT, STRING),
    Function("dyn", (glob((A,), DYN, _same),), guarded=False),
    Function("type", (glob((A,), type_type(A), type_of),), guarded=False),
)
