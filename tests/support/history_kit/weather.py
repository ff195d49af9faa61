"""What befalls requests and events: decided by the seed, what it is, and how often it was there before.

Each decision is a number of its own, so that a step that is left out changes nothing about the others; that makes short
scripts of long ones possible. What strikes has a name, and ``only`` leaves out all strikes but the named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import NamedTuple

_ALL = 1 << 32
Chances = tuple[tuple[str, float], ...]
"""Names of faults, each with how likely it is."""


class Fate(NamedTuple):
    """``before`` and ``after`` are the seconds to the server and back; ``strike`` is empty for the normal case."""

    before: float
    after: float
    strike: str = ""


class Weather:
    """One history's. ``strikes`` has the names of all that has struck; ``slow`` is the share of what takes seconds."""

    def __init__(self, seed: int, *, only: Collection[str] | None = None) -> None:
        self._seed, self._only = seed, only
        self._met: Counter[str] = Counter()
        self.strikes: list[str] = []
        self.is_over = False
        self.slow = 0.0

    def chance(self, *what: object) -> float:
        """A number from 0 to 1 that belongs to ``what``."""
        return self._mixed(" ".join(map(str, what))) / _ALL

    def fate(self, name: str, chances: Chances) -> Fate:
        """What happens to the next thing of this name."""
        self._met[name] += 1
        name = f"{name} #{self._met[name]}"
        first = self._mixed(name)
        before, after = self._seconds(first), self._seconds(self._mixed(name, 2))
        return Fate(before, after, "" if self.is_over else self._strike(name, chances))

    def _mixed(self, name: str, salt: int = 0) -> int:
        return hash((name, self._seed, salt)) & (_ALL - 1)  # the same in every process if PYTHONHASHSEED is

    def _seconds(self, dice: int) -> float:
        """Usually some milliseconds, sometimes some seconds; the two halves of a number decide."""
        share = (dice & 0xFFFF) / 0x10000
        is_slow = (dice >> 16) / 0x10000 < self.slow and not self.is_over
        return 0.001 + share * (3 if is_slow else 0.02)

    def _strike(self, name: str, chances: Chances) -> str:
        dice = self._mixed(name, 1) / _ALL
        for kind, odds in chances:
            if dice < odds:
                strike = f"{kind}: {name}"
                if self._only is not None and strike not in self._only:
                    return ""
                self.strikes.append(strike)
                return kind
            dice -= odds
        return ""
