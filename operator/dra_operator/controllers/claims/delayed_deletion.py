"""Delays the deletion of claims of pods that are gone, so that the garbage collector can act first.

A generated claim is deleted with its pod, by the garbage collector, and ends with one more write, which takes its
finalizer off, devices and all. Two deletions at the same time would be one request too many, and one of them would
conflict. So the collector has a moment: it deletes most claims within some milliseconds. It is limited to 20 requests a
second by default; what it has not deleted then is deleted here. Where the server is slow the moment is too short, and
deletions from here are refused, since the collector's came between: each doubles what is added to the moment in its
namespace, and each that is needed shortens it again. A tenant may delete claims as well, and have deletions from here
refused on purpose: that lengthens the moment in no other namespace.

Until deletion and finalizer are written the devices are taken. Where they are scarce the next pod waits for them
(``scheduling/patience.py``). So a collector that was late for three claims in a row, as it is at its limit, gets no
time then for the next twenty, which are deleted here at once.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from dra_api.resource import ResourceClaim

from dra_operator.cache import Key
from dra_operator.controllers.work.queue import WorkQueue

COLLECTOR_SECONDS = 0.1
"""Seconds that the garbage collector has where the server is quick."""
MOST_EXTRA_SECONDS = 0.7
"""Seconds that it has in addition at most."""
KEPT_NAMESPACES = 1000
"""Namespaces whose additional seconds are known; the one of the oldest refusal is forgotten first."""
SHORTER_BY_FACTOR = 0.9
"""The part that is left of the additional seconds after a deletion that was needed."""
LATE_CLAIMS = 3
"""Claims in a row that the collector did not delete in its moment, after which it counts as late."""
LEFT_OUT_CLAIMS = 20
"""Claims for which a collector that was late gets no time while devices are scarce."""
FORGOTTEN_SECONDS = 3600.0
"""Seconds after which a claim that ended must not be known any more. They outlast the longest back-off: a claim that
cannot be deleted would get a new moment otherwise, and its back-off would begin again."""
ABUNDANT_AFTER_SECONDS = 60.0
"""Seconds without a pod that lacked devices, after which they count as abundant again."""


@dataclass(eq=False, slots=True)
class _Ending:
    """A claim whose pod is gone: since when, and until when the collector has time."""

    uid: str
    since: float
    until: float

    @property
    def was_waited_for(self) -> bool:
        return self.until > self.since


class DelayedDeletion:
    """``queue`` is that of claims; ``clock`` gives seconds."""

    def __init__(self, queue: WorkQueue, clock: Callable[[], float]) -> None:
        self._queue, self._clock = queue, clock
        self._ample_from = math.inf
        self._extra_seconds: OrderedDict[str, float] = OrderedDict()
        """By namespace: what is added to the moment of its claims."""
        self._late = self._left_out = 0
        self._ending: OrderedDict[str, _Ending] = OrderedDict()
        """By key, oldest first: claims whose pod is gone, until they are gone themselves."""

    def placed(self) -> None:
        """A pod got its devices."""
        if self._ample_from == math.inf:
            self._ample_from = self._clock()

    def scarce(self) -> None:
        """A pod found no devices. If they were abundant so far, what is left alone ends at once.

        What is being ended already, or was refused, goes on at its own pace.
        """
        now = self._clock()
        if now >= self._ample_from:
            left_alone = {claim: ending for claim, ending in self._ending.items() if ending.until > now}
            for ending in left_alone.values():
                ending.since = ending.until = now
            self._queue.add([Key("release", claim) for claim in left_alone])
        self._ample_from = now + ABUNDANT_AFTER_SECONDS

    def was_collected(self) -> None:
        """The collector has deleted a claim."""
        self._late = 0

    def was_too_early(self, claim: ResourceClaim) -> None:
        """A deletion from here was refused: the collector deleted the claim meanwhile."""
        namespace = claim.metadata.namespace
        extra = self._extra_seconds.pop(namespace, 0.0)
        self._extra_seconds[namespace] = min(max(2 * extra, COLLECTOR_SECONDS), MOST_EXTRA_SECONDS)
        if len(self._extra_seconds) > KEPT_NAMESPACES:
            self._extra_seconds.popitem(last=False)
        self._late = self._left_out = 0

    def was_needed(self, claim: ResourceClaim) -> None:
        """A claim was deleted from here, since the collector had not done it yet."""
        ending = self._ending.get(claim.key)
        if ending is None or not ending.was_waited_for:
            return
        if (namespace := claim.metadata.namespace) in self._extra_seconds:
            self._extra_seconds[namespace] *= SHORTER_BY_FACTOR
        self._late += 1
        if self._late == LATE_CLAIMS:
            self._late, self._left_out = 0, LEFT_OUT_CLAIMS

    def ended(self, claim: str) -> None:
        """The claim of this key is gone."""
        self._ending.pop(claim, None)

    def is_ending(self, seconds: float) -> bool:
        """Whether there are claims whose pods are gone, since less than so many seconds, and which still exist."""
        return bool(self._ending) and self._clock() - next(reversed(self._ending.values())).since < seconds

    @property
    def is_abundant(self) -> bool:
        """Whether no pod lacks devices, as it seems."""
        return self._clock() >= self._ample_from

    def has_time(self, claim: ResourceClaim) -> bool:
        """Whether to leave the claim alone for now. If so, its key comes back when the time is over."""
        now = self._clock()
        while self._ending and (oldest := next(iter(self._ending.items())))[1].since < now - FORGOTTEN_SECONDS:
            del self._ending[oldest[0]]
        ending = self._ending.get(claim.key)
        if ending is None or ending.uid != claim.metadata.uid:
            self.ended(claim.key)  # a predecessor of that name: the new one would stand in its place in the order
            ending = self._ending[claim.key] = _Ending(claim.metadata.uid, now, now + self._moment(claim, now))
        if ending.until > now:
            self._queue.add_after(Key("release", claim.key), ending.until - now)
        return ending.until > now

    def _moment(self, claim: ResourceClaim, now: float) -> float:
        """Seconds that the collector gets for the claim, which is the next one."""
        if now < self._ample_from and self._left_out:
            self._left_out -= 1
            return 0.0
        return COLLECTOR_SECONDS + self._extra_seconds.get(claim.metadata.namespace, 0.0)
