"""Flags in the query of a URL."""

from __future__ import annotations

from collections.abc import Mapping


def flag(query: Mapping[str, str], name: str) -> bool:
    """A flag is set by its mere presence, unless it says ``false`` or ``0``."""
    return name in query and query[name].lower() not in ("false", "0")
