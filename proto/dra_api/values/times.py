"""Times as the API writes them: RFC 3339 in UTC, with whole seconds, or with microseconds in a Lease."""

from __future__ import annotations

from datetime import UTC, datetime


def parse_time(text: object) -> datetime | None:
    """The moment; None if the text is missing, malformed, or names no zone."""
    try:
        moment = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return moment if moment is not None and moment.tzinfo is not None else None


def format_time(moment: datetime) -> str:
    """The text for a moment with a zone."""
    return _text(moment, "seconds")


def format_micro_time(moment: datetime) -> str:
    """The same with microseconds."""
    return _text(moment, "microseconds")


def _text(moment: datetime, timespec: str) -> str:
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec=timespec) + "Z"  # four digits for any year
