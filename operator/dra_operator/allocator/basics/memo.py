"""A dictionary with a limit, which drops its oldest entries.

Selectors come from users. Without a limit, what is kept per selector would grow while a slice stays unchanged.
"""

from __future__ import annotations

from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Memo(Generic[Key, Value]):
    """At most ``limit`` entries."""

    __slots__ = ("_entries", "_limit")

    def __init__(self, limit: int = 64) -> None:
        self._entries: dict[Key, Value] = {}
        self._limit = limit

    def get(self, key: Key) -> Value | None:
        """The value of the key, if it is still there."""
        return self._entries.get(key)

    def put(self, key: Key, value: Value) -> Value:
        """Keeps a value, and returns it."""
        if len(self._entries) >= self._limit:
            del self._entries[next(iter(self._entries))]
        self._entries[key] = value
        return value
