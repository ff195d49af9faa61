"""Reports in a DeviceTaintRule how many pods it is ending, has ended, or would end (scheduling.md 10.5).

The controller ``taint-rules``. The condition is written at once when the rule is new or its spec changed, afterwards at
most every 10 seconds, and only when it says something new. A repeated write is harmless: it is one server-side apply
that names the rule's UID. Ended pods are counted from the start of the process.

One rule can select every device of the cluster. So the pods that it may end are looked for in parts, and so are those
that it counts; in between, others have their turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from datetime import datetime
from typing import TypeVar

from dra_api.meta import Condition
from dra_api.resource import DeviceTaintRule
from dra_api.values.times import format_time, parse_time
from dra_kube import NotFound

from dra_operator.cache import Cluster, Key, evictions
from dra_operator.controllers.shared.own_controllers import OwnControllers
from dra_operator.controllers.work.queue import WorkQueue
from dra_operator.eviction import Cause, condition_of, eviction_condition
from dra_operator.kube import RuleWriter

REPORT_SECONDS = 10.0  # seconds between two writes
T = TypeVar("T")


class RuleReporter:
    """Handles ``rule:`` keys."""

    def __init__(
        self,
        cluster: Cluster,
        rules: RuleWriter,
        queue: WorkQueue,
        evictions_queue: WorkQueue,
        controllers: OwnControllers,
        now: Callable[[], datetime],
    ) -> None:
        self._cluster, self._rules, self._queue, self._controllers = cluster, rules, queue, controllers
        self._evictions, self._now = evictions_queue, now
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
                self._queue.add_after(Key("taint-rules", cause.rule), REPORT_SECONDS)

    async def handle(self, key: str) -> None:
        """Bring the status of one rule up to date, and have the pods looked at that a change of it concerns.

        The pods are counted before the first one goes.
        """
        rule = self._cluster.rules.get(key)
        condition = await self._news(rule) if rule is not None and self._controllers.eviction else None
        for pods in evictions.users_of_changed(self._cluster, key):
            self._evictions.add(pods)
            await asyncio.sleep(0)
        if rule is None:
            self._evicted.pop(key, None)
        elif condition is not None:
            with suppress(NotFound):  # deleted meanwhile
                await self._rules.report(rule, condition)

    async def _news(self, rule: DeviceTaintRule) -> Condition | None:
        """The condition that the rule should have; None if it has that, or if it is too early to say."""
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
        """Seconds until the status may be written again; a changed spec is reported at once."""
        known = condition_of(rule)
        if known is None or known.observed_generation != rule.metadata.generation:
            return 0.0
        written = parse_time(known.last_transition_time)
        return (
            min(REPORT_SECONDS, REPORT_SECONDS - (self._now() - written).total_seconds())
            if written is not None
            else 0.0
        )


async def _in_parts(work: Generator[None, None, T]) -> T:
    """What the work returns. Others run whenever it yields."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            found: T = end.value
            return found
        await asyncio.sleep(0)
