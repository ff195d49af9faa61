"""What was announced last of each object, because a reason that stays the same is no news."""

from __future__ import annotations

from collections import OrderedDict

LIMIT = 1000  # objects remembered; the oldest is forgotten first, and may be announced again


class Announced:
    """The last text about each of the last ``LIMIT`` objects."""

    def __init__(self) -> None:
        self._texts: OrderedDict[str, str] = OrderedDict()

    def is_news(self, about: str, text: str) -> bool:
        """Whether the object's last text was another one; from now on this is the last."""
        if self._texts.get(about) == text:
            return False
        self._texts[about] = text
        if len(self._texts) > LIMIT:
            self._texts.popitem(last=False)
        return True

    def forget(self, about: str) -> None:
        """The same text will be news again."""
        self._texts.pop(about, None)
