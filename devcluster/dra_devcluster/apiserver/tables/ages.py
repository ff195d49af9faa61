"""Ages as kubectl prints them: two units while they matter, one later (119s, 5m30s, 3h, 47h, 4d12h, 2y30d)."""

from datetime import datetime

from dra_api.values.times import parse_time

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_YEAR = 365 * _DAY
# Below how many seconds: main unit, its letter, smaller unit (0: not shown) and its letter.
_STEPS = (
    (2 * _MINUTE, 1, "s", 0, ""),
    (10 * _MINUTE, _MINUTE, "m", 1, "s"),
    (3 * _HOUR, _MINUTE, "m", 0, ""),
    (8 * _HOUR, _HOUR, "h", _MINUTE, "m"),
    (2 * _DAY, _HOUR, "h", 0, ""),
    (8 * _DAY, _DAY, "d", _HOUR, "h"),
    (2 * _YEAR, _DAY, "d", 0, ""),
    (8 * _YEAR, _YEAR, "y", _DAY, "d"),
)
UNKNOWN = "<unknown>"


def human_duration(seconds: float) -> str:
    """The text for a duration. A little below zero (clocks differ) counts as none, far below is invalid."""
    if seconds < -1:
        return "<invalid>"
    whole = max(0, int(seconds))
    for below, unit, letter, smaller, small_letter in _STEPS:
        if whole < below:
            rest = whole % unit // smaller if smaller else 0
            return f"{whole // unit}{letter}" + (f"{rest}{small_letter}" if rest else "")
    return f"{whole // _YEAR}y"


def age(timestamp: object, now: datetime) -> str:
    """Time since an RFC 3339 timestamp; `<unknown>` when there is none."""
    moment = parse_time(timestamp)
    return UNKNOWN if moment is None else human_duration((now - moment).total_seconds())
