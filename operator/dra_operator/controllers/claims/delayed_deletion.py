"""Delays the deletion of claims of pods that are gone, so that the garbage collector can act first.

The garbage collector deletes a generated claim with its pod. The operator then removes the finalizer, devices and all,
in one write. If both deleted the claim at the same time, one request would be wasted, and one would conflict. So the
collector gets a moment first: it deletes most claims within milliseconds. It is limited to 20 requests a second by
default, and the operator deletes the rest. On a slow server the moment is too short, and the operator's deletions are
refused because the collector came first. Each refusal doubles the additional time, and each deletion that was needed
shortens it again.

The devices are in use until then. If devices are scarce, the next pod waits for them (``scheduling.report``). So there
is no additional time then: a refused deletion costs a request, a late one the pod's time. And a collector that was late
for three claims in a row, as at its rate limit, gets no time for the next twenty claims.

All of this counts per namespace. A tenant can make the collector seem quick by deleting claims, and can have the
operator's deletions refused on purpose; that changes the moment in no other namespace.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from dra_api.resource import ResourceClaim

from dra_operator.cache import Key
from dra_operator.controllers.context import Abundance
from dra_operator.controllers.queue import WorkQueue

COLLECTOR_SECONDS = 0.1
"""Time of the garbage collector on a quick server."""
MOST_EXTRA_SECONDS = 0.7
"""Limit on its additional time."""
KEPT_NAMESPACES = 1000
"""Namespaces with known additional time. The one with the oldest change is forgotten first."""
SHORTER_BY_FACTOR = 0.9
"""Factor of the additional time after a deletion that was needed."""
LATE_CLAIMS = 3
"""Claims in a row that the collector did not delete in time, after which it counts as late."""
LEFT_OUT_CLAIMS = 20
"""Claims for which a late collector gets no time while devices are scarce."""
FORGOTTEN_SECONDS = 3600.0
"""Time after which a claim is forgotten. Longer than any back-off: a claim that cannot be deleted would otherwise get a
new moment, and its back-off would begin again."""


@dataclass(eq=False, slots=True)
class _Ending:
    """A claim without its pod: when that was seen, and until when the collector has time."""

    uid: str
    since: float
    until: float

    @property
    def was_waited_for(self) -> bool:
        return self.until > self.since


@dataclass(eq=False, slots=True)
class _Collector:
    """The speed of the garbage collector in a namespace."""

    extra_seconds: float = 0.0
    """Its additional time."""
    late: int = 0
    """Claims in a row that it did not delete in time."""
    left_out: int = 0
    """Further claims for which it gets no time while devices are scarce."""


class DelayedDeletion:
    """Decides how long to wait for the garbage collector. ``queue`` is the queue of claims."""

    def __init__(self, queue: WorkQueue, clock: Callable[[], float]) -> None:
        self._queue, self._clock = queue, clock
        self.abundance = Abundance(clock)
        self._collectors: OrderedDict[str, _Collector] = OrderedDict()
        """Collectors by namespace, the latest change last."""
        self._ending: OrderedDict[str, _Ending] = OrderedDict()
        """Claims without their pods by key, oldest first, until they are gone."""

    def scarce(self) -> None:
        """Note that a pod found no devices. If devices were abundant before, waiting claims are deleted at once.

        Claims that are being deleted, or whose deletion was refused, go on at their own pace.
        """
        # Only at the change from abundance to scarcity: later on each claim has its moment decided when its pod goes.
        if self.abundance:
            now = self._clock()
            left_alone = {claim: ending for claim, ending in self._ending.items() if ending.until > now}
            for ending in left_alone.values():
                ending.since = ending.until = now
            self._queue.add(*(Key("release", claim) for claim in left_alone))
        self.abundance.ends()

    def was_collected(self, claim: ResourceClaim) -> None:
        """Note that the collector has deleted the claim."""
        if (collector := self._collectors.get(claim.metadata.namespace)) is not None:
            collector.late = 0

    def was_too_early(self, claim: ResourceClaim) -> None:
        """Note that the operator's deletion was refused because the collector had deleted the claim."""
        collector = self._changed(claim)
        collector.extra_seconds = min(max(2 * collector.extra_seconds, COLLECTOR_SECONDS), MOST_EXTRA_SECONDS)
        # It was quicker than we were, so it is not late.
        collector.late = collector.left_out = 0

    def was_needed(self, claim: ResourceClaim) -> None:
        """Note that the operator has deleted the claim because the collector was late."""
        ending = self._ending.get(claim.key)
        # One that had no moment says nothing about the collector.
        if ending is None or not ending.was_waited_for:
            return
        collector = self._changed(claim)
        collector.extra_seconds *= SHORTER_BY_FACTOR
        collector.late += 1
        if collector.late == LATE_CLAIMS:
            collector.late, collector.left_out = 0, LEFT_OUT_CLAIMS

    def _changed(self, claim: ResourceClaim) -> _Collector:
        """Return the collector of the claim's namespace for a change."""
        namespace = claim.metadata.namespace
        collector = self._collectors.setdefault(namespace, _Collector())
        # Tenants choose how many namespaces there are: the one without news goes first.
        self._collectors.move_to_end(namespace)
        if len(self._collectors) > KEPT_NAMESPACES:
            self._collectors.popitem(last=False)
        return collector

    def ended(self, claim: str) -> None:
        """Note that the claim of this key is gone."""
        self._ending.pop(claim, None)

    def is_ending(self, seconds: float) -> bool:
        """Return whether claims exist whose pods have been gone for less than ``seconds``."""
        return bool(self._ending) and self._clock() - next(reversed(self._ending.values())).since < seconds

    def has_time(self, claim: ResourceClaim) -> bool:
        """Return whether the collector still has time for the claim. If so, the claim is requeued for afterwards."""
        now = self._clock()
        # They are in the order in which they began to end.
        while self._ending and (oldest := next(iter(self._ending.items())))[1].since < now - FORGOTTEN_SECONDS:
            del self._ending[oldest[0]]
        ending = self._ending.get(claim.key)
        if ending is None or ending.uid != claim.metadata.uid:
            # A predecessor of that name is removed first, or the new entry would take its place in the order of time.
            self.ended(claim.key)
            ending = self._ending[claim.key] = _Ending(claim.metadata.uid, now, now + self._moment(claim, now))
        if ending.until > now:
            self._queue.add_after(Key("release", claim.key), ending.until - now)
        return ending.until > now

    def _moment(self, claim: ResourceClaim, now: float) -> float:
        """Return the seconds that the collector gets for the next claim, which is this one."""
        collector = self._collectors.get(claim.metadata.namespace)
        if collector is None:
            return COLLECTOR_SECONDS
        if self.abundance:
            return COLLECTOR_SECONDS + collector.extra_seconds
        # Pods wait for these devices, and the collector was late before.
        if collector.left_out:
            collector.left_out -= 1
            return 0.0
        return COLLECTOR_SECONDS
