"""What befalls the requests and events of a cluster (``history_kit.game``), and how likely each fault is."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from history_kit import game
from history_kit.game import Fate

LATE = 9.0
"""Seconds after which a write has no effect any more: the server drops it before the lease of its sender is over."""


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


class Weather(game.Weather):
    """One history's."""

    def __init__(self, seed: int, *, only: Collection[str] | None = None) -> None:
        super().__init__(seed, only=only)
        most = (0.08, 0.12, 0.08, 0.15, 0.15, 0.2, 0.2, 0.1)
        calm = self.chance("calm") < 0.1
        self.odds = Odds(*(0.0 if calm else limit * self.chance("odds", n) for n, limit in enumerate(most)))
        self.slow = self.odds.slow

    def of_request(self, name: str, *, is_write: bool) -> Fate:
        """What happens to the next request of this name."""
        odds = self.odds
        kinds = (("lost", odds.lost), ("refused", odds.refused))
        of_writes = (("unanswered", odds.unanswered), ("late", odds.late))
        return self.fate(name, (*kinds, *of_writes) if is_write else kinds)

    def of_event(self, name: str) -> Fate:
        """What happens to an event on its way; ``before`` are its seconds."""
        return self.fate(
            name, (("doubled", self.odds.doubled), ("skipped", self.odds.skipped), ("last", self.odds.last))
        )
