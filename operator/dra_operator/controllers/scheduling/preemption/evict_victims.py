"""Ends the victims of a preemption, and knows which pods are about to end.

A victim is read, marked by the condition ``DisruptionTarget`` and deleted by its UID, with its own grace period. One
that is gone, replaced or ending already is left alone. A victim that is still there when the patience of others is over
(30 seconds by default), whatever its grace period, is no longer counted on. One that the server refuses to delete is no
victim for ten minutes.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection
from datetime import datetime
from typing import Final

from dra_api.core import Pod
from dra_api.values.times import parse_time
from dra_kube import Forbidden, Invalid, NotFound

from dra_operator.controllers.logbook import tell
from dra_operator.controllers.memory import Recently
from dra_operator.kube import Disruption, EventReason, EventRecorder, PodWriter
from dra_operator.scheduling.preemption import OVERDUE_SECONDS, leaves_soon

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
        """Whether the server did not let the pod be deleted."""
        return self._refused.within(pod.metadata.uid, REFUSED_SECONDS)

    def is_leaving(self, nodes: Collection[str], pod: Pod) -> bool:
        """Whether the pod is about to end. ``nodes``: who ends there was perhaps a victim of a former process."""
        age = self._asked.age(pod.metadata.uid)
        if pod.metadata.deletion_timestamp is None:
            return age is not None and age < self._rest
        if leaves_soon(pod, self._now(), self._patience):
            return True
        if age is None and pod.spec.node_name in nodes:
            age = self.seconds_deleted(pod)
        return age is not None and age < self._patience + OVERDUE_SECONDS

    def is_overdue(self, pod: Pod) -> bool:
        """Whether the pod is still there although its grace period is over."""
        ends = parse_time(pod.metadata.deletion_timestamp)
        return ends is not None and (self._now() - ends).total_seconds() >= OVERDUE_SECONDS

    def seconds_deleted(self, pod: Pod) -> float:
        """Since how many seconds the pod is being deleted, by what it says of itself; infinity if it is not."""
        ends, grace = parse_time(pod.metadata.deletion_timestamp), pod.metadata.deletion_grace_period_seconds
        return (self._now() - ends).total_seconds() + (grace or 0) if ends is not None else math.inf

    async def end(self, victim: Pod, preemptor: str, why: str) -> bool:
        """Whether the victim was deleted by this, for the preemptor. Raises KubeError."""
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
