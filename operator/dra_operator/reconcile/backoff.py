"""How long a failed key waits before it is tried again (claim-controller.md section 2).

Two rules, the longer wait counts: each key doubles its own wait with every failure in a row, and all keys together
draw from one bucket, so that a broken API server is not hammered by ten thousand keys that are each still polite.
"""

from __future__ import annotations

from collections.abc import Callable

from dra_operator.cluster import Key

FIRST = 0.005
LONGEST = 1000.0
RATE = 10.0  # retries per second of all keys together
BURST = 100


class Bucket:
    """A bucket of ``burst`` tokens that refills at ``rate`` per second; may be overdrawn at the price of waiting."""

    def __init__(self, rate: float, burst: float, clock: Callable[[], float]) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._tokens, self._at = burst, clock()

    def draw(self) -> float:
        """Take one token; how many seconds to wait until it is really there."""
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate) - 1
        self._at = now
        return max(0.0, -self._tokens / self._rate)


class Backoff:
    """Waits per key, in seconds."""

    def __init__(self, clock: Callable[[], float], *, rate: float = RATE, burst: float = BURST) -> None:
        self._bucket = Bucket(rate, burst, clock)
        self._failures: dict[Key, int] = {}

    def failed(self, key: Key) -> float:
        """Count a failure; how long to wait before the next attempt."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        own = LONGEST if failures > 30 else min(FIRST * 2**failures, LONGEST)
        return max(own, self._bucket.draw())

    def succeeded(self, key: Key) -> None:
        """The key starts from the shortest wait again."""
        self._failures.pop(key, None)

    def failures(self, key: Key) -> int:
        """How often the key failed in a row."""
        return self._failures.get(key, 0)
