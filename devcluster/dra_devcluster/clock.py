"""The present time as the API writes it, for the server and the node agent."""

from __future__ import annotations

from datetime import UTC, datetime

from dra_api.values import format_time


def now() -> str:
    """RFC 3339, whole seconds, UTC."""
    return format_time(datetime.now(UTC))
