"""How long a failed key waits before it is tried again (claim-controller.md section 2).

Two rules, the longer wait counts: each key doubles its own wait with every failure in a row, and all keys together
draw from one bucket, so that ten thousand keys that fail for the first time do not overload a broken API server.

Attempts to place pods have waits of their own: a thousand pods with a broken selector must neither use up the bucket of
the claims that others wait for, nor be planned again a thousand times a second.
"""

from __future__ import annotations

from collections.abc import Callable

from dra_operator.cluster import Key

from .pace import Waits


class Bucket:
    """A bucket of ``burst`` tokens that refills at ``rate`` per second; may be overdrawn at the price of waiting."""

    def __init__(self, rate: float, burst: float, clock: Callable[[], float]) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._tokens, self._at = burst, clock()

    def draw(self) -> float:
        """Take one token; how many seconds to wait until it exists."""
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate) - 1
        self._at = now
        return max(0.0, -self._tokens / self._rate)


class Backoff:
    """Waits per key, in seconds."""

    def __init__(self, clock: Callable[[], float], waits: Waits) -> None:
        self._bucket = Bucket(waits.rate, waits.burst, clock)
        self._waits = waits
        self._failures: dict[Key, int] = {}

    def failed(self, key: Key) -> float:
        """Count a failure; how long to wait before the next attempt."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        first, longest = self._waits.first, self._waits.longest
        own = longest if failures > 30 else min(first * 2**failures, longest)
        return max(own, self._bucket.draw())

    def succeeded(self, key: Key) -> None:
        """The key starts from the shortest wait again."""
        self._failures.pop(key, None)

    def failures(self, key: Key) -> int:
        """How often the key failed in a row."""
        return self._failures.get(key, 0)
