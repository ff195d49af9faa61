"""How long ago something was, as kubectl writes it."""

from __future__ import annotations

from datetime import datetime

from dra_api.values.times import parse_time


def age(since: str, now: datetime) -> str:
    """``45s``, ``12m``, ``5h``, ``3d``; empty if the time is not known."""
    moment = parse_time(since)
    if moment is None:
        return ""
    passed = max(0, int((now - moment).total_seconds()))
    for unit, length, most in (("s", 1, 120), ("m", 60, 120), ("h", 3600, 48)):
        if passed < most * length:
            return f"{passed // length}{unit}"
    return f"{passed // 86400}d"
