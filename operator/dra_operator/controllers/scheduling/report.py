"""Says why a pod, or an immediate claim, waits: once per reason, so that a long wait costs nothing.

A reason may come and go many times a second: a thousand pods name a claim that is made and deleted all the time.
What a pod is told is therefore spaced. The first two reasons are told at once; from then on the pauses grow
(``GrowingPauses``), from a second to a minute. The pod is looked at again at the end of each, so that the last reason
is told in any case.

A pod may be put off again and again without a reason that is worth a write: it defers to another scheduler for a
moment, or a write failed and is repeated. When that lasts (``silence``), it says so like any other reason
(``goes_on_waiting``). And a reason that is put off itself is told at the latest when it has stood as long.

A write of the reason without an answer may take effect after a later reason was told. As long as the API server may
still carry it out, the pod is looked at again, so that it shows the last reason in the end.

A pod that finds no devices waits in silence while claims of deleted pods are released (``DevicePatience``). Such claims
hold their devices for some milliseconds more, until the deletion and the finalizer are written. A pod that comes in
this time is not told that there are none: that would cost a condition and an event, and be wrong a moment later. The
devices wake it when they are free. Half a second after its first attempt it is told its reason in any case. A pod that
was told before is told again at once.

A decision that took long has the pod rest (``workers``). A pod whose silence would end during its rest says at once
why it is put off.

A pod whose claims are not made is not tried, as with kube-scheduler (SC-01). If that lasts, it says so
(``awaited_claim``). Claims are made within a moment. Where a template is missing or too large, or its claims are
refused, an event of the pod says why. But an event is gone after an hour, and the controller of claims may not run. So
an older pod says why it waits: soon where its template is known to be at fault. A template is often applied a
moment after its pods.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from dra_api.core import Pod
from dra_api.values import parse_time
from dra_kube import NotFound

from dra_operator.cache import Cluster, Key
from dra_operator.controllers.claims.delayed_deletion import DelayedDeletion
from dra_operator.controllers.context import REMEMBERED_THINGS, Announced, GrowingPauses, Recently
from dra_operator.controllers.errors import PodVanished
from dra_operator.controllers.queue import WorkQueue
from dra_operator.controllers.scheduling.planning import SchedulingContext
from dra_operator.controllers.settings import NAMES, ROUNDING_SECONDS, BackoffSettings, OwnControllers
from dra_operator.controllers.workers import tell
from dra_operator.kube import EventReason, may_have_happened
from dra_operator.scheduling.state import GATED, Obstacle, claim_behind, is_at_gate, is_placeholder, size_refusal


def awaited_claim(obstacle: Obstacle, controllers: OwnControllers, *, are_made: bool) -> str:
    """Return for what the pod waits where nothing is known to be wrong.

    ``are_made``: a claim of another pod was made since this process began, so whoever makes them is at work.
    """
    events = "events FailedResourceClaimCreation of the pod say why"
    if controllers.templates or are_made:
        return f"{obstacle.text}: if that lasts, {events}"
    # The whole value, so that who follows the advice keeps the controllers that he has.
    ours = ",".join(name for name in NAMES if name in ("templates", "release") or getattr(controllers, name))
    return (
        f"{obstacle.text}: claims are left to kube-controller-manager, which has made none for any pod since this "
        f"operator started. If no {events}, its resourceclaim-controller does not run: take -resourceclaim-controller "
        f"out of its --controllers, or start dra-operator with --controllers {ours}"
    )


def template_fault(cluster: Cluster, pod: Pod, obstacle: Obstacle) -> str | None:
    """For what the pod waits, and what to do about it, if a template is missing or too large. ``obstacle`` is about an
    entry, or about the claim of one."""
    recorded = pod.status.resource_claim_statuses or ()
    # The obstacle names the entry, or the claim that is recorded for it.
    meant = {obstacle.subject, *(it.name for it in recorded if it.resource_claim_name == obstacle.subject)}
    for entry in pod.spec.resource_claims or ():
        name = entry.resource_claim_template_name
        if entry.name not in meant or not name:
            continue
        template = cluster.templates.get(f"{pod.metadata.namespace}/{name}")
        if template is None:
            return (
                f'waits for a claim of entry "{entry.name}": resourceclaimtemplate "{name}" not found: create '
                f"it, or correct resourceClaimTemplateName"
            )
        if (size := template.bytes_of_spec) is not None:
            return f'waits for a claim of entry "{entry.name}": resourceclaimtemplate "{name}" {size_refusal(size)}'
    return None


LATE_SECONDS: Final = 4.0
"""Seconds after which a key is late that is in line, or of which the requests are not answered."""
UNSAID_SECONDS: Final = 0.5
"""Seconds for which a key may be in line, or with a worker, without a word about it in any case."""
NOT_ANSWERED: Final = "waits for answers of the API server to requests for the pod"


def waits_for_turn(queue: WorkQueue, key: Key) -> str:
    """Return for what the object of a key waits that is in line."""
    return f"waits for its turn: {queue.fairness.reason(key)}"


def generation_waits(queue: WorkQueue, pod: Pod) -> str:
    """Return for what the generation of the pod's claims waits, or an empty text if nothing holds it up."""
    key = Key("templates", pod.key)
    if queue.seconds(key) < UNSAID_SECONDS:
        return ""
    return NOT_ANSWERED if queue.is_working(key) else waits_for_turn(queue, key)


