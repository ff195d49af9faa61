"""The HTTP header ``Retry-After``: a number of seconds, or a date (RFC 9110, 10.2.3)."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime


def seconds_of(header: str | None) -> float | None:
    """The seconds to wait from now; None when the header is missing or says nothing usable."""
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        return _until(header)
    return seconds if 0 <= seconds < math.inf else None


def _until(date: str) -> float | None:
    try:
        then = parsedate_to_datetime(date)
    except (ValueError, OverflowError):  # the latter for a number of many digits
        return None
    if then.tzinfo is None:  # the zone "-0000" means UTC, origin unknown
        then = then.replace(tzinfo=UTC)
    return max(0.0, (then - datetime.now(UTC)).total_seconds())
