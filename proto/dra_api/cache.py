"""A cache with a limit of bytes, which drops what was used least recently.

What users write decides how large an entry is. With a limit of entries, a few thousand large ones fill the memory; with
a limit of bytes they only displace each other. An entry larger than ``largest`` is not kept at all, so that one large
object cannot displace everything else.

``weigh`` says what an entry holds, in bytes: an honest upper bound, measured once, of key and value together.
``ENTRY_BYTES`` is added for the cache's own book-keeping.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, Final, Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")

ENTRY_BYTES: Final = 256
"""Bytes of an entry beside key and value: its place in the dictionary and in the order, its weight, its tuple."""
SHARE: Final = 8
"""An entry takes at most this part of the limit, unless the cache says otherwise."""
SHORT_CHARACTERS: Final = 64
"""Characters of a text that ``remember_short`` remembers."""


class Cache(Generic[Key, Value]):
    """Entries of at most ``limit`` bytes in sum. Threads may share it."""

    __slots__ = ("_entries", "_largest", "_limit", "_lock", "_weigh", "used")

    def __init__(self, limit: int, weigh: Callable[[Key, Value], int], *, largest: int | None = None) -> None:
        self._entries: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._limit = limit
        self._largest = limit // SHARE if largest is None else largest
        self._weigh = weigh
        self._lock = threading.Lock()
        self.used = 0
        """Bytes of all entries."""

    def get(self, key: Key) -> Value | None:
        """The value of the key, if it is still there."""
        found = self._entries.get(key)
        if found is None:
            return None
        try:  # noqa: SIM105  # a context manager takes longer than the rest of the look-up
            self._entries.move_to_end(key)
        except KeyError:  # another thread has dropped it meanwhile
            pass
        return found[0]

    def put(self, key: Key, value: Value) -> Value:
        """Keeps a value in place of the key's last one, unless it is too large, and returns it."""
        weight = ENTRY_BYTES + self._weigh(key, value)
        with self._lock:
            self._drop(key)
            if weight <= self._largest:
                self._entries[key] = value, weight
                self.used += weight
                while self.used > self._limit:
                    self._drop(next(iter(self._entries)))
        return value

    def pop(self, key: Key) -> Value | None:
        """Forgets the key, and returns its value if it was there."""
        with self._lock:
            return self._drop(key)

    def clear(self) -> None:
        """Forgets everything."""
        with self._lock:
            self._entries.clear()
            self.used = 0

    def _drop(self, key: Key) -> Value | None:
        found = self._entries.pop(key, None)
        if found is None:
            return None
        self.used -= found[1]
        return found[0]

    def __len__(self) -> int:
        return len(self._entries)


def remember_short(entries: int) -> Callable[[Callable[..., Value]], Callable[..., Value]]:
    """Remembers what a function makes of short texts, its first argument; of longer ones it makes it again.

    An entry takes less than 1 kB, so the number of entries bounds the bytes. The standard library's cache is ten times
    as fast as ``Cache``, and parsing short texts would hardly be slower than that.
    """

    def decorate(function: Callable[..., Value]) -> Callable[..., Value]:
        remembered = lru_cache(maxsize=entries)(function)

        @wraps(function)
        def answer(text: str, *more: Any) -> Value:
            return remembered(text, *more) if len(text) <= SHORT_CHARACTERS else function(text, *more)

        return answer

    return decorate
