"""What befalls requests and events: decided by the seed, what it is, and how often it was there before.

Each decision is a number of its own, so that a step that is left out changes nothing about the others; that makes short
scripts of long ones possible. What strikes has a name (``Strike``), and ``only`` leaves out all strikes but the named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import NamedTuple

LATE = 9.0
"""Seconds after which a write has no effect any more: the server drops it before the lease of its sender is over."""


_ALL = 1 << 32
Chances = tuple[tuple[str, float], ...]
"""Names of faults, each with how likely it is."""


class Odds(NamedTuple):
    """How likely each fault is in one history."""

    lost: float
    unanswered: float
    late: float
    refused: float
    slow: float
    doubled: float
    skipped: float
    last: float


class Fate(NamedTuple):
    """``before`` and ``after`` are the seconds to the server and back; ``strike`` is empty for the normal case."""

    before: float
    after: float
    strike: str = ""


class Weather:
    """One history's. ``strikes`` has the names of all that has struck."""

    def __init__(self, seed: int, *, only: Collection[str] | None = None) -> None:
        self._seed, self._only = seed, only
        self._met: Counter[str] = Counter()
        self.strikes: list[str] = []
        self.is_over = False
        most = (0.08, 0.12, 0.08, 0.15, 0.15, 0.2, 0.2, 0.1)
        calm = self.chance("calm") < 0.1
        self.odds = Odds(*(0.0 if calm else limit * self.chance("odds", n) for n, limit in enumerate(most)))

    def chance(self, *what: object) -> float:
        """A number from 0 to 1 that belongs to ``what``."""
        return self._mixed(" ".join(map(str, what))) / _ALL

    def of_request(self, name: str, *, is_write: bool) -> Fate:
        """What happens to the next request of this name."""
        odds = self.odds
        kinds = (("lost", odds.lost), ("refused", odds.refused))
        of_writes = (("unanswered", odds.unanswered), ("late", odds.late))
        return self._fate(name, (*kinds, *of_writes) if is_write else kinds)

    def of_event(self, name: str) -> Fate:
        """What happens to an event on its way; ``before`` are its seconds."""
        return self._fate(
            name, (("doubled", self.odds.doubled), ("skipped", self.odds.skipped), ("last", self.odds.last))
        )

    def _fate(self, name: str, chances: Chances) -> Fate:
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
        is_slow = (dice >> 16) / 0x10000 < self.odds.slow and not self.is_over
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
