"""Says why a pod, or an immediate claim, waits: once per reason, so that a long wait costs nothing.

A reason may come and go many times a second: a thousand pods name a claim that is made and deleted all the time.
What a pod is told is therefore spaced. The first two reasons are told at once; from then on the pauses grow
(``growing_pauses``), from a second to a minute. The pod is looked at again at the end of each, so that the last reason
is told in any case.

A write of the reason without an answer may take effect after a later reason was told. As long as the API server may
still carry it out, the pod is looked at again, so that it shows the last reason in the end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from dra_api.core import Pod
from dra_kube import NotFound

from dra_operator.cache import Cluster, Key
from dra_operator.controllers.shared.errors import PodVanished
from dra_operator.controllers.shared.last_events import Announced
from dra_operator.controllers.shared.logbook import tell
from dra_operator.controllers.shared.recently import Recently
from dra_operator.controllers.shared.timing import ROUNDING_SECONDS, BackoffSettings
from dra_operator.controllers.work.growing_pauses import GrowingPauses
from dra_operator.kube import EventReason, EventRecorder, PodWriter, may_have_happened
from dra_operator.scheduling.state import GATED, claim_behind, is_at_gate, is_placeholder

logger = logging.getLogger(__name__)

UNSCHEDULABLE = "Unschedulable"
SCHEDULER_ERROR = "SchedulerError"
AGAIN = "retrying with back-off"
REPORT_PAUSES = BackoffSettings(first=1.0, longest=60.0)
"""Between two reasons of a pod."""


class WaitingReport:
    """A pod has a condition and an event, a claim an event: its status has no conditions of its own.

    ``later`` brings a key back after so many seconds; ``late_writes``: seconds in which a write may still land.
    ``group_waits`` is told what the PodGroup of a pod waits for.
    """

    def __init__(
        self,
        cluster: Cluster,
        pods: PodWriter,
        events: EventRecorder,
        clock: Callable[[], float],
        later: Callable[[Key, float], None],
        late_writes: float,
        group_waits: Callable[[Pod, str, str], None],
    ) -> None:
        self._late_writes, self._group_waits = late_writes, group_waits
        self._cluster, self._pods, self._events, self._later = cluster, pods, events, later
        self._pauses, self._unanswered = GrowingPauses(clock, REPORT_PAUSES, later), Recently(clock)
        self._announced = Announced()

    async def waits(self, pod: Pod, reason: str, message: str, *, alone: bool = False) -> None:
        """Report the reason, unless the pod shows it already. ``alone``: it is none of the pod's PodGroup.

        Raises KubeError when the condition cannot be written, and PodVanished.
        """
        if is_placeholder(pod):
            self._tell_of_claim(pod, message)
            return
        reason = GATED if is_at_gate(pod) else reason
        if not alone:
            self._group_waits(pod, reason, message)
        self._look_when_settled(pod)
        current = self._cluster.pods.get(pod.key) or pod
        for condition in current.status.conditions or ():
            if (condition.type, condition.status) == ("PodScheduled", "False") and (
                condition.reason,
                condition.message,
            ) == (reason, message):
                return
        if self._pauses.puts_off(pod.metadata.uid, Key("placement", pod.key)):
            return
        self._pauses.did(pod.metadata.uid)
        tell(logger, logging.INFO, "pod refused", pod=pod.key, reason=reason, why=message)
        self._events.post(pod, EventReason.FAILED_SCHEDULING, message)
        try:
            await self._pods.report_waiting(pod, reason, message)
        except NotFound as error:
            raise PodVanished(str(error)) from error
        except Exception as error:
            if may_have_happened(error):
                self._unanswered.add(pod.metadata.uid)
            raise

    def _look_when_settled(self, pod: Pod) -> None:
        """If the last write without an answer may still land, see then whether the pod shows what it was told last."""
        age = self._unanswered.age(pod.metadata.uid)
        if age is not None and age < self._late_writes:
            self._later(Key("placement", pod.key), self._late_writes - age + ROUNDING_SECONDS)
        elif age is not None:
            self._unanswered.discard(pod.metadata.uid)

    def forget(self, pod: Pod) -> None:
        """It has what it waited for: the same reason is news again."""
        self._announced.forget(pod.metadata.uid)

    def _tell_of_claim(self, pod: Pod, message: str) -> None:
        claim = self._cluster.claims.get(claim_behind(pod))
        if claim is not None and self._announced.is_news(pod.metadata.uid, message):
            tell(logger, logging.INFO, "claim refused", claim=claim.key, why=message)
            self._events.post(claim, EventReason.FAILED_ALLOCATION, message)
