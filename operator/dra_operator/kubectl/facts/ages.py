"""How long ago something was, as kubectl writes it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from dra_api.values.times import parse_time


def age(since: str, now: datetime) -> str:
    """``45s``, ``12m``, ``5h``, ``3d``; empty if the time is not known."""
    return age_of_first([since], now)


def age_of_first(times: Iterable[str], now: datetime) -> str:
    """The same for the earliest of the times that are known."""
    moments = [moment for time in times if (moment := parse_time(time)) is not None]
    if not moments:
        return ""
    passed = max(0, int((now - min(moments)).total_seconds()))
    for unit, length, most in (("s", 1, 120), ("m", 60, 120), ("h", 3600, 48)):
        if passed < most * length:
            return f"{passed // length}{unit}"
    return f"{passed // 86400}d"
