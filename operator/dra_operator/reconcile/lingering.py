"""Leaves a claim whose pod is gone to the garbage collector, as long as no pod needs its devices.

The garbage collector deletes a generated claim some milliseconds after its pod. A claim that is being deleted ends with
one write, which takes its finalizer off, devices and all. One that is released before takes a write for its status and
one for its finalizer. Where devices are scarce, the next pod would wait for the garbage collector, be told that there
is no device, and cost a condition and an event. So claims are left alone only where devices are *ample*: some pod was
placed, and none lacked devices for a while. The first one that lacks them ends the wait of all.

What the garbage collector has not deleted in time is released as usual, so nothing depends on it.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable

from dra_api.resource import ResourceClaim

from dra_operator.cluster import Key

from .queue import WorkQueue

PATIENCE = 1.0
"""Seconds for which a claim is left alone."""
CALM = 60.0
"""Seconds without a pod that lacked devices, after which they count as ample again."""


class Lingering:
    """``queue`` is that of claims; ``clock`` gives seconds."""

    def __init__(self, queue: WorkQueue, clock: Callable[[], float]) -> None:
        self._queue, self._clock = queue, clock
        self._ample_from = math.inf
        self._since: OrderedDict[str, tuple[float, Key]] = OrderedDict()
        """By uid, oldest first: since when claims are left alone."""

    def placed(self) -> None:
        """A pod got its devices."""
        if self._ample_from == math.inf:
            self._ample_from = self._clock()

    def lacked(self) -> None:
        """A pod found no devices: release at once what is left alone."""
        self._ample_from = self._clock() + CALM
        self._queue.add([key for _, key in self._since.values()])
        self._since.clear()

    def has_time(self, claim: ResourceClaim) -> bool:
        """Whether to leave the claim alone for now. If so, its key comes back when the time is over."""
        now = self._clock()
        while self._since and (oldest := next(iter(self._since.items())))[1][0] < now - 2 * PATIENCE:
            del self._since[oldest[0]]
        if now < self._ample_from:
            return False
        key = Key("claim", claim.key)
        since, _ = self._since.setdefault(claim.metadata.uid, (now, key))
        left = since + PATIENCE - now
        if left > 0:
            self._queue.add_after(key, left)
        return left > 0
