"""Remembers which drivers other schedulers allocate, when they have and want nothing just now.

The first pod of another scheduler after a quiet hour comes as unexpectedly as the first one of all: it may be decided
before the operator has heard of it. What another scheduler did in the last day says that it may do so again. So devices
of these drivers are given away with care all the time, which costs a pod a second and more before it is bound.

The memory stands on the Lease, so that the next leader has it; what is allocated when that starts it sees by itself.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from typing import Final

from dra_operator.scheduling import ANY_DRIVER

logger = logging.getLogger(__name__)

KNOWN_DRIVER_SECONDS: Final = 24 * 3600.0
KNOWN_DRIVER_STEP_SECONDS: Final = 600.0
"""What is remembered changes this often, and no oftener."""
MOST_DRIVERS: Final = 200
"""Drivers that are remembered; more than these stand for all."""
LONGEST_TEXT_CHARACTERS: Final = 64_000


class DriverMemory:
    """``met`` a driver, ``knows`` it for a day; ``text`` is what the next leader may ``recall``.

    ``clock`` gives seconds since 1970, which do not begin anew with a process.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._met: dict[str, float] = {}

    def met(self, driver: str) -> None:
        """Another scheduler gave devices of the driver to a pod, or such a pod gave them back."""
        if driver not in self._met and len(self._met) >= MOST_DRIVERS:
            driver = ANY_DRIVER
        self._met[driver] = self._clock()

    def knows(self, driver: str) -> bool:
        """Return whether another scheduler allocated devices of the driver, or may have, during the last day."""
        latest = max(self._met.get(driver, 0.0), self._met.get(ANY_DRIVER, 0.0))
        if driver == ANY_DRIVER:
            latest = max(self._met.values(), default=0.0)
        return latest > 0 and self._clock() - latest < KNOWN_DRIVER_SECONDS

    @property
    def text(self) -> str:
        """Return the drivers with the time when each was met last; empty if there is none."""
        now, met = self._clock(), dict(self._met)  # a copy: the thread of the Lease asks
        kept = {
            driver: int(at - at % KNOWN_DRIVER_STEP_SECONDS)
            for driver, at in met.items()
            if now - at < KNOWN_DRIVER_SECONDS
        }
        return json.dumps(kept, sort_keys=True, separators=(",", ":")) if kept else ""

    def recall(self, text: str) -> None:
        """Take over what the last leader has left. A text that cannot be read is forgotten."""
        if not text:
            return
        try:
            found: dict[str, float] = json.loads(text[:LONGEST_TEXT_CHARACTERS])
            read = {str(driver): float(at) for driver, at in found.items()}
        except (ValueError, TypeError, AttributeError):
            logger.warning("the drivers on the Lease that other schedulers allocate cannot be read, and are forgotten")
            return
        now = self._clock()
        for driver, at in sorted(read.items(), key=lambda item: -item[1])[:MOST_DRIVERS]:
            self._met[driver] = max(self._met.get(driver, 0.0), min(at, now))
