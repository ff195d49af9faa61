"""Delays the deletion of claims of pods that are gone, so that the garbage collector can act first.

A generated claim is deleted with its pod, by the garbage collector, and ends with one more write, which takes its
finalizer off, devices and all. Two deletions at the same time would be one request too many, and one of them would
conflict. So the collector has a moment: it deletes most claims within some milliseconds. It is limited to 20 requests a
second by default; what it has not deleted then is deleted here. Where the server is slow the moment is too short, and
deletions from here are refused, since the collector's came between: each doubles what is added to the moment, and each
that is needed shortens it again.

Until deletion and finalizer are written the devices are taken. Where they are scarce the next pod waits for them
(``scheduling.report``). So a collector that was late for three claims in a row, as it is at its limit, gets no
time then for the next twenty, which are deleted here at once.

All of this counts by namespace. A tenant may delete claims as well, so that the collector seems quick, or have
deletions from here refused on purpose: that changes the moment in no other namespace.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from dra_api.resource import ResourceClaim

from dra_operator.cache import Key
from dra_operator.controllers.queue import WorkQueue

COLLECTOR_SECONDS = 0.1
"""Seconds that the garbage collector has where the server is quick."""
MOST_EXTRA_SECONDS = 0.7
"""Seconds that it has in addition at most."""
KEPT_NAMESPACES = 1000
"""Namespaces of which it is known how quick the collector is; the one without news for the longest time is forgotten
first."""
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


@dataclass(eq=False, slots=True)
class _Collector:
    """How quick the garbage collector is in a namespace."""

    extra_seconds: float = 0.0
    """What is added to the moment of its claims."""
    late: int = 0
    """Claims in a row that it did not delete in its moment."""
    left_out: int = 0
    """Further claims for which it gets no time while devices are scarce."""


class DelayedDeletion:
    """``queue`` is that of claims; ``clock`` gives seconds."""

    def __init__(self, queue: WorkQueue, clock: Callable[[], float]) -> None:
        self._queue, self._clock = queue, clock
        self._ample_from = math.inf
        self._collectors: OrderedDict[str, _Collector] = OrderedDict()
        """By namespace, the one that was changed last at the end."""
        self._ending: OrderedDict[str, _Ending] = OrderedDict()
        """By key, oldest first: claims whose pod is gone, until they are gone themselves."""

    def placed(self) -> None:
        """Note that a pod got its devices."""
        if self._ample_from == math.inf:
            self._ample_from = self._clock()

    def scarce(self) -> None:
        """Note that a pod found no devices. If they were abundant so far, claims left alone end at once.

        What is being ended already, or was refused, goes on at its own pace.
        """
        now = self._clock()
        if now >= self._ample_from:
            left_alone = {claim: ending for claim, ending in self._ending.items() if ending.until > now}
            for ending in left_alone.values():
                ending.since = ending.until = now
            self._queue.add(*(Key("release", claim) for claim in left_alone))
        self._ample_from = now + ABUNDANT_AFTER_SECONDS

    def was_collected(self, claim: ResourceClaim) -> None:
        """Note that the collector has deleted the claim."""
        if (collector := self._collectors.get(claim.metadata.namespace)) is not None:
            collector.late = 0

    def was_too_early(self, claim: ResourceClaim) -> None:
        """Note that a deletion from here was refused: the collector deleted the claim meanwhile."""
        collector = self._changed(claim)
        collector.extra_seconds = min(max(2 * collector.extra_seconds, COLLECTOR_SECONDS), MOST_EXTRA_SECONDS)
        collector.late = collector.left_out = 0

    def was_needed(self, claim: ResourceClaim) -> None:
        """Note that a claim was deleted from here, since the collector had not done it yet."""
        ending = self._ending.get(claim.key)
        if ending is None or not ending.was_waited_for:
            return
        collector = self._changed(claim)
        collector.extra_seconds *= SHORTER_BY_FACTOR
        collector.late += 1
        if collector.late == LATE_CLAIMS:
            collector.late, collector.left_out = 0, LEFT_OUT_CLAIMS

    def _changed(self, claim: ResourceClaim) -> _Collector:
        """Return the collector in the claim's namespace, of which something new is known."""
        namespace = claim.metadata.namespace
        collector = self._collectors.setdefault(namespace, _Collector())
        self._collectors.move_to_end(namespace)
        if len(self._collectors) > KEPT_NAMESPACES:
            self._collectors.popitem(last=False)
        return collector

    def ended(self, claim: str) -> None:
        """Note that the claim of this key is gone."""
        self._ending.pop(claim, None)

    def is_ending(self, seconds: float) -> bool:
        """Return whether there are claims whose pods are gone, since less than so many seconds, and which still
        exist."""
        return bool(self._ending) and self._clock() - next(reversed(self._ending.values())).since < seconds

    @property
    def is_abundant(self) -> bool:
        """Return whether no pod lacks devices, as it seems."""
        return self._clock() >= self._ample_from

    def has_time(self, claim: ResourceClaim) -> bool:
        """Return whether to leave the claim alone for now. If so, its key comes back when the time is over."""
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
        """Return the seconds that the collector gets for the claim, which is the next one."""
        collector = self._collectors.get(claim.metadata.namespace)
        if collector is None:
            return COLLECTOR_SECONDS
        if now < self._ample_from and collector.left_out:
            collector.left_out -= 1
            return 0.0
        return COLLECTOR_SECONDS + collector.extra_seconds
