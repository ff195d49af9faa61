"""Other schedulers decide first on devices that they allocate as well.

When two schedulers decide at the same moment, both may take the same device, and ours loses the contest: its claim is
parked (``scheduling.state.parked``), and the device serves no pod of ours for as long as the contest lasts. So it is
better that both never take it.

What makes another scheduler decide can be seen: its pod comes, or a device comes free while a claim of it waits. Where
another scheduler allocates, or did before, a pod of ours therefore waits a ``pause``, in which pods that came at the
same time are seen. Then it waits until all pods of the others are decided, and a pause is over since a device came
free for them.

No pod of ours waits longer than three pauses for that, so that it has its turn in a stream of pods of another
scheduler as well, and beside pods that name a scheduler which does not exist: those are never decided. It costs a pod
nothing but time, and a look every pause.

While the operator does not see what others do, as in the second in which it starts, a pod waits until it does.

Each contest that ours loses doubles the pauses for the drivers of it, from a quarter of a second up to 4 s: the other
scheduler was slower than the pause. Three pauses are then longer than the 10 s after which kube-scheduler tries a pod
again. A minute without a contest halves them. A pod that waits for so long says so in its condition.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from dra_api.core import Pod

from dra_operator.cache import Cluster
from dra_operator.scheduling import ANY_DRIVER

PAUSES_PER_GRACE = 4  # per grace
MOST_PAUSES = 3  # per pod
MOST_DOUBLING_STEPS = 4
HALVED_SECONDS = 60.0
"""Seconds without a contest after which the pauses are half as long."""
UNSEEN_SECONDS = 2.0
"""Seconds that a pod waits, at most, for the watches by which the operator sees what others do."""
MET_OTHERS_SECONDS = 60.0
"""Seconds for which a pod that is not tried again is remembered, and others that had or wanted devices."""


class Deference:
    """``wait`` before each decision on devices; ``clashed`` when a contest was lost.

    ``sees_others``: whether it is seen what other schedulers have and want. ``knows``: whether they had or wanted
    devices of a driver before.
    """

    def __init__(
        self,
        cluster: Cluster,
        clock: Callable[[], float],
        grace: float,
        sees_others: Callable[[], bool] = lambda: True,
        knows: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._cluster, self._clock, self._pause = cluster, clock, grace / PAUSES_PER_GRACE
        self._sees_others, self._knows = sees_others, knows
        self._met: dict[frozenset[str], float] = {}
        """By drivers: when others were seen there."""
        self._events: dict[frozenset[str], tuple[int, float]] = {}
        """By drivers: the cluster events that were counted, and since when there are so many."""
        self._waiting: dict[str, float] = {}
        """By uid, oldest first: pods that defer to others, and since when."""
        self._doublings: dict[str, tuple[int, float]] = {}
        """By driver: how often the pauses are doubled, and since when."""

    def wait(self, pod: Pod, drivers: frozenset[str]) -> float:
        """Seconds after which the pod is to be looked at again before it may take devices of the drivers; 0: now."""
        uid, now = pod.metadata.uid, self._clock()
        pause = self._pause * 2.0 ** self._doubled(drivers, now)
        if not drivers or not self._must_wait(uid, drivers, now, pause):
            self._waiting.pop(uid, None)
            return 0.0
        self._forget_old(now)
        return pause

    def clashed(self, drivers: Iterable[str]) -> None:
        """A pod of ours lost devices of these drivers to another scheduler."""
        now = self._clock()
        self._doublings = {driver: it for driver, it in self._doublings.items() if _left(*it, now)}
        for driver in drivers:
            self._doublings[driver] = (min(self._doubled({driver}, now) + 1, MOST_DOUBLING_STEPS), now)

    def longest(self, drivers: Iterable[str]) -> float:
        """Return the most seconds that a pod waits for devices of the drivers, if that is more than usual; else 0."""
        doubled = self._doubled(drivers, self._clock())
        return MOST_PAUSES * self._pause * 2.0**doubled if doubled else 0.0

    def _doubled(self, drivers: Iterable[str], now: float) -> int:
        named = set(drivers)
        found = self._doublings.items() if ANY_DRIVER in named else ((it, self._doublings.get(it)) for it in named)
        return max((_left(*doubled, now) for _, doubled in found if doubled is not None), default=0)

    def _must_wait(self, uid: str, drivers: frozenset[str], now: float, pause: float) -> bool:
        if not self._sees_others():
            return now - self._waiting.setdefault(uid, now) < UNSEEN_SECONDS
        others, own = self._cluster.others_decide(drivers), self._cluster.own_devices
        if others.present:
            self._met[drivers] = now
        was_there = now - self._met.get(drivers, -math.inf) <= MET_OTHERS_SECONDS
        if not was_there and not any(map(self._knows, own.contested(drivers))):
            return False
        counted, since = self._events.get(drivers, (-1, now))
        if counted != others.cluster_events:
            self._events[drivers] = (others.cluster_events, since := now)
        waited, most = now - self._waiting.setdefault(uid, now), MOST_PAUSES * pause
        if waited >= most:
            return False
        is_deciding = others.waiting and now - since < (most if others.queued else pause)
        return waited < pause or is_deciding

    def _forget_old(self, now: float) -> None:
        while now - (oldest := next(iter(self._waiting.items())))[1] > MET_OTHERS_SECONDS:
            del self._waiting[oldest[0]]


def _left(doubled: int, since: float, now: float) -> int:
    return max(0, doubled - math.floor((now - since) / HALVED_SECONDS))
