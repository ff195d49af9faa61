"""How fast a publisher may send requests: so many per second, some more at once, none while the server asks for a rest.

A bucket holds ``burst`` tokens and gets ``rate`` new ones per second; a request takes one. Intervals have a random
part, because a thousand nodes share one API server and would otherwise come in step.
"""

from __future__ import annotations

import asyncio
import random

_SPREAD_SHARE = 0.25


def spread(seconds: float) -> float:
    """The interval, up to a quarter longer at random."""
    return seconds * (1 + _SPREAD_SHARE * random.random())


class RateLimit:
    """Hands out turns, in seconds of any one clock."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate, self._burst = rate, burst
        self._tokens, self._at = float(burst), 0.0
        self._rest_until = 0.0

    def take(self, now: float) -> float:
        """Take a turn; returns the seconds to wait for it."""
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate) - 1
        self._at = now
        return max(0.0, -self._tokens / self._rate, self._rest_until - now)

    def rest(self, now: float, seconds: float) -> None:
        """The server asked to send nothing for so long."""
        self._rest_until = max(self._rest_until, now + spread(seconds))

    async def turn(self) -> None:
        """Wait for a turn."""
        await asyncio.sleep(self.take(asyncio.get_running_loop().time()))
