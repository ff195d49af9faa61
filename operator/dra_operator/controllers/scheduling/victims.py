"""When a pod may look for pods to preempt, how victims are deleted, and how their end is waited for.

*Turns.* A pod has one attempt every ten seconds, and so has a gang. After each attempt others wait for nineteen times
as long as it took, so that all of them together take a twentieth of the time at most. Pods that have to wait stand in a
line, and the next one is called when the time has come: first one of each namespace, so that a thousand pods of one
tenant put a pod of another one off by one attempt. A pod that is called and does not come is passed over. A process
that has just begun preempts no pods for ten seconds: what others began before may not be seen in full yet. In that time
only pods that are nominated already have a turn, so that what the last process kept for them is kept again.

*Deletion.* A victim is read, marked by the condition ``DisruptionTarget`` and deleted by its UID, with its own grace
period. One that is gone, replaced or ending already is left alone. A victim that is still there when the patience of
others is over (30 seconds by default), whatever its grace period, is no longer counted on. One that the server refuses
to delete is no victim for ten minutes.
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
from dra_api.references import pod_is_done
from dra_api.values import parse_time
from dra_kube import Forbidden, Invalid, NotFound

from dra_operator.cache import Cluster
from dra_operator.controllers.context import Recently
from dra_operator.controllers.logbook import tell
from dra_operator.controllers.settings import ROUNDING_SECONDS
from dra_operator.kube import Disruption, EventReason, EventRecorder, PodWriter
from dra_operator.scheduling.preemption import OVERDUE_SECONDS, leaves_soon
from dra_operator.scheduling.state import Nomination

SHARE: Final = 0.05
"""Of the time that all attempts together may take."""
PATIENCE_SECONDS: Final = 5.0
"""So long a pod that was called has its turn."""
MOST_PODS_IN_LINE: Final = 1000
"""Pods of a namespace that stand in the line; others are looked at again later."""
LOOK_AGAIN_SECONDS: Final = 60.0
"""A pod in the line is looked at so often, should it never be called; the first one of a namespace when the pod
that was called did not come."""


class PreemptionTurns:
    """``look_again`` has the pod of a key looked at after so many seconds; ``waits`` says whether one still does."""

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
        """When the next pod that is nominated already may have a turn, before the others do."""
        self._tried = Recently(clock)
        self._line: OrderedDict[str, OrderedDict[str, None]] = OrderedDict()
        """Keys of pods by namespace."""
        self._called = ("", -math.inf)
        """Whose turn it is, and until when."""
        self._last = ""
        """The namespace of the last one that was called."""

    @property
    def is_resting(self) -> bool:
        """Return whether the process has just begun: no pod may end yet."""
        return self._clock() < self._begins_at

    def may_try(self, pod: Pod, who: str = "", *, recalls: bool = False) -> bool:
        """Return whether it is the pod's turn; otherwise it is looked at again when it is.

        ``who`` has the attempt, if that is not the pod alone: its gang. ``recalls``: the last process has nominated it.
        """
        now, called = self._clock(), self._called
        age = self._tried.age(who or pod.metadata.uid)
        if age is not None and age < self._rest:
            self._later(pod.key, self._rest - age)
            return False
        if recalls and now < self._begins_at:
            if now < self._recalls_at:
                self._later(pod.key, self._recalls_at - now)
                return False
            self._recalls_at = now + PATIENCE_SECONDS  # no other one begins while this attempt goes on in pieces
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
        if now >= called[1]:
            self._call(now)
        is_first = next(iter(there), "") == pod.key
        self._later(pod.key, self._called[1] - now if is_first else LOOK_AGAIN_SECONDS)
        return False

    def took(self, pod: Pod, seconds: float, who: str = "") -> None:
        """Note that the attempt is over."""
        now = self._clock()
        self._tried.add(who or pod.metadata.uid)
        self._recalls_at = now + seconds * (1 / SHARE - 1)
        self._free_at = max(self._begins_at, self._recalls_at)
        self._call(now)

    def _leave(self, pod: Pod) -> None:
        namespace = pod.metadata.namespace
        there = self._line.get(namespace, OrderedDict())
        there.pop(pod.key, None)
        if not there:
            self._line.pop(namespace, None)
        # No other pod begins while this attempt goes on in pieces.
        self._called = (pod.key, self._clock() + PATIENCE_SECONDS)

    def _call(self, now: float) -> None:
        """Call the next one in the line that still waits."""
        self._called = ("", -math.inf)
        while self._line:
            namespace = next((it for it in self._line if it != self._last), self._last)
            there = self._line[namespace]
            key, _ = there.popitem(last=False)
            if there:
                self._line.move_to_end(namespace)
            else:
                del self._line[namespace]
            if self._waits(key):
                self._last = namespace
                self._called = (key, max(now, self._free_at) + PATIENCE_SECONDS)
                self._later(key, self._free_at - now)
                return

    def _later(self, key: str, seconds: float) -> None:
        self._look_again(key, max(seconds, 0.0) + ROUNDING_SECONDS)


logger = logging.getLogger(__name__)

REFUSED_SECONDS: Final = 600.0


class VictimEvictor:
    """``rest``: so many seconds a deletion that was asked for may be without a visible effect.

    ``patience``: so many seconds a victim is waited for alone.
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
        """Pods that were to be deleted, and those whose deletion was refused."""
        self._disruption = Disruption(
            "dra-scheduler-preemption",
            "PreemptionByScheduler",
            f"{scheduler_name}: preempting to accommodate a higher priority pod",
        )

    def is_refused(self, pod: Pod) -> bool:
        """Return whether the server did not let the pod be deleted."""
        return self._refused.within(pod.metadata.uid, REFUSED_SECONDS)

    def is_leaving(self, nodes: Collection[str], pod: Pod) -> bool:
        """Return whether the pod is being deleted, or soon will be.

        ``nodes``: who ends there was perhaps a victim of a former process.
        """
        age = self._asked.age(pod.metadata.uid)
        if pod.metadata.deletion_timestamp is None:
            return age is not None and age < self._rest
        if leaves_soon(pod, self._now(), self._patience):
            return True
        if age is None and pod.spec.node_name in nodes:
            age = self.seconds_deleted(pod)
        return age is not None and age < self._patience + OVERDUE_SECONDS

    def is_overdue(self, pod: Pod) -> bool:
        """Return whether the pod is still there although its grace period is over."""
        ends = parse_time(pod.metadata.deletion_timestamp)
        return ends is not None and (self._now() - ends).total_seconds() >= OVERDUE_SECONDS

    def seconds_deleted(self, pod: Pod) -> float:
        """Since how many seconds the pod is being deleted, by what it says of itself; infinity if it is not."""
        ends, grace = parse_time(pod.metadata.deletion_timestamp), pod.metadata.deletion_grace_period_seconds
        return (self._now() - ends).total_seconds() + (grace or 0) if ends is not None else math.inf

    async def end(self, victim: Pod, preemptor: str, why: str) -> bool:
        """Return whether the victim was deleted by this, for the preemptor. Raises KubeError."""
        uid = victim.metadata.uid
        try:
            fresh = await self._pods.read(victim.metadata.namespace, victim.metadata.name)
            if fresh.metadata.uid != uid or fresh.is_terminal or fresh.metadata.deletion_timestamp is not None:
                return False
            self._asked.add(uid)
            await self._pods.mark_disrupted(fresh, self._disruption)
            await self._pods.delete(fresh)
        except NotFound:
            return False
        except (Forbidden, Invalid):
            self._asked.discard(uid)
            self._refused.add(uid)
            raise
        self._events.post(fresh, EventReason.PREEMPTED, why)
        tell(logger, logging.INFO, "pod preempted", pod=victim.key, by=preemptor, node=victim.spec.node_name)
        return True