SILENT_SECONDS: Final = 0.5
"""Seconds from the first attempt that found no devices."""


def shows_reason(pod: Pod) -> bool:
    """Return whether the pod was told something about its place before."""
    return any(it.type == "PodScheduled" for it in pod.status.conditions or ())


def shown_reason(pod: Pod) -> str | None:
    """Return why the pod waits, as its condition says it, or None if it has none."""
    found = (it for it in pod.status.conditions or () if (it.type, it.status) == ("PodScheduled", "False"))
    return next((it.message or "" for it in found), None)


_SHORTEST_SECONDS = 0.001


class DevicePatience:
    """``clock`` gives seconds."""

    def __init__(self, delayed_deletion: DelayedDeletion, clock: Callable[[], float]) -> None:
        self._delayed_deletion, self._began = delayed_deletion, Recently(clock)

    def seconds_left(self, pod: Pod) -> float:
        """Return how long a pod that lacks devices may wait in silence; 0: tell it now."""
        # No claim is about to come free, so that there are none is true.
        if shows_reason(pod) or not self._delayed_deletion.is_ending(SILENT_SECONDS):
            return 0.0
        uid = pod.metadata.uid
        age = self._began.age(uid)
        if age is None:
            self._began.add(uid)
        left = SILENT_SECONDS - (age or 0.0)
        # A timer of less time than the clock tells apart would come again and again without an end.
        return left if left >= _SHORTEST_SECONDS else 0.0


logger = logging.getLogger(__name__)

UNSCHEDULABLE = "Unschedulable"
SCHEDULER_ERROR = "SchedulerError"
AGAIN = "retrying with back-off"
REPORT_PAUSES = BackoffSettings(first=1.0, longest=60.0)
"""Between two reasons of a pod."""


