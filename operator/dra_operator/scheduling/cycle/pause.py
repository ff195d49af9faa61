"""Pauses, at which a decision lets other work run."""

from __future__ import annotations

from enum import Enum
from typing import Final

Elapsed = float | None
"""What a caller with a clock sends at a pause: the seconds of search so far."""

PAUSE_STEPS: Final = 500
"""Steps of the allocator between two pauses: a few milliseconds."""


class Pause(Enum):
    """What a decision is doing when it pauses."""

    INDEXING = "bringing the index up to date, which other decisions gain from"
    SEARCHING = "looking for devices on nodes, for this pod alone"