FREED_SECONDS: Final = 60.0
"""So long after the end of its pods a claim may still have its devices."""
KEPT_SECONDS: Final = 600.0
"""So long what a victim has is kept for another pod when no further one can end for it."""


@dataclass(slots=True)
class Preempting:
    """What one pod, or all pods of a gang, are to get once others have ended.

    ``claims``: UIDs of those whose devices come free. ``gone_at``: when all pods that were to end had ended.
    ``is_late``: a pod that was to end for these was there for longer than others are waited for. ``overdue``:
    namespaces of those of which the grace period was over by then.
    """

    nominations: tuple[Nomination, ...]
    ending: tuple[Pod, ...]
    claims: frozenset[str]
    is_late: bool = False
    overdue: frozenset[str] = frozenset()
    gone_at: float | None = None

    @property
    def nodes(self) -> frozenset[str]:
        """Where they go."""
        return frozenset(it.node for it in self.nominations)


class UnderWay:
    """By the UID of a pod, or the key of a gang."""

    def __init__(self, cluster: Cluster, evictor: VictimEvictor, clock: Callable[[], float]) -> None:
        self._cluster, self._evictor, self._clock = cluster, evictor, clock
        self._known: dict[str, Preempting] = {}

    def begin(self, who: str, nominations: Sequence[Nomination], ending: Sequence[Pod]) -> None:
        """These end for it."""
        before = self._known.get(who)
        self._known = {key: it for key, it in self._known.items() if self._is_nominated(it, any)}
        claims = (claim for pod in ending for _, claim in self._cluster.claims_of(pod))
        freed = frozenset(claim.metadata.uid for claim in claims if claim is not None)
        self._known[who] = Preempting(tuple(nominations), tuple(ending), freed)
        if before is not None:
            self._known[who].is_late, self._known[who].overdue = before.is_late, before.overdue

    def end(self, who: str) -> None:
        """Note that it waits for none of them any more."""
        self._known.pop(who, None)

    def get(self, who: str) -> Preempting | None:
        """Return its preemption, or None unless all its pods are still nominated."""
        known = self._known.get(who)
        return known if known is not None and self._is_nominated(known, all) else None

    def is_waiting(self, who: str) -> bool:
        """Return whether it has to wait for others to end, and for what they had to come free."""
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
        if known.gone_at is None:
            known.gone_at = self._clock()
        is_held = any(map(self._cluster.allocated_devices.holds, known.claims))
        return is_held and self._clock() - known.gone_at < FREED_SECONDS

    def lateness(self, who: str) -> tuple[bool, frozenset[str]]:
        """Return whether one of its victims was too late, and the namespaces of overdue victims."""
        known = self._known.get(who)
        return (known.is_late, known.overdue) if known is not None else (False, frozenset())

    def may_still_end(self, who: str) -> bool:
        """Return whether all pods that it waits for are being deleted, though not in time: what they have stays
        kept."""
        known = self.get(who)
        left = [it for it in map(self.current, known.ending) if it is not None] if known is not None else []
        return bool(left) and all(self._evictor.seconds_deleted(it) < KEPT_SECONDS for it in left)

    def current(self, pod: Pod) -> Pod | None:
        """Return the pod as it is, unless it is gone or done."""
        current = self._cluster.pods.get(pod.key, pod.metadata.uid)
        return None if current is None or pod_is_done(current) else current

    def _is_nominated(self, it: Preempting, some: Callable[[Iterable[bool]], bool]) -> bool:
        known = self._cluster.nominated_pods
        return some(known.get(each.pod.metadata.uid) is not None for each in it.nominations)
