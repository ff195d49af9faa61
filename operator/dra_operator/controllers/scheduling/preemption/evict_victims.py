"""Ends the victims of a preemption, and knows which pods are about to end.

A victim is read, marked by the condition ``DisruptionTarget`` and deleted by its UID, with its own grace period. One
that is gone, replaced or ending already is left alone. A pod that does not end within a minute after its grace period
is no longer counted on. A victim that the server refuses to delete is no victim for ten minutes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from datetime import datetime
from typing import Final

from dra_api.core import Pod
from dra_api.values.times import parse_time
from dra_kube import Forbidden, Invalid, NotFound

from dra_operator.controllers.shared.logbook import tell
from dra_operator.controllers.shared.recently import Recently
from dra_operator.kube import Disruption, EventReason, EventRecorder, PodWriter

logger = logging.getLogger(__name__)

LATE_SECONDS: Final = 60.0
"""So long after its grace period a pod may still be ending; and one that ends within that time anyway is waited for."""
REFUSED_SECONDS: Final = 600.0


class VictimEvictor:
    """``rest``: so many seconds a deletion that was asked for may be without a visible effect."""

    def __init__(
        self,
        pods: PodWriter,
        events: EventRecorder,
        scheduler_name: str,
        *,
        clock: Callable[[], float],
        now: Callable[[], datetime],
        rest: float,
    ) -> None:
        self._pods, self._events, self._now, self._rest = pods, events, now, rest
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
        ends = parse_time(pod.metadata.deletion_timestamp)
        if ends is None:
            return self._asked.within(pod.metadata.uid, self._rest)
        left = (ends - self._now()).total_seconds()
        is_victim = pod.metadata.uid in self._asked or pod.spec.node_name in nodes
        return left > -LATE_SECONDS and (is_victim or left < LATE_SECONDS)

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
