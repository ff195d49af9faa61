"""Reports in a DeviceTaintRule how many pods it is ending, has ended, or would end (scheduling.md 10.5).

Concern ``rule`` of the queue. The condition is written at once when the rule is new or its spec changed, afterwards at
most every 10 seconds, and only when it says something new. A repeated write is harmless: it is one server-side apply
that names the rule's UID. Ended pods are counted from the start of the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from dra_api.resource import DeviceTaintRule
from dra_api.times import format_time, parse_time
from dra_kube import NotFound

from dra_operator.cluster import Cluster, Key, evictions
from dra_operator.eviction import Cause, condition_of, eviction_condition
from dra_operator.kube import RuleWriter

from .concerns import Concerns
from .queue import WorkQueue

PERIOD = 10.0  # seconds between two writes


class RuleReporter:
    """Handles ``rule:`` keys."""

    def __init__(
        self,
        cluster: Cluster,
        rules: RuleWriter,
        queue: WorkQueue,
        concerns: Concerns,
        now: Callable[[], datetime],
    ) -> None:
        self._cluster, self._rules, self._queue, self._concerns = cluster, rules, queue, concerns
        self._now = now
        self._evicted: dict[str, tuple[str, int]] = {}
        """By name: the UID of the rule, and the pods that it has ended."""

    def pod_evicted(self, causes: Iterable[Cause]) -> None:
        """A pod was deleted for these causes."""
        for cause in causes:
            if cause.rule:
                self._evicted[cause.rule] = (cause.rule_uid, self._count(cause.rule, cause.rule_uid) + 1)

    def look_later(self, causes: Iterable[Cause]) -> None:
        """The reports of the rules among the causes may be outdated. More changes may follow, so they are not updated
        at once."""
        for cause in causes:
            if cause.rule:
                self._queue.add_after(Key("rule", cause.rule), PERIOD)

    async def handle(self, key: str) -> None:
        """Bring the status of one rule up to date."""
        rule = self._cluster.rules.get(key)
        if rule is None:
            self._evicted.pop(key, None)
            return
        if not self._concerns.eviction:
            return
        if (wait := self._too_early(rule)) > 0:
            self._queue.add_after(Key("rule", key), wait)
            return
        counts = evictions.counts_of(self._cluster, rule, self._now())
        condition = eviction_condition(rule, counts, self._count(key, rule.metadata.uid), format_time(self._now()))
        if condition is None:
            return
        try:
            await self._rules.report(rule, condition)
        except NotFound:
            return  # deleted meanwhile

    def _count(self, name: str, uid: str) -> int:
        known, count = self._evicted.get(name, (uid, 0))
        return count if known == uid else 0

    def _too_early(self, rule: DeviceTaintRule) -> float:
        """Seconds until the status may be written again; a changed spec is reported at once."""
        known = condition_of(rule)
        if known is None or known.observed_generation != rule.metadata.generation:
            return 0.0
        written = parse_time(known.last_transition_time)
        return min(PERIOD, PERIOD - (self._now() - written).total_seconds()) if written is not None else 0.0
