"""Other schedulers decide first on devices that they allocate, too.

When two schedulers decide at the same moment, both may take the same device, and ours gives way. But the other one
sees the device come free then: kube-scheduler keeps the devices in use as a set, takes this one out although a claim of
its own still holds it, and may give it to a second claim. So it is better that both never take it. What makes another
scheduler decide can be seen: its pod comes, or a device comes free while a claim of it waits. After that ours waits
until all its pods are decided, or a ``grace`` has passed; after a device came free, a quarter of it.

No pod of ours waits longer than the grace for that, so that it has its turn in a stream of pods of another scheduler,
too. It costs a pod nothing but time, and a look a few times per grace.
"""

from __future__ import annotations

from collections.abc import Callable

from dra_api.core import Pod

from dra_operator.cluster import Cluster

LOOKS = 4  # per grace
FORGET = 100.0  # graces after which a pod that did not come again is forgotten


class RightOfWay:
    """``wait`` before each decision on devices."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float], grace: float) -> None:
        self._cluster, self._clock, self._grace = cluster, clock, grace
        self._stirred: dict[frozenset[str], tuple[int, float]] = {}
        """By drivers: the stirs that were counted, and since when there are so many."""
        self._waiting: dict[str, float] = {}
        """By uid, oldest first: pods that give others the right of way, and since when."""

    def wait(self, pod: Pod, drivers: frozenset[str]) -> float:
        """Seconds after which the pod is to be looked at again before it may take devices of the drivers; 0: now."""
        others = self._cluster.others_decide(drivers) if drivers and self._grace else None
        if others is None or not others.waiting:
            return 0.0
        uid, now = pod.metadata.uid, self._clock()
        counted, since = self._stirred.get(drivers, (-1, now))
        if counted != others.stirs:
            self._stirred[drivers] = (others.stirs, since := now)
        pause = self._grace / LOOKS
        is_stirred = now - since < (self._grace if others.undecided else pause)
        if not is_stirred or now - self._waiting.setdefault(uid, now) >= self._grace:
            self._waiting.pop(uid, None)
            return 0.0
        self._forget_old(now)
        return pause

    def _forget_old(self, now: float) -> None:
        while now - (oldest := next(iter(self._waiting.items())))[1] > FORGET * self._grace:
            del self._waiting[oldest[0]]
