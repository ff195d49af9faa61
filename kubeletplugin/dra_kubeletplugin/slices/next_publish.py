"""When each pool is to be synchronised.

What the driver publishes is synchronised at once. A foreign change is undone when the pool has been quiet for some
time, but at the latest after twice that time, so that a pool that never becomes quiet is looked at as well. A failure
is retried after an interval that doubles, with a random part, so that a thousand nodes do not come back in step. A pool
may have a moment for each of these reasons. The earliest counts, and a sync settles all that are due by then.
Spec: RS-02, RS-03.
"""

from __future__ import annotations

from enum import Enum, auto

from .rate_limit import spread

_FIRST_RETRY_SECONDS = 0.005
_LONGEST_RETRY_SECONDS = 60.0
_REFUSED_RETRY_SECONDS = 300.0
_LATEST_FACTOR = 2  # times the quiet time


class Reason(Enum):
    """Why a pool is due; each reason has one moment per pool, the latest one given."""

    DESIRED = auto()
    EVENT = auto()
    RETRY = auto()
    OVERLAY_ENDS = auto()


class NextPublish:
    """Moments by pool and reason, in seconds of any one clock."""

    def __init__(self) -> None:
        self._moments: dict[tuple[str, Reason], float] = {}
        self._unrest: dict[str, float] = {}  # pools with foreign changes, and the moment of the first one
        self._failures: dict[str, int] = {}

    def add(self, pool: str, reason: Reason, moment: float) -> None:
        """The pool is due at ``moment`` for this reason, in place of an earlier moment for the same reason."""
        self._moments[pool, reason] = moment

    def changed(self, pool: str, now: float, quiet: float) -> None:
        """Another client changed the pool: due after ``quiet`` seconds without further changes."""
        latest = self._unrest.setdefault(pool, now) + _LATEST_FACTOR * quiet
        self.add(pool, Reason.EVENT, min(now + spread(quiet), latest))

    def failed(self, pool: str, now: float, at_least: float = 0.0) -> None:
        """A sync failed: due again after 5 ms, doubling up to a minute, but not before ``at_least`` seconds."""
        failures = self._failures.get(pool, 0)
        self._failures[pool] = failures + 1
        interval = min(_FIRST_RETRY_SECONDS * 2 ** min(failures, 30), _LONGEST_RETRY_SECONDS)
        self.add(pool, Reason.RETRY, now + spread(max(interval, at_least)))

    def refused(self, pool: str, now: float) -> None:
        """A sync will fail until the pool changes, or the rules of the API server: due again after five minutes."""
        self.settled(pool)
        self.add(pool, Reason.RETRY, now + spread(_REFUSED_RETRY_SECONDS))

    def settled(self, pool: str) -> None:
        """A sync succeeded or cannot succeed: the next failure starts with the shortest interval again."""
        self._failures.pop(pool, None)
        self._moments.pop((pool, Reason.RETRY), None)

    def next_moment(self) -> float | None:
        """The moment at which the next pool is due."""
        return min(self._moments.values(), default=None)

    def take(self, now: float) -> list[str]:
        """Take out the pools that are due by now, each once, in the order in which they became due."""
        due = sorted((moment, pool, reason) for (pool, reason), moment in self._moments.items() if moment <= now)
        for _, pool, reason in due:
            del self._moments[pool, reason]
            if reason is Reason.EVENT:
                self._unrest.pop(pool, None)
        return list(dict.fromkeys(pool for _, pool, _ in due))
