"""Deletes pods on tainted devices when they are due, and reports that in DeviceTaintRules (scheduling.md 10.3 to 10.5).

The controller ``eviction``. Each look computes from the cache whether the pod has to go, and when. The result is kept
only to report that a deletion was cancelled. So restarts, and events that come late, twice or never, do no harm: due
times follow from the taints themselves.

A deletion takes three requests. After a crash or a failure between any two of them, the next look begins with the first
again. Each names the UID of the pod, so that a successor of the same name is safe:

1. The pod is read. If it is gone, replaced, finished or terminating, it is left alone. So a DELETE whose answer was
   lost is not repeated, and not counted.
2. Its condition ``DisruptionTarget`` is written, unless it is there.
3. It is deleted, with its own grace period.

A pod that is due later is checked every minute, because a clock may be set and a computer may sleep.

The pods of a PodGroup with the disruption mode ``all`` are evicted together. Pods that are not due by themselves go
first. After a crash only the taint of the others tells that they have to go.

The controller ``taint-rules``. The condition of a rule is written at once when the rule is new or its spec changed,
afterwards at most every 10 seconds, and only when it says something new. A repeated write is harmless: it is one
server-side apply that names the rule's UID. Evicted pods are counted from the start of the process. One rule can
select every device of the cluster, so its pods are collected and counted in pieces, between which other tasks run.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Generator, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TypeVar

from dra_api.core import Pod
from dra_api.meta import Condition
from dra_api.references import pod_is_ending
from dra_api.resource import DeviceTaintRule
from dra_api.values import format_time, parse_time
from dra_kube import NotFound

from dra_operator.cache import Key, UidMemory, evictions
from dra_operator.controllers.context import ControllerContext
from dra_operator.controllers.metrics import EvictionMetrics
from dra_operator.controllers.workers import tell
from dra_operator.eviction import Cause, Eviction, condition_of, eviction_condition
from dra_operator.kube import DEVICE_TAINT, EventReason, RuleWriter
from dra_operator.scheduling import InPieces

REPORT_SECONDS = 10.0
"""Shortest time between two writes of a rule's condition, unless its spec changes."""
T = TypeVar("T")


class RuleReporter:
    """Handles ``taint-rules:`` keys."""

    def __init__(self, context: ControllerContext, rules: RuleWriter) -> None:
        self._cluster, self._rules, self._ours, self._now = context.cluster, rules, context.ours, context.now
        self._queue, self._evictions = context.queues.of("taint-rules"), context.queues.of("eviction")
        self._evicted: dict[str, tuple[str, int]] = {}
        """The UID of each rule, by name, and the number of pods evicted for it."""

    def pod_evicted(self, causes: Iterable[Cause]) -> None:
        """Note that a pod was deleted for these causes."""
        for cause in causes:
            if cause.rule:
                self._evicted[cause.rule] = (cause.rule_uid, self._count(cause.rule, cause.rule_uid) + 1)

    def look_later(self, causes: Iterable[Cause]) -> None:
        """Have the conditions of the rules among the causes updated later, since more changes may follow."""
        for cause in causes:
            if cause.rule:
                self._queue.add_after(Key("taint-rules", cause.rule), REPORT_SECONDS)

    async def handle(self, key: str) -> None:
        """Update the status of one rule, and requeue the pods that a change of the rule concerns."""
        rule = self._cluster.rules.get(key)
        # Counted before the first pod is evicted, or the condition would never name the pods that were pending.
        condition = await self._news(rule) if rule is not None and self._ours.eviction else None
        for pods in evictions.users_of_changed(self._cluster, key):
            self._evictions.add(*pods)
            await asyncio.sleep(0)  # a rule may concern all pods of the cluster
        if rule is None:
            self._evicted.pop(key, None)
        elif condition is not None:
            with suppress(NotFound):  # the rule was deleted meanwhile
                await self._rules.report(rule, condition)

    async def _news(self, rule: DeviceTaintRule) -> Condition | None:
        """Return the condition that the rule should have, or None if it has it or may not be written yet."""
        name = rule.metadata.name
        if (wait := self._too_early(rule)) > 0:
            self._queue.add_after(Key("taint-rules", name), wait)
            return None
        counts = await _in_parts(evictions.counts_of(self._cluster, rule, self._now()))
        return eviction_condition(rule, counts, self._count(name, rule.metadata.uid), format_time(self._now()))

    def _count(self, name: str, uid: str) -> int:
        known, count = self._evicted.get(name, (uid, 0))
        return count if known == uid else 0

    def _too_early(self, rule: DeviceTaintRule) -> float:
        """Return the seconds until the status may be written again; a changed spec is reported at once."""
        # By the time in the condition itself, so that a restart does not write all rules at once.
        known = condition_of(rule)
        # People wait for the effect of what they wrote; later news may wait ten seconds.
        if known is None or known.observed_generation != rule.metadata.generation:
            return 0.0
        written = parse_time(known.last_transition_time)
        return (
            min(REPORT_SECONDS, REPORT_SECONDS - (self._now() - written).total_seconds())
            if written is not None
            else 0.0
        )


