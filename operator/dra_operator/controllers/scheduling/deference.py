"""Other schedulers decide first on devices that they allocate as well.

When two schedulers decide at the same moment, both may take the same device, and ours gives way. But the other one
sees the device come free then: kube-scheduler keeps the devices in use as a set, takes this one out although a claim of
its own still holds it, and may give it to a second claim. So it is better that both never take it.

What makes another scheduler decide can be seen: its pod comes, or a device comes free while a claim of it waits. Where
another scheduler allocates, or did a minute ago, a pod of ours therefore waits a ``pause``, in which pods that came at
the same time are seen. Then it waits until all pods of the others are decided, and a pause is over since a device came
free for them.

No pod of ours waits longer than three pauses for that, so that it has its turn in a stream of pods of another
scheduler as well, and beside pods that name a scheduler which does not exist: those are never decided. It costs a pod
nothing but time, and a look every pause.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from dra_api.core import Pod

from dra_operator.cache import Cluster

PAUSES_PER_GRACE = 4  # per grace
MOST_PAUSES = 3  # per pod
SHARED_DRIVER_SECONDS = 60.0
"""Seconds for which a driver counts as shared after another scheduler had or wanted devices of it."""


class Deference:
    """``wait`` before each decision on devices."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float], grace: float) -> None:
        self._cluster, self._clock, self._pause = cluster, clock, grace / PAUSES_PER_GRACE
        self._met: dict[frozenset[str], float] = {}
        """By drivers: when others were seen there."""
        self._events: dict[frozenset[str], tuple[int, float]] = {}
        """By drivers: the cluster events that were counted, and since when there are so many."""
        self._waiting: dict[str, float] = {}
        """By uid, oldest first: pods that defer to others, and since when."""

    def wait(self, pod: Pod, drivers: frozenset[str]) -> float:
        """Seconds after which the pod is to be looked at again before it may take devices of the drivers; 0: now."""
        uid, now = pod.metadata.uid, self._clock()
        if not drivers or not self._must_wait(uid, drivers, now):
            self._waiting.pop(uid, None)
            return 0.0
        self._forget_old(now)
        return self._pause

    def _must_wait(self, uid: str, drivers: frozenset[str], now: float) -> bool:
        others = self._cluster.others_decide(drivers)
        if others.present:
            self._met[drivers] = now
        if now - self._met.get(drivers, -math.inf) > SHARED_DRIVER_SECONDS:
            return False
        counted, since = self._events.get(drivers, (-1, now))
        if counted != others.cluster_events:
            self._events[drivers] = (others.cluster_events, since := now)
        waited, most = now - self._waiting.setdefault(uid, now), MOST_PAUSES * self._pause
        if waited >= most:
            return False
        is_deciding = others.waiting and now - since < (most if others.queued else self._pause)
        return waited < self._pause or is_deciding

    def _forget_old(self, now: float) -> None:
        while now - (oldest := next(iter(self._waiting.items())))[1] > SHARED_DRIVER_SECONDS:
            del self._waiting[oldest[0]]
