"""A dictionary that forgets: what was computed first goes first when there is too much.

Selectors come from users. Without a limit, everything that is remembered per selector would grow for as long
as a slice stays unchanged.
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
        """What was put under the key, if it is still there."""
        return self._entries.get(key)

    def put(self, key: Key, value: Value) -> Value:
        """Remembers a value, and hands it back."""
        if len(self._entries) >= self._limit:
            del self._entries[next(iter(self._entries))]
        self._entries[key] = value
        return value
