"""What one attempt at preemption may cost: it pauses as searches do, and ends when its steps are spent."""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from dra_operator.scheduling.cycle.pause import PAUSE_STEPS, Elapsed, Pause

MOST_PREEMPTION_STEPS: Final = 100_000
"""Steps of the allocator, about half a second: an attempt that has taken so many looks at no further node."""
MOST_SMALLER_SETS: Final = 128
"""Questions of an attempt whether fewer pods of one priority do as well."""


class StepsSpent(Exception):
    """The attempt has taken the steps that it may take."""


class Meter:
    """Counts steps of the allocator."""

    def __init__(self, most: int = MOST_PREEMPTION_STEPS) -> None:
        self._left, self._since_pause = most, 0
        self.smaller_sets = MOST_SMALLER_SETS
        """So many are left."""

    def charge(self, steps: int) -> None:
        """Work was done, and there was a pause for it already. Raises StepsSpent."""
        self._left -= steps
        if self._left < 0:
            raise StepsSpent

    def spend(self, steps: int) -> Generator[Pause, Elapsed, None]:
        """Work was done; pauses if it was much. Raises StepsSpent."""
        self.charge(steps)
        self._since_pause += steps
        if self._since_pause >= PAUSE_STEPS:
            self._since_pause = 0
            yield Pause.SEARCHING