async def _in_parts(work: Generator[None, None, T]) -> T:
    """Return the result of the work. Other tasks run when it yields."""
    pieces = InPieces(work)
    for _ in pieces:
        await asyncio.sleep(0)
    return pieces.answer


logger = logging.getLogger(__name__)

REMEMBERED_UIDS = 500
"""Evicted pods that are remembered, until the watch shows their deletion."""
EVICTION_LOOK_SECONDS = 60.0
"""Longest time between two checks of a pod that is due later."""
MATES_LOOK_SECONDS = 1.0
"""Time between two checks whether the rest of a PodGroup is gone; for large groups see ``SECONDS_FOR_A_MATE``."""
SECONDS_FOR_A_MATE = 0.02
"""Time to delete one pod of a large group at the rate of requests. An earlier check would be in vain."""


@dataclass(slots=True)
class _Planned:
    """A pod to be evicted. ``since``: when this was first seen; ``is_told``: whether an event has announced it.

    ``waits_until``: how long it waits for the rest of its PodGroup, by the monotonic clock.
    """

    pod: Pod
    eviction: Eviction
    since: datetime
    is_told: bool = False
    waits_until: float | None = None


class PodEvictor:
    """Handles ``eviction:`` keys."""

    def __init__(self, context: ControllerContext, rules: RuleReporter, metrics: EvictionMetrics) -> None:
        self._cluster, self._pods, self._events = context.cluster, context.pods, context.events
        self._ours, self._now, self._queue = context.ours, context.now, context.queues.of("eviction")
        self._rules, self._metrics = rules, metrics
        self._planned: dict[str, _Planned] = {}
        self._evicted = UidMemory(REMEMBERED_UIDS)

    async def handle(self, key: str) -> None:
        """Delete the pod if it is due, check again when it is, or forget it if it may stay."""
        pod = self._cluster.pods.get(key)
        planned = self._planned.get(key)
        # A successor of the name has nothing planned: that of its predecessor was not cancelled, it is over.
        if planned is not None and (pod is None or pod.metadata.uid != planned.pod.metadata.uid):
            self._forget(key)
        if pod is None:
            return
        if not self._ours.eviction or self._is_going(pod):
            self._forget(key)
            return
        eviction = self._plan(pod)
        if eviction is None:
            return
        wait = (eviction.due - self._now()).total_seconds()
        if wait > 0:
            # A clock may be set, and a computer may sleep: no timer is trusted for longer.
            self._queue.add_after(Key("eviction", key), min(wait, EVICTION_LOOK_SECONDS))
        else:
            await self._evict(pod)

    def _plan(self, pod: Pod) -> Eviction | None:
        """Return when and why the pod is due by the cache, or None. Posts an event if an announced eviction is off."""
        known = self._planned.get(pod.key)
        now = self._now()
        since = known.since if known is not None else now
        eviction = evictions.eviction_of(self._cluster, pod, since, now)
        if eviction is None:
            if known is not None:
                self._forget(pod.key)
                self._events.post(pod, EventReason.DEVICE_TAINT_EVICTION, "Cancelling deletion")
                tell(logger, logging.INFO, "eviction cancelled", pod=pod.key)
            return None
        # Another time or cause is the same eviction to people: they are told once.
        if known is None or known.eviction != eviction:
            is_told = known is not None and known.is_told
            self._forget(pod.key)
            self._planned[pod.key] = _Planned(pod, eviction, since, is_told)
            self._rules.look_later(eviction.causes)
            due = eviction.due.isoformat()
            tell(logger, logging.DEBUG, "eviction planned", pod=pod.key, due=due, because=partial(str, eviction))
        return eviction

    async def _evict(self, pod: Pod) -> None:
        pause = self._goes_later(pod)
        if pause is not None:
            self._queue.add_after(Key("eviction", pod.key), pause)
            return
        try:
            # The cache may be late: the pod may have finished, got a toleration, or been replaced by another one.
            fresh = await self._pods.read(pod.metadata.namespace, pod.metadata.name)
            if fresh.metadata.uid != pod.metadata.uid or self._is_going(fresh):
                self._forget(pod.key)
                return
            eviction = self._plan(fresh)
            if eviction is None:
                return
            if eviction.due > self._now():
                self._queue.add(Key("eviction", pod.key))
                return
            self._tell(fresh)
            await self._pods.mark_disrupted(fresh, DEVICE_TAINT)
            await self._pods.delete(fresh)
        except NotFound:
            self._forget(pod.key)
            return
        self._deleted(fresh, eviction)

    def _goes_later(self, pod: Pod) -> float | None:
        """Return the seconds to wait for pods that are evicted only because of this one, or None to evict it now.

        It waits for at most a minute in all.
        """
        # Only this pod's taint tells that the others have to go. If it went first, and the process crashed then, the
        # others would stay without it, though their group is disrupted as a whole.
        now, elapsed, planned = self._now(), time.monotonic(), self._planned[pod.key]
        if not self._is_due_alone(pod, now) or (planned.waits_until is not None and elapsed >= planned.waits_until):
            return None
        left = [it for it in self._cluster.ending_with(pod) if not self._is_going(it)]
        waiting = [it for it in left if not self._is_due_alone(it, now)]
        if not waiting:
            return None
        # From the first look on: a mate that never goes must not keep this one for ever.
        if planned.waits_until is None:
            planned.waits_until = elapsed + EVICTION_LOOK_SECONDS
        self._queue.add(*(Key("eviction", it.key) for it in waiting))
        return min(max(MATES_LOOK_SECONDS, len(waiting) * SECONDS_FOR_A_MATE), EVICTION_LOOK_SECONDS)

    def _is_due_alone(self, pod: Pod, now: datetime) -> bool:
        planned = self._planned.get(pod.key)
        own = evictions.own_eviction(self._cluster, pod, planned.since if planned is not None else now)
        return own is not None and own.due <= now

    def _tell(self, pod: Pod) -> None:
        planned = self._planned[pod.key]
        if not planned.is_told:
            planned.is_told = True
            self._events.post(pod, EventReason.DEVICE_TAINT_EVICTION, "Marking for deletion")

    def _deleted(self, pod: Pod, eviction: Eviction) -> None:
        seconds = max(0.0, (self._now() - eviction.due).total_seconds())
        # The watch shows the deletion a moment later, and the pod must not be deleted, or counted, twice.
        self._evicted.add(pod.metadata.uid)
        self._metrics.evicted(seconds)
        self._rules.pod_evicted(eviction.causes)
        self._forget(pod.key)
        tell(logger, logging.INFO, "pod evicted", pod=pod.key, late=round(seconds, 3), because=str(eviction))

    def _forget(self, key: str) -> None:
        planned = self._planned.pop(key, None)
        if planned is not None:
            self._rules.look_later(planned.eviction.causes)

    def _is_going(self, pod: Pod) -> bool:
        """Return whether the pod has finished, terminates, or was evicted: then nothing is done or cancelled."""
        return pod_is_ending(pod) or pod.metadata.uid in self._evicted
