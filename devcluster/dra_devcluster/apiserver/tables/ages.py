"""Ages as kubectl prints them: two units while they matter, one later (119s, 5m30s, 3h, 47h, 4d12h, 2y30d)."""

from datetime import datetime

from dra_api.values.times import parse_time

_MINUTE_SECONDS, _HOUR_SECONDS, _DAY_SECONDS = 60, 3600, 86400
_YEAR = 365 * _DAY_SECONDS
# Below how many seconds: main unit, its letter, smaller unit (0: not shown) and its letter.
_STEPS = (
    (2 * _MINUTE_SECONDS, 1, "s", 0, ""),
    (10 * _MINUTE_SECONDS, _MINUTE_SECONDS, "m", 1, "s"),
    (3 * _HOUR_SECONDS, _MINUTE_SECONDS, "m", 0, ""),
    (8 * _HOUR_SECONDS, _HOUR_SECONDS, "h", _MINUTE_SECONDS, "m"),
    (2 * _DAY_SECONDS, _HOUR_SECONDS, "h", 0, ""),
    (8 * _DAY_SECONDS, _DAY_SECONDS, "d", _HOUR_SECONDS, "h"),
    (2 * _YEAR, _DAY_SECONDS, "d", 0, ""),
    (8 * _YEAR, _YEAR, "y", _DAY_SECONDS, "d"),
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
