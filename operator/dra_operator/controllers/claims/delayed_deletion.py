"""Delays the deletion of claims of pods that are gone, so that the garbage collector can act first.

A generated claim is deleted with its pod. A claim that is being deleted ends with one more write, which takes its
finalizer off, devices and all. One that is released before takes a patch of its status and one of its finalizer, which
cost the API server twice as much. But until both deletion and finalizer are written its devices are taken: where they
are scarce, the next pod would be told that there is none, and cost a condition and an event. So claims go whole only
where devices are *abundant*: some pod was placed, and none lacked devices for a while. The first pod that lacks them
ends the wait of all.

The garbage collector deletes most claims within some milliseconds. Two deletions at the same time would be one request
too many, and one of them would conflict. So it has a moment for that. It is limited to 20 requests a second by default;
what it has not deleted then is deleted here. Where the server is slow the moment is too short, and deletions from here
are refused, since the collector's came between: each doubles the moment, and each that is needed shortens it again.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable

from dra_api.resource import ResourceClaim

from dra_operator.cache import Key
from dra_operator.controllers.work.queue import WorkQueue

COLLECTOR_SECONDS = 0.1
"""Seconds that the garbage collector has where the server is quick."""
MOST_EXTRA_SECONDS = 0.7
"""Seconds that it has in addition at most."""
SHORTER_BY_FACTOR = 0.9
"""The part that is left of the additional seconds after a deletion that was needed."""
FORGOTTEN_SECONDS = 5.0
"""Seconds after which a claim that ended must not be known any more."""
ABUNDANT_AFTER_SECONDS = 60.0
"""Seconds without a pod that lacked devices, after which they count as abundant again."""


class DelayedDeletion:
    """``queue`` is that of claims; ``clock`` gives seconds."""

    def __init__(self, queue: WorkQueue, clock: Callable[[], float]) -> None:
        self._queue, self._clock = queue, clock
        self._ample_from = math.inf
        self._extra_seconds = 0.0
        self._since: OrderedDict[str, tuple[float, Key]] = OrderedDict()
        """By uid, oldest first: claims whose pod is gone, and since when."""

    def placed(self) -> None:
        """A pod got its devices."""
        if self._ample_from == math.inf:
            self._ample_from = self._clock()

    def scarce(self) -> None:
        """A pod found no devices: release at once what is left alone."""
        self._ample_from = self._clock() + ABUNDANT_AFTER_SECONDS
        self._queue.add([key for _, key in self._since.values()])
        self._since.clear()

    def was_too_early(self) -> None:
        """A deletion from here was refused: the collector deleted the claim meanwhile."""
        self._extra_seconds = min(max(2 * self._extra_seconds, COLLECTOR_SECONDS), MOST_EXTRA_SECONDS)

    def was_needed(self) -> None:
        """A claim was deleted from here, since the collector had not done it yet."""
        self._extra_seconds *= SHORTER_BY_FACTOR

    @property
    def is_abundant(self) -> bool:
        """Whether no pod lacks devices, as it seems."""
        return self._clock() >= self._ample_from

    def has_time(self, claim: ResourceClaim) -> bool:
        """Whether to leave the claim alone for now. If so, its key comes back when the time is over."""
        now = self._clock()
        while self._since and (oldest := next(iter(self._since.items())))[1][0] < now - FORGOTTEN_SECONDS:
            del self._since[oldest[0]]
        key = Key("release", claim.key)
        since, _ = self._since.setdefault(claim.metadata.uid, (now, key))
        left = since + COLLECTOR_SECONDS + self._extra_seconds - now
        if left > 0:
            self._queue.add_after(key, left)
        return left > 0