class WaitingReport:
    """A pod has a condition and an event, a claim an event: its status has no conditions of its own.

    The times ``silence`` and ``late_writes`` are in ``TimeSettings``.
    """

    def __init__(self, context: SchedulingContext) -> None:
        self._context, self._cluster, self._clock = context, context.cluster, context.clock
        self._silence, self._late_writes = context.times.silence, context.times.late_writes
        self._later = context.queues.add_after
        self._silent, self._came = Recently(self._clock), Recently(self._clock)
        self._rests: dict[str, float] = {}
        """By the UID of a pod: how long it rests after the decision that was made, if it does."""
        self._put_off: dict[str, tuple[str, float]] = {}
        """By the UID of a pod: what it is to be told after a pause, and since when."""
        self._pauses, self._unanswered = GrowingPauses(self._clock, REPORT_PAUSES, self._later), Recently(self._clock)
        self._announced = Announced()

    def begin(self, pod: Pod) -> None:
        """Note that an attempt begins: the pod's silence counts from the first one after it was told something."""
        # Not at each attempt: otherwise a pod that is tried often would never have waited long.
        if pod.metadata.uid not in self._silent:
            self._silent.add(pod.metadata.uid)
        if self._rests:
            self._rests.pop(pod.metadata.uid, None)

    def came(self, pod: Pod) -> None:
        """Note that the watch brought a new pod."""
        self._came.add(pod.metadata.uid)

    def age(self, pod: Pod) -> float:
        """Return the seconds since the pod came; for one that was there before this process, since it was created.

        The time of day is no measure for a pod that comes: it may be set, and the API server's may be another one. With
        a clock that is ahead each new pod said at once that it waits for long; with one that is behind none said so.
        """
        known = self._came.age(pod.metadata.uid)
        created = parse_time(pod.metadata.creation_timestamp)
        if known is not None or created is None:
            return known or 0.0
        return max(0.0, (self._context.now() - created).total_seconds())

    def rests(self, pod: Pod, seconds: float) -> None:
        """Note that the pod rests for so many seconds after the decision that was made."""
        self._rests[pod.metadata.uid] = seconds
        if len(self._rests) > REMEMBERED_THINGS:
            del self._rests[next(iter(self._rests))]

    def silence_left(self, pod: Pod) -> float | None:
        """Return the seconds that the pod may still be put off without a word, or None if it was told something."""
        age = self._silent.age(pod.metadata.uid)
        if age is None:
            return None
        left = self._silence - age
        # Nothing can be said before the rest is over.
        return left if self._rests.get(pod.metadata.uid, 0.0) <= left else min(left, 0.0)

    def is_over(self, pod: Pod) -> None:
        """Note that the pod is not put off: nothing has to be said."""
        self._silent.discard(pod.metadata.uid)

    async def goes_on_waiting(self, pod: Pod, reason: str, why: str) -> None:
        """Report why a pod is put off, if that has lasted too long; otherwise have it looked at again then.

        Raises as ``waits``.
        """
        left = self.silence_left(pod)
        if left is not None and left > 0:
            self._later(Key("placement", pod.key), left + ROUNDING_SECONDS)
        elif left is not None:
            await self.waits_after(pod, reason, why)

    async def waits_after(self, pod: Pod, reason: str, message: str) -> None:
        """Report the reason of a pod that was put off before, without beginning to count anew. Raises as ``waits``."""
        await self._waits(pod, reason, message, alone=True)

    async def waits(self, pod: Pod, reason: str, message: str, *, alone: bool = False) -> None:
        """Report the reason, unless the pod shows it already. ``alone``: it is none of the pod's PodGroup.

        Raises KubeError when the condition cannot be written, and PodVanished.
        """
        self._silent.discard(pod.metadata.uid)
        await self._waits(pod, reason, message, alone=alone)

    async def _waits(self, pod: Pod, reason: str, message: str, *, alone: bool) -> None:
        if is_placeholder(pod):
            self._tell_of_claim(pod, message)
            return
        # Its own scheduler has not looked at it: any other reason would be taken for that one's answer.
        reason = GATED if is_at_gate(pod) else reason
        if not alone:
            self._context.group_waits(pod, reason, message)
        self._look_when_settled(pod)
        # The newest version: a repeated reason costs neither a write nor an event.
        current = self._cluster.pods.get(pod.key) or pod
        for condition in current.status.conditions or ():
            if (condition.type, condition.status) == ("PodScheduled", "False") and (
                condition.reason,
                condition.message,
            ) == (reason, message):
                self._put_off.pop(pod.metadata.uid, None)
                return
        if self._has_to_pause(pod, f"{reason}: {message}"):
            return
        self._put_off.pop(pod.metadata.uid, None)
        # Before the write: one that fails was an attempt to write as well.
        self._pauses.did(pod.metadata.uid)
        tell(logger, logging.INFO, "pod refused", pod=pod.key, reason=reason, why=message)
        self._context.events.post(pod, EventReason.FAILED_SCHEDULING, message)
        try:
            await self._context.pods.report_waiting(pod, reason, message)
        except NotFound as error:
            raise PodVanished(str(error)) from error
        except Exception as error:
            # Should it land after a later reason, the pod would show an old one from then on.
            if may_have_happened(error):
                self._unanswered.add(pod.metadata.uid)
            raise

    def _has_to_pause(self, pod: Pod, words: str) -> bool:
        """Return whether the pod was told other things too often to be told this now; it is looked at again then."""
        uid, key = pod.metadata.uid, Key("placement", pod.key)
        if not self._pauses.puts_off(uid, key):
            return False
        known, since = self._put_off.get(uid, ("", 0.0))
        if known != words:
            # A reason that comes anew has not stood yet.
            since = self._clock()
            self._put_off.pop(uid, None)
            self._put_off[uid] = (words, since)
            if len(self._put_off) > REMEMBERED_THINGS:
                del self._put_off[next(iter(self._put_off))]
        left = since + self._silence - self._clock()
        if left > 0:
            self._later(key, left + ROUNDING_SECONDS)
        return left > 0

    def _look_when_settled(self, pod: Pod) -> None:
        """If the last write without an answer may still land, see then whether the pod shows what it was told last."""
        age = self._unanswered.age(pod.metadata.uid)
        if age is not None and age < self._late_writes:
            self._later(Key("placement", pod.key), self._late_writes - age + ROUNDING_SECONDS)
        elif age is not None:
            self._unanswered.discard(pod.metadata.uid)

    def forget(self, pod: Pod) -> None:
        """Forget the pod, since it waits no longer: the same reason is news again."""
        self._announced.forget(pod.metadata.uid)
        self._silent.discard(pod.metadata.uid)
        self._came.discard(pod.metadata.uid)
        self._rests.pop(pod.metadata.uid, None)
        self._put_off.pop(pod.metadata.uid, None)

    def _tell_of_claim(self, pod: Pod, message: str) -> None:
        claim = self._cluster.claims.get(claim_behind(pod))
        if claim is not None and self._announced.is_news(pod.metadata.uid, message):
            tell(logger, logging.INFO, "claim refused", claim=claim.key, why=message)
            self._context.events.post(claim, EventReason.FAILED_ALLOCATION, message)
