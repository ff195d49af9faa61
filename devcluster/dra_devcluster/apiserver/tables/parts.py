"""Parts of cells: ages, counts, names.

Ages as kubectl prints them: two units while they matter, one later (119s, 5m30s, 3h, 47h, 4d12h, 2y30d).

What the cells of many kinds are made of.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from dra_api.values import parse_time

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


Json = dict[str, Any]
NONE = "<none>"


def name(obj: Json) -> str:
    """The object's name."""
    return str(obj["metadata"].get("name", ""))


def created(obj: Json, now: datetime) -> str:
    """The AGE column."""
    return age(obj["metadata"].get("creationTimestamp"), now)


def spec_of(obj: Json) -> Json:
    """The spec, empty when there is none."""
    return obj.get("spec") or {}


def status_of(obj: Json) -> Json:
    """The status, empty when there is none."""
    return obj.get("status") or {}


def joined(values: Iterable[Any]) -> str:
    """The values with commas between."""
    return ",".join(str(value) for value in values)


def selector_text(selector: Json | None) -> str:
    """A label selector as text; `<none>` when it is absent or empty."""
    selector = selector or {}
    terms = [f"{key}={value}" for key, value in sorted((selector.get("matchLabels") or {}).items())]
    for term in selector.get("matchExpressions") or []:
        values = f"({joined(term.get('values') or [])})"
        key, operator = term.get("key", ""), term.get("operator")
        in_words = {
            "In": f"{key} in {values}",
            "NotIn": f"{key} notin {values}",
            "Exists": key,
            "DoesNotExist": f"!{key}",
        }
        terms.append(in_words.get(operator or "", key))
    return ",".join(terms) or NONE


def label_text(labels: Json | None) -> str:
    return selector_text({"matchLabels": labels or {}})
