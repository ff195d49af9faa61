"""How long a failed key waits before it is tried again (claim-controller.md section 2).

Two rules, the longer wait counts: each key doubles its own wait with every failure in a row, and the keys of a
namespace draw from one bucket, so that ten thousand keys that fail for the first time do not overload a broken API
server. The namespaces share the retries evenly: ten thousand keys of one of them do not delay the one key of another.

A server that refuses is asked ever more seldom. One that did not answer, or was busy, may answer by now, and pods wait
for it: such a failure is followed by a wait of at most ``PASSING_SECONDS``.

Attempts to place pods have waits of their own: a thousand pods with a broken selector must neither use up the bucket of
the claims that others wait for, nor be planned again a thousand times a second.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from dra_operator.cache import Key
from dra_operator.controllers.shared.timing import BackoffSettings

PASSING_SECONDS = 10.0
"""Longest seconds between two attempts while the server does not answer; as long kube-scheduler backs off at most."""


class Buckets:
    """A bucket of tokens for each namespace that has failures; each may be overdrawn at the price of waiting.

    All together refill at ``rate`` per second and hold ``burst`` tokens, in equal parts for those that are not full.
    Only these are kept. A wait stays as it was said when further namespaces come, so that ``n`` of them may get up to
    ``1 + 1/2 + ... + 1/n`` times as many tokens: a hundred five times as many.
    """

    def __init__(self, rate: float, burst: float, clock: Callable[[], float]) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._full_at: dict[str, float] = {}

    def draw(self, namespace: str) -> float:
        """Take one token of the namespace; how many seconds to wait until it exists."""
        now = self._clock()
        self._full_at = {name: at for name, at in self._full_at.items() if at > now}
        at = self._full_at.setdefault(namespace, now) + len(self._full_at) / self._rate
        self._full_at[namespace] = at
        return max(0.0, at - now - self._burst / self._rate)


class Backoff:
    """Waits per key, in seconds."""

    def __init__(self, clock: Callable[[], float], waits: BackoffSettings) -> None:
        self._buckets = Buckets(waits.rate, waits.burst, clock)
        self._waits = waits
        self._failures: dict[Key, int] = {}

    def failed(self, key: Key, at_most: float = math.inf) -> float:
        """Count a failure; return the seconds before the next attempt.

        ``at_most``: the longest wait after this failure, unless too many keys of the namespace fail.
        """
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        first, longest = self._waits.first, self._waits.longest
        own = longest if failures > 30 else min(first * 2**failures, longest)
        return max(min(own, at_most), self._buckets.draw(key.namespace))

    def succeeded(self, key: Key) -> None:
        """The key starts from the shortest wait again."""
        self._failures.pop(key, None)

    def failures(self, key: Key) -> int:
        """How often the key failed in a row."""
        return self._failures.get(key, 0)
