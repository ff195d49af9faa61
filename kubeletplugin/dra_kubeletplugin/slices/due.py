"""When each pool is to be synchronised.

What the driver publishes is synchronised at once, a watch event some time after the last one for its pool, a failure
after an interval that doubles. A pool may have a moment for each of these reasons. The earliest counts, and a sync
settles all that are due by then. Spec: RS-02, RS-03.
"""

from __future__ import annotations

from enum import Enum, auto

_FIRST_RETRY = 0.005
_LONGEST_RETRY = 1000.0


class Reason(Enum):
    """Why a pool is due; each reason has one moment per pool, the latest one given."""

    WISH = auto()
    EVENT = auto()
    RETRY = auto()
    OVERLAY_ENDS = auto()


class DueTimes:
    """Moments by pool and reason, in seconds of any one clock."""

    def __init__(self) -> None:
        self._moments: dict[tuple[str, Reason], float] = {}
        self._failures: dict[str, int] = {}

    def add(self, pool: str, reason: Reason, moment: float) -> None:
        """The pool is due at ``moment`` for this reason, in place of an earlier moment for the same reason."""
        self._moments[pool, reason] = moment

    def failed(self, pool: str, now: float) -> None:
        """A sync failed: due again after 5 ms, doubling up to 1000 s."""
        failures = self._failures.get(pool, 0)
        self._failures[pool] = failures + 1
        self.add(pool, Reason.RETRY, now + min(_FIRST_RETRY * 2 ** min(failures, 30), _LONGEST_RETRY))

    def settled(self, pool: str) -> None:
        """A sync succeeded or cannot succeed: the next failure starts with the shortest interval again."""
        self._failures.pop(pool, None)
        self._moments.pop((pool, Reason.RETRY), None)

    def next_moment(self) -> float | None:
        """The moment at which the next pool is due."""
        return min(self._moments.values(), default=None)

    def take(self, now: float) -> list[str]:
        """Take out the pools that are due by now, each once, in the order in which they became due."""
        due = sorted((moment, pool) for (pool, _), moment in self._moments.items() if moment <= now)
        pools = list(dict.fromkeys(pool for _, pool in due))
        self._moments = {key: moment for key, moment in self._moments.items() if key[0] not in pools or moment > now}
        return pools
