"""Remembers the last event of each object, so that a reason that stays the same is told once."""

from __future__ import annotations

from typing import Final

from dra_api.cache import Cache

KEPT_EVENT_BYTES: Final = 2 << 20  # the object announced longest ago is forgotten first, and may be announced again


class Announced:
    """The last text about each of the last objects."""

    def __init__(self) -> None:
        self._texts: Cache[str, str] = Cache(KEPT_EVENT_BYTES, lambda about, text: 256 + 4 * (len(about) + len(text)))

    def is_news(self, about: str, text: str) -> bool:
        """Whether the object's last text was another one; from now on this is the last."""
        if self._texts.get(about) == text:
            return False
        self._texts.put(about, text)
        return True

    def forget(self, about: str) -> None:
        """The same text will be news again."""
        self._texts.pop(about)
