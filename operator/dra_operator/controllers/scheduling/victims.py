"""When a pod may look for victims, how victims are deleted, and how long they are waited for.

*Turns.* A pod, or a gang, has one attempt every ten seconds. After each attempt there is a pause of nineteen times its
duration, so attempts take at most a twentieth of the time. Pods wait for their turn in a line, one of each namespace
after the other, so a thousand pods of one tenant delay a pod of another tenant by one attempt. A pod that does not use
its turn loses it. A new process preempts no pods for ten seconds, because it may not have seen all that the last one
began. In that time only nominated pods have turns, so that their devices are kept again.

*Deletion.* A victim is read, gets the condition ``DisruptionTarget`` and is deleted by its UID, with its own grace
period. One that is gone, replaced or terminating already is left alone. A victim that is still there after ``patience``
(30 seconds by default) is no longer counted on, regardless of its grace period. One that the server refuses to delete
is no victim for ten minutes.
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from dra_api.core import Pod
from dra_api.references import pod_is_done, pod_is_ending
from dra_api.values import parse_time
from dra_kube import ApiError, Conflict, Gone, NotFound, ServerError, TooManyRequests, Unauthorized

from dra_operator.cache import Cluster
from dra_operator.controllers.context import Recently
from dra_operator.controllers.settings import ROUNDING_SECONDS
from dra_operator.controllers.workers import tell
from dra_operator.kube import Disruption, EventReason, EventRecorder, PodWriter
from dra_operator.scheduling.preemption import OVERDUE_SECONDS, leaves_soon
from dra_operator.scheduling.state import Nomination

SHARE: Final = 0.05
"""The share of time for all attempts together."""
PATIENCE_SECONDS: Final = 5.0
"""Time in which a called pod can use its turn."""
MOST_PODS_IN_LINE: Final = 1000
"""Pods of a namespace in the line. Further pods ask again later."""
LOOK_AGAIN_SECONDS: Final = 60.0
"""Time after which a pod in the line asks again by itself. The first one of a namespace asks after each lost turn."""


class PreemptionTurns:
    """The turns. ``look_again`` requeues a key after some seconds; ``waits`` says whether its pod is still pending."""

    def __init__(
        self,
        clock: Callable[[], float],
        rest: float,
        look_again: Callable[[str, float], None],
        waits: Callable[[str], bool],
    ) -> None:
        self._clock, self._rest, self._look_again, self._waits = clock, rest, look_again, waits
        self._begins_at = self._free_at = clock() + rest
        self._recalls_at = clock()
        """When the next nominated pod may have a turn, while the process is new."""
        self._tried = Recently(clock)
        self._line: OrderedDict[str, OrderedDict[str, None]] = OrderedDict()
        """Keys of pods by namespace."""
        self._called = ("", -math.inf)
        """The pod whose turn it is, and until when."""
        self._last = ""
        """The namespace of the last called pod."""

    @property
    def is_resting(self) -> bool:
        """Return whether the process is too new to preempt pods."""
        return self._clock() < self._begins_at

    def may_try(self, pod: Pod, who: str = "", *, recalls: bool = False) -> bool:
        """Return whether it is the pod's turn. If not, the pod is requeued for when it may be.

        ``who`` is the key of the pod's gang, if the attempt is for a gang. ``recalls``: the last process has nominated
        the pod.
        """
        now, called = self._clock(), self._called
        age = self._tried.age(who or pod.metadata.uid)
        # Nothing has changed since an attempt that has just failed: the next one would cost the same, and fail.
        if age is not None and age < self._rest:
            self._later(pod.key, self._rest - age)
            return False
        if recalls and now < self._begins_at:
            if now < self._recalls_at:
                self._later(pod.key, self._recalls_at - now)
                return False
            # The attempt pauses, and no other one may begin then. ``took`` sets the true time.
            self._recalls_at = now + PATIENCE_SECONDS
            return True
        if now >= self._free_at and (pod.key == called[0] or now >= called[1]):
            self._leave(pod)
            return True
        if pod.key == called[0]:
            self._later(pod.key, self._free_at - now)
            return False
        there = self._line.setdefault(pod.metadata.namespace, OrderedDict())
        if len(there) < MOST_PODS_IN_LINE:
            there.setdefault(pod.key)
        # The called pod has not come: it was deleted, bound, or its key is late. Its turn goes to the next one.
        if now >= called[1]:
            self._call(now)
        is_first = next(iter(there), "") == pod.key
        self._later(pod.key, self._called[1] - now if is_first else LOOK_AGAIN_SECONDS)
        return False

    def took(self, pod: Pod, seconds: float, who: str = "") -> None:
        """Note that an attempt is over, and how long it took."""
        now = self._clock()
        self._tried.add(who or pod.metadata.uid)
        # The next attempt may begin when this one was a twentieth of the time.
        self._recalls_at = now + seconds * (1 / SHARE - 1)
        self._free_at = max(self._begins_at, self._recalls_at)
        self._call(now)

    def _leave(self, pod: Pod) -> None:
        namespace = pod.metadata.namespace
        there = self._line.get(namespace, OrderedDict())
        there.pop(pod.key, None)
        if not there:
            self._line.pop(namespace, None)
        # The attempt pauses, and no other one may begin then.
        self._called = (pod.key, self._clock() + PATIENCE_SECONDS)

    def _call(self, now: float) -> None:
        """Call the next pod in the line that is still pending."""
        self._called = ("", -math.inf)
        while self._line:
            # Any namespace but the last one, if there is another: no tenant has two turns in a row, however many of its
            # pods are in the line.
            namespace = next((it for it in self._line if it != self._last), self._last)
            there = self._line[namespace]
            key, _ = there.popitem(last=False)
            if there:
                self._line.move_to_end(namespace)
            else:
                del self._line[namespace]
            # Pods leave the line without a word when they are placed or gone.
            if self._waits(key):
                self._last = namespace
                self._called = (key, max(now, self._free_at) + PATIENCE_SECONDS)
                self._later(key, self._free_at - now)
                return

    def _later(self, key: str, seconds: float) -> None:
        self._look_again(key, max(seconds, 0.0) + ROUNDING_SECONDS)


logger = logging.getLogger(__name__)

REFUSED_SECONDS: Final = 600.0
FAILING_SECONDS: Final = 60.0
"""Time for which a pod whose deletion has failed twice is no victim."""
_PASSING: Final = (Conflict, Gone, ServerError, TooManyRequests, Unauthorized)
"""Errors of a deletion that may be over at the next attempt. A webhook may answer with any code, and fails with 500."""


class VictimEvictor:
    """Deletes victims, and knows which pods will be gone soon.

    ``rest``: seconds until a requested deletion must be visible in the cache. ``patience``: seconds that a victim is
    waited for before other victims are looked for.
    """

    def __init__(
        self,
        pods: PodWriter,
        events: EventRecorder,
        scheduler_name: str,
        *,
        clock: Callable[[], float],
        now: Callable[[], datetime],
        rest: float,
        patience: float,
    ) -> None:
        self._pods, self._events, self._now, self._rest, self._patience = pods, events, now, rest, patience
        self._asked, self._refused = Recently(clock), Recently(clock)
        """UIDs of pods whose deletion was requested, and of those whose deletion was refused."""
        self._failed, self._failing = Recently(clock), Recently(clock)
        """UIDs of pods whose deletion has failed, and of those for which it has failed again."""
        self._disruption = Disruption(
            "dra-scheduler-preemption",
            "PreemptionByScheduler",
            f"{scheduler_name}: preempting to accommodate a higher priority pod",
        )

    def is_refused(self, pod: Pod) -> bool:
        """Return whether the server has refused to delete the pod lately, or has failed to do so repeatedly."""
        uid = pod.metadata.uid
        return self._refused.within(uid, REFUSED_SECONDS) or self._failing.within(uid, FAILING_SECONDS)

    def is_leaving(self, nodes: Collection[str], pod: Pod) -> bool:
        """Return whether the pod is being deleted, or soon will be, so that it is worth waiting for.

        ``nodes`` are those of the nomination: a pod that terminates there may be a victim of the last process.
        """
        age = self._asked.age(pod.metadata.uid)
        if pod.metadata.deletion_timestamp is None:
            return age is not None and age < self._rest
        if leaves_soon(pod, self._now(), self._patience):
            return True
        # Its grace period is longer than ``patience``. It counts all the same while it is one of our victims and young
        # enough: to look for others at once would preempt twice as many pods. A new process does not know the victims
        # of the last one; a pod that terminates on the nominated node probably was one.
        if age is None and pod.spec.node_name in nodes:
            age = self.seconds_deleted(pod)
        return age is not None and age < self._patience + OVERDUE_SECONDS

    def is_overdue(self, pod: Pod) -> bool:
        """Return whether the pod has outlived its grace period, as with an unreachable kubelet or a finalizer."""
        ends = parse_time(pod.metadata.deletion_timestamp)
        return ends is not None and (self._now() - ends).total_seconds() >= OVERDUE_SECONDS

    def seconds_deleted(self, pod: Pod) -> float:
        """Return the seconds since the pod's deletion, by its own fields; infinity if it is not being deleted."""
        ends, grace = parse_time(pod.metadata.deletion_timestamp), pod.metadata.deletion_grace_period_seconds
        return (self._now() - ends).total_seconds() + (grace or 0) if ends is not None else math.inf

    async def end(self, victim: Pod, preemptor: str, why: str) -> bool:
        """Delete the victim, and return whether this call did it. Raises KubeError."""
        uid = victim.metadata.uid
        try:
            # The cache may be late: a pod that has finished, or another one of its name, must not be deleted.
            fresh = await self._pods.read(victim.metadata.namespace, victim.metadata.name)
            if fresh.metadata.uid != uid or pod_is_ending(fresh):
                return False
            await self._delete(fresh)
        except NotFound:
            return False
        self._events.post(fresh, EventReason.PREEMPTED, why)
        tell(logger, logging.INFO, "pod preempted", pod=victim.key, by=preemptor, node=victim.spec.node_name)
        return True

    async def _delete(self, victim: Pod) -> None:
        uid = victim.metadata.uid
        # Before the request: if its answer is lost, the pod may be terminating all the same, and no second victim must
        # follow at once.
        self._asked.add(uid)
        try:
            await self._pods.mark_disrupted(victim, self._disruption)
            await self._pods.delete(victim)
        except NotFound:
            raise
        except _PASSING:
            # A webhook that is down fails the same deletion again and again: another victim may do meanwhile.
            if self._failed.within(uid, REFUSED_SECONDS):
                self._failing.add(uid)
            self._failed.add(uid)
            raise
        except ApiError:
            self._asked.discard(uid)
            # A webhook or a missing permission refuses again: another victim may do.
            self._refused.add(uid)
            raise


