"""Timestamps and durations: their texts, and the parts of a date."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo

from dra_cel.basics.declarations import Function, method
from dra_cel.basics.errors import EvaluationError
from dra_cel.basics.types import DURATION, INT, STRING, TIMESTAMP
from dra_cel.basics.values import INT_MAX, INT_MIN, NANOS, Duration, Timestamp

_UNITS: Final = {
    "ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "s": NANOS, "m": 60 * NANOS, "h": 3600 * NANOS,
}  # fmt: skip
_PART: Final = re.compile(r"([0-9]*)(?:\.([0-9]*))?(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_TIMESTAMP: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{1,2}):([0-9]{2}):([0-9]{2})(?:[.,]([0-9]+))?"
    r"(?:Z|([+-])([0-9]{2}):([0-9]{2}))",
    re.ASCII,
)
_OFFSET: Final = re.compile(r"([+-]?[0-9]+):([+-]?[0-9]+)", re.ASCII)
_OFFSET_DIGITS: Final = 25
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DURATION_CHARACTERS: Final = 1000
_DAY_SECONDS: Final = 86400
_FOUR_CENTURIES_DAYS: Final = 146097
_FIRST_RULES: Final = -(_FOUR_CENTURIES_DAYS * _DAY_SECONDS) // 2
_LAST_RULES: Final = 19 * _FOUR_CENTURIES_DAYS * _DAY_SECONDS


def _bad(kind: str, text: str) -> EvaluationError:
    return EvaluationError("conversion", f"type conversion error from 'string' to '{kind}': {text[:100]!r}")


def parse_duration(text: str) -> Duration:
    """``1h30m``, ``1.5s``, ``-2ms``. Raises EvaluationError."""
    body = text[1:] if text[:1] in ("+", "-") else text
    if body == "0":
        return Duration(0)
    total = at = 0
    while at < len(body) <= _DURATION_CHARACTERS:
        part = _PART.match(body, at)
        if part is None or not (part[1] or part[2]):
            raise _bad("google.protobuf.Duration", text)
        unit = _UNITS[part[3]]
        total += int(part[1] or 0) * unit
        if part[2]:
            total += int(part[2]) * unit // 10 ** len(part[2])
        at = part.end()
    total = -total if text.startswith("-") else total
    if not body or len(body) > _DURATION_CHARACTERS or not INT_MIN <= total <= INT_MAX:
        raise _bad("google.protobuf.Duration", text)
    return Duration(total)


def duration_text(duration: Duration) -> str:
    """Seconds with as many decimals as needed: ``5400s``, ``0.25s``."""
    whole, rest = divmod(abs(duration.nanos), NANOS)
    # Rounded like the reference: a double has too few digits for long durations with nanoseconds.
    digits = f"{Decimal(repr(float(whole) + rest / 1e9)):f}".removesuffix(".0")
    return f"{'-' if duration.nanos < 0 else ''}{digits}s"


def parse_timestamp(text: str) -> Timestamp:
    """RFC 3339. Raises EvaluationError."""
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        raise _bad("google.protobuf.Timestamp", text)
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    offset = (int(match[9]) * 60 + int(match[10])) * 60 if match[8] else 0
    try:
        # Year 0 is valid as text but out of range as a value: compute with the same day four centuries later.
        moment = datetime(year + 400 if year < 400 else year, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError:
        raise _bad("google.protobuf.Timestamp", text) from None
    if match[8] and (int(match[9]) > 24 or int(match[10]) > 60):
        raise _bad("google.protobuf.Timestamp", text)
    elapsed = moment - _EPOCH
    seconds = elapsed.days * 86400 + elapsed.seconds - (_FOUR_CENTURIES_DAYS * _DAY_SECONDS if year < 400 else 0)
    offset = -offset if match[8] == "-" else offset
    fraction = int((match[7] or "")[:9].ljust(9, "0"))
    return Timestamp((seconds - offset) * NANOS + fraction, offset)


def timestamp_text(moment: Timestamp) -> str:
    """RFC 3339 in the offset in which the timestamp was written, with the decimals that it has."""
    day, second = _local(moment, moment.offset)
    clock = f"{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
    fraction = f".{moment.nanos % NANOS:09d}".rstrip("0").rstrip(".")
    zone = "Z"
    if moment.offset:
        hours, minutes = divmod(abs(moment.offset) // 60, 60)
        zone = f"{'-' if moment.offset < 0 else '+'}{hours:02d}:{minutes:02d}"
    return f"{day.year:04d}-{day.month:02d}-{day.day:02d}T{clock}{fraction}{zone}"


class _Day(NamedTuple):
    """A day of the Gregorian calendar, in any year."""

    year: int
    month: int
    day: int
    of_year: int
    of_week: int


def _local(moment: Timestamp, offset: int) -> tuple[_Day, int]:
    """The day, and the second of the day, at an offset of so many seconds east of Greenwich."""
    days, second = divmod(moment.nanos // NANOS + offset, _DAY_SECONDS)
    cycle, days = divmod(days, _FOUR_CENTURIES_DAYS)
    found = _EPOCH + timedelta(days=days)  # the calendar repeats after four centuries
    of_year = found.timetuple().tm_yday - 1
    return _Day(found.year + 400 * cycle, found.month, found.day, of_year, found.isoweekday() % 7), second


def _offset(moment: Timestamp, zone: str) -> int:
    """Seconds east of Greenwich in a zone given by IANA name or as ``-08:00``. Raises EvaluationError."""
    if ":" in zone:
        return _numeric_offset(zone)
    if zone in ("", "UTC", "Local"):
        return 0
    try:
        found = ZoneInfo(zone)
    except (LookupError, ValueError, OSError):
        raise EvaluationError("conversion", f"unknown time zone {zone[:100]}") from None
    # datetime ends with the years 1 and 9999. No rules are older than 1800, and they repeat after four centuries.
    seconds = max(moment.nanos // NANOS, _FIRST_RULES)
    seconds -= _FOUR_CENTURIES_DAYS * _DAY_SECONDS if seconds > _LAST_RULES else 0
    offset = (_EPOCH + timedelta(seconds=seconds)).astimezone(found).utcoffset()
    return int(offset.total_seconds()) if offset is not None else 0


def _numeric_offset(text: str) -> int:
    match = _OFFSET.fullmatch(text)
    hours, minutes = (
        (int(part) if len(part) <= _OFFSET_DIGITS else INT_MAX + 1 for part in match.groups()) if match else (0, 0)
    )
    if match is None or not (INT_MIN <= hours <= INT_MAX and INT_MIN <= minutes <= INT_MAX):
        raise EvaluationError("conversion", f"invalid time zone offset {text[:100]!r}")
    total = hours * 60 - minutes if text.startswith("-") else hours * 60 + minutes
    nanos = (total * 60 * NANOS - INT_MIN) % 2**64 + INT_MIN  # 64 bits, as the reference multiplies
    return int(nanos / NANOS)


_DATE_PARTS: Final[dict[str, Callable[[_Day, int], int]]] = {
    "getFullYear": lambda day, second: day.year,
    "getMonth": lambda day, second: day.month - 1,
    "getDayOfYear": lambda day, second: day.of_year,
    "getDayOfMonth": lambda day, second: day.day - 1,
    "getDate": lambda day, second: day.day,
    "getDayOfWeek": lambda day, second: day.of_week,
    "getHours": lambda day, second: second // 3600,
    "getMinutes": lambda day, second: second // 60 % 60,
    "getSeconds": lambda day, second: second % 60,
}
_SPANS: Final = {"getHours": 3600 * NANOS, "getMinutes": 60 * NANOS, "getSeconds": NANOS, "getMilliseconds": 10**6}


def _milliseconds(moment: Timestamp, zone: str = "") -> int:
    _offset(moment, zone)  # Offsets are whole seconds: the zone changes nothing, but it must exist.
    return moment.nanos % NANOS // 10**6


def _part(name: str) -> Callable[..., int]:
    if name == "getMilliseconds":
        return _milliseconds
    pick = _DATE_PARTS[name]
    return lambda moment, zone="": pick(*_local(moment, _offset(moment, zone)))


def _whole(unit: int) -> Callable[[Any], int]:
    return lambda span: abs(span.nanos) // unit * (1 if span.nanos >= 0 else -1)


def _function(name: str) -> Function:
    overloads = [method((TIMESTAMP,), INT, _part(name)), method((TIMESTAMP, STRING), INT, _part(name))]
    if name in _SPANS:
        overloads.append(method((DURATION,), INT, _whole(_SPANS[name])))
    return Function(name, tuple(overloads))


LIBRARY: Final = tuple(_function(name) for name in (*_DATE_PARTS, "getMilliseconds"))
