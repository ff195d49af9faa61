"""Remembers which keys changed since a revision, so that indexes need not look at everything."""

from __future__ import annotations

from typing import Generic, TypeVar

Key = TypeVar("Key")


class Journal(Generic[Key]):
    """Remembers the latest changes; older ones are forgotten, and ``since`` then says so."""

    _LIMIT = 20_000

    def __init__(self) -> None:
        self._entries: list[Key] = []
        self._forgotten = 0

    @property
    def revision(self) -> int:
        """Number of changes so far."""
        return self._forgotten + len(self._entries)

    def add(self, key: Key) -> None:
        """A key changed."""
        self._entries.append(key)
        if len(self._entries) > self._LIMIT:
            dropped = self._LIMIT // 2
            del self._entries[:dropped]
            self._forgotten += dropped

    def since(self, revision: int) -> set[Key] | None:
        """The keys changed after a revision; None if the revision is too old."""
        if revision < self._forgotten:
            return None
        return set(self._entries[revision - self._forgotten :])
