"""Remembers when something was done last, such as to the pod of a UID."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

KEPT_RECENT_THINGS: Final = 10_000
"""The one that was done the longest time ago is forgotten first."""


class Recently:
    """``clock`` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._done: OrderedDict[str, float] = OrderedDict()

    def add(self, what: str) -> None:
        """It is done now."""
        self._done.pop(what, None)
        self._done[what] = self._clock()
        if len(self._done) > KEPT_RECENT_THINGS:
            self._done.popitem(last=False)

    def discard(self, what: str) -> None:
        """It was not done after all."""
        self._done.pop(what, None)

    def age(self, what: str) -> float | None:
        """Seconds since it was done; None if it never was, or that is forgotten."""
        done = self._done.get(what)
        return self._clock() - done if done is not None else None

    def within(self, what: str, seconds: float) -> bool:
        """Whether it was done in the last so many seconds."""
        age = self.age(what)
        return age is not None and age < seconds

    def __contains__(self, what: object) -> bool:
        return what in self._done