FREED_SECONDS: Final = 60.0
"""Time in which a claim must be deallocated after its last pod is gone."""
KEPT_SECONDS: Final = 600.0
"""Time that a nomination without other victims waits for a slow victim, from its deletion."""


@dataclass(slots=True)
class Preempting:
    """The nominations of a pod or gang, and the pods (``ending``) whose termination they wait for.

    ``claims``: UIDs of the claims whose devices come free. ``gone_at``: when the last of the pods was gone.
    ``is_late``: whether one of them has outlasted ``patience``. ``overdue``: namespaces of pods that outlived their
    grace periods.
    """

    nominations: tuple[Nomination, ...]
    ending: tuple[Pod, ...]
    claims: frozenset[str]
    is_late: bool = False
    overdue: frozenset[str] = frozenset()
    gone_at: float | None = None

    @property
    def nodes(self) -> frozenset[str]:
        return frozenset(it.node for it in self.nominations)


class UnderWay:
    """The preemptions under way, by the UID of a pod or the key of a gang."""

    def __init__(self, cluster: Cluster, evictor: VictimEvictor, clock: Callable[[], float]) -> None:
        self._cluster, self._evictor, self._clock = cluster, evictor, clock
        self._known: dict[str, Preempting] = {}

    def begin(self, who: str, nominations: Sequence[Nomination], ending: Sequence[Pod]) -> None:
        """Note that it waits for these pods to terminate."""
        before = self._known.get(who)
        # Pods that were bound or deleted leave no call behind, so their entries are dropped here.
        self._known = {key: it for key, it in self._known.items() if self._is_nominated(it, any)}
        freed = frozenset(claim.metadata.uid for pod in ending for claim in self._cluster.known_claims(pod))
        self._known[who] = Preempting(tuple(nominations), tuple(ending), freed)
        if before is not None:
            # Its next victims must not be as slow as the first ones were.
            self._known[who].is_late, self._known[who].overdue = before.is_late, before.overdue

    def end(self, who: str) -> None:
        """Note that it waits for no pods any more."""
        self._known.pop(who, None)

    def get(self, who: str) -> Preempting | None:
        """Return its preemption, or None unless all its pods are still nominated."""
        known = self._known.get(who)
        return known if known is not None and self._is_nominated(known, all) else None

    def is_waiting(self, who: str) -> bool:
        """Return whether it still waits for pods to terminate, or for their devices to come free."""
        known = self.get(who)
        if known is None:
            return False
        left = [it for it in map(self.current, known.ending) if it is not None]
        if left:
            known.gone_at = None
            stays = [it for it in left if not self._evictor.is_leaving(known.nodes, it)]
            late = [it for it in stays if it.metadata.deletion_timestamp is not None]
            known.is_late = known.is_late or bool(late)
            known.overdue |= {it.metadata.namespace for it in late if self._evictor.is_overdue(it)}
            return not stays
        # The pods are gone. Their claims are deallocated by other controllers, which takes a moment but not for ever.
        # Pods are gone before their devices are free: the claims are released a moment later.
        if known.gone_at is None:
            known.gone_at = self._clock()
        is_held = any(map(self._cluster.allocated_devices.holds, known.claims))
        return is_held and self._clock() - known.gone_at < FREED_SECONDS

    def lateness(self, who: str) -> tuple[bool, frozenset[str]]:
        """Return whether one of its victims was too late, and the namespaces of overdue victims."""
        known = self._known.get(who)
        return (known.is_late, known.overdue) if known is not None else (False, frozenset())

    def may_still_end(self, who: str) -> bool:
        """Return whether all pods that it waits for are being deleted, at most ``KEPT_SECONDS`` ago."""
        known = self.get(who)
        left = [it for it in map(self.current, known.ending) if it is not None] if known is not None else []
        return bool(left) and all(self._evictor.seconds_deleted(it) < KEPT_SECONDS for it in left)

    def current(self, pod: Pod) -> Pod | None:
        """Return the pod as it is now, or None if it is gone or finished."""
        current = self._cluster.pods.get(pod.key, pod.metadata.uid)
        return None if current is None or pod_is_done(current) else current

    def _is_nominated(self, it: Preempting, some: Callable[[Iterable[bool]], bool]) -> bool:
        known = self._cluster.nominated_pods
        return some(known.get(each.pod.metadata.uid) is not None for each in it.nominations)
