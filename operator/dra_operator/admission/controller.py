"""The controller ``admission``: watches Workloads, asks the planner, and writes what was decided.

One task works in rounds. A round begins when something has changed that matters to a Workload that waits, and after it
the controller rests for as long as it took, but at most 1 s. The planner works in a thread; meanwhile the event loop
serves the other controllers. What is decided is written only if the Workload is still in the version that was decided
on: the API server refuses the rest, and the next round decides anew.

Promises are known to the other controllers as nominations: a pod of the same or of a lower priority that the operator
places leaves them alone. Other schedulers do not know them.

Without Workloads that name a check of ours nothing is planned. The planner's view stays, and learns what has changed
when the next one comes. After too many changes it goes, and is made anew when it is needed.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace as changed
from datetime import MAXYEAR, UTC, datetime, timedelta
from typing import Final

from dra_api.kueue import AdmissionCheck, ResourceFlavor, Workload
from dra_api.meta import Object
from dra_api.resource import AllocationResult
from dra_api.values import parse_time
from dra_kube import KubeError
from dra_ledger.errors import shortened
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from dra_operator.controllers import Control
from dra_operator.controllers.metrics import AdmissionMetrics
from dra_operator.controllers.workers import tell
from dra_operator.kube import Client
from dra_operator.scheduling.state import Nomination
from dra_operator.sources.kind_table import OF_KUEUE
from dra_operator.sources.kinds import WATCHED

from .api import AsideReader, WorkloadWriter, Written
from .ideal import Losses
from .planner import CheckAnswers, CheckRound, Planner, SeenChange, ViewSettings
from .pod_sets import least_asked
from .promises import Outcome, PromisedWorkload, Promises, shown_nodes
from .rounds import PROMISE_LOOK_SECONDS, KnownWait, Memory, NextRound, Resting, frees
from .workloads import (
    DOUBLED_ATTEMPTS,
    KUEUE_LATER_SECONDS,
    LONGEST_RETURNING_SECONDS,
    AdmissionSettings,
    CheckDecision,
    CheckNames,
    CheckStage,
    CheckState,
    backoff_seconds,
    evicted_at,
    is_replacing,
    promised_at,
    rank,
    rank_of_promise,
    replaced_slice,
    stage_of,
    states,
    wait_left,
    waits_for_replaced,
)

logger = logging.getLogger(__name__)

LEAST_REST_SECONDS: Final = 0.01
"""Seconds between two rounds."""
LONGEST_LOOK_REST_SECONDS: Final = 1.0
"""The same after a long one. Most of that is a wait for writes, and the planner has paused already for others."""
REQUEUE_REST_SECONDS: Final = 0.1
"""Seconds after *Retry* until freed devices may end the wait; doubled with each such end that was in vain.

That needs no time for Kueue: a wait is ended only when Kueue has evicted the Workload and begun the wait.
"""
LONGEST_REQUEUE_REST_SECONDS: Final = 1.0
MOST_LOST_TURNS: Final = 3
"""Times in a row that Kueue may give quota again before a back-off is written. Then the quota is kept for a while."""
HOLDING_SECONDS: Final = 1.0
"""Seconds for which it is kept, doubled each time until a back-off is written. That ends when devices come free for
others: they may need the quota.

A *Retry* with a back-off would have Kueue end the wait (``workloads``).
"""
LONGEST_HOLDING_SECONDS: Final = 10.0
MOST_RETURNING_JOBS: Final = 10
"""The most Workloads that a round looks at after their back-off."""
RETURNING_REST_SECONDS: Final = 0.1
"""Seconds until the next of them are looked at."""
MOST_PASSED_TURNS: Final = 6
"""Back-offs in a row that may go on without a turn. Kueue may know what the operator does not."""
LATE_WRITE_SECONDS: Final = 60.0
"""Seconds after which a write without an answer has no effect any more: what an API server gives a request."""
LATE_NEWS_SECONDS: Final = 60.0
"""Seconds after which a time that Kueue wrote is another clock's, and not one of which the watch was late.

A watch that is later than that makes a promise or a wait as much longer. The versions and times of own writes would
tell the two apart, at the price of a record of both for all kinds. No ``Date`` of an answer would: the time is Kueue's.
"""
LONGEST_REPLACING_SECONDS: Final = 5.0
"""Seconds after which a Workload says that it waits for the one that it replaces. Kueue needs at most one."""
CLOCK_SECONDS: Final = 1.0
"""Seconds that a time in the API may be off: it has no fractions."""
LOGGED_CHARACTERS: Final = 500
"""Length of a reason in the log; the Workload has the whole text."""
SPARE_OBJECTS: Final = 100
WORKLOADS_BETWEEN_PAUSES: Final = 500
MOST_NOTED_CHANGES: Final = 10_000
"""Objects that have changed since the last look, after which the view is not kept for the next one."""
DECIDED: Final = (CheckState.READY, CheckState.RETRY, CheckState.REJECTED)
"""The states that are counted from the start."""
_LATE: Final = CheckDecision(CheckState.READY, "Kueue had admitted the workload before its queue named this check")
_ELSEWHERE: Final = CheckDecision(
    CheckState.READY, "MultiKueue runs its pods in another cluster: name a check in the queues of that cluster"
)
_STALE: Final = CheckDecision(CheckState.PENDING, "Kueue took its quota back, and its place is free for others")
_UNKNOWN_TIME: Final = datetime.max.replace(tzinfo=UTC)
_PLANNED: Final = frozenset(WATCHED.values()) - frozenset(OF_KUEUE.values())


class AdmissionController:
    """``run`` until cancelled. ``note`` is told of each change of the cache, ``hold`` of devices that are held.

    ``now`` is the time that is written, ``clock`` the one by which pauses and times are measured: the event loop's.
    """

    def __init__(
        self,
        control: Control,
        client: Client,
        view: ViewSettings,
        now: Callable[[], datetime],
        settings: AdmissionSettings | None = None,
        registry: CollectorRegistry | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._cluster, self._view, self._now = control.cluster, view, now
        self._settings = settings or AdmissionSettings()
        self._clock = clock or asyncio.get_running_loop().time
        self._metrics = AdmissionMetrics(registry or CollectorRegistry(), DECIDED)
        self._planner: Planner | None = None
        self._changes: dict[tuple[type[Object], str], SeenChange] = {}
        self._held: dict[str, AllocationResult | None] = {}
        self._all_held: dict[str, AllocationResult] = {}
        self._memory: defaultdict[str, Memory] = defaultdict(Memory)
        self._next, self._promises, self._losses = NextRound(self._clock), Promises(control), Losses(self._clock)
        self._reader = AsideReader(control.cluster, client)
        self._writer = WorkloadWriter(control, client, now, self._memory, self._next, self._metrics.errors)
        self._is_unread = False
        """Whether the last look was given up, since a Workload with a promise could not be read."""
        self._open: set[str] = set()
        """Keys of Workloads that needed something at the last look, and of those that have changed since."""
        self._resting = Resting()
        control.observe(self)

    # --- what happens ---

    def note(self, before: Object | None, now: Object | None) -> None:
        """Take in a change of the cache. Exactly one of the two may be None."""
        obj = now if now is not None else before
        if obj is None:
            return
        if isinstance(obj, Workload | AdmissionCheck | ResourceFlavor):
            self._next.look_again()
            if not isinstance(obj, Workload):
                self._next.came_free()
                return
            self._open.add(obj.key)  # the next round finds out whether a promise is over
            self._resting.discard(obj.key)
            if isinstance(now, Workload):
                self._writer.follow_eviction(now)
            return
        if type(obj) not in _PLANNED:
            return
        self._losses.note(before, now)
        if self._planner is not None:
            kind = type(obj)
            self._changes[kind, obj.key] = SeenChange(kind, obj.key, obj.metadata.uid, now)
        if frees(before, now):
            self._next.came_free()
        self._next.look_again()

    def hold(self, uid: str, allocation: AllocationResult | None) -> None:
        """Count devices for a claim that cannot be read; None gives them back."""
        if self._planner is not None:
            self._held[uid] = allocation
        if allocation is not None:
            self._all_held[uid] = allocation
        elif self._all_held.pop(uid, None) is not None:
            self._next.came_free()

    # --- rounds ---

    async def recall(self) -> None:
        """Keep the promises of the last process, before any pod is decided on. To be called once, before ``run``.

        All else waits for ``run``: pods do not wait for a decision about a Workload, nor for a write.
        """
        stages = await self._stages(self._writer.names.after(self._cluster.store_of(AdmissionCheck)))
        try:
            if stages[CheckStage.PROMISED]:
                nothing = {stage: list[Workload]() for stage in CheckStage}
                await self._ask({**nothing, CheckStage.PROMISED: stages[CheckStage.PROMISED]})
        except Exception:
            logger.exception("promises of earlier processes are not kept")
            self._forget_view()
        self._next.look_again()

    async def run(self) -> None:
        """Decide until cancelled."""
        try:
            await self._run()
        finally:
            self._writer.close()

    async def _run(self) -> None:
        while True:
            began, rest = self._clock(), LEAST_REST_SECONDS
            try:
                await self._round()
            except Exception:
                logger.exception("a look at all Workloads failed; the next one: in %g s", PROMISE_LOOK_SECONDS)
                self._forget_view()
                rest = PROMISE_LOOK_SECONDS
                self._next.look_again()
            # Writes count: with rests without them the longest wait of benchmarks/admission.py was twice as long.
            await asyncio.sleep(max(rest, min(self._clock() - began, LONGEST_LOOK_REST_SECONDS)))
            await self._next.wait()

    async def _round(self) -> None:
        self._next.begin()
        self._writer.pause_left_behind()
        await self._writer.activate_checks()
        stages = await self._stages(self._writer.names.after(self._cluster.store_of(AdmissionCheck)))
        promised = (*stages[CheckStage.PROMISED], *stages[CheckStage.LATE])
        if self._promises.end_others({it.metadata.uid for it in promised}):
            self._next.came_free()
        await self._answer_unplanned(stages)
        if not self._has_work(stages):
            if len(self._changes) + len(self._held) > MOST_NOTED_CHANGES:
                self._forget_view()
            return
        await self._ask(stages)

    async def _ask(self, stages: Mapping[CheckStage, list[Workload]]) -> None:
        """Ask the planner about these Workloads, and carry out what it answers."""
        try:
            stages = await self._reader.whole(stages)
        except KubeError as error:
            # Once: whatever happens in a cluster has the next look come earlier, and that may be ten times a second.
            if not self._is_unread:
                logger.warning("no Workload is decided on, since one with a promise cannot be read: %s", error)
            self._is_unread = True
            self._next.by(self._clock() + PROMISE_LOOK_SECONDS)
            return
        self._is_unread = False
        question, freed = self._question(stages), self._next.freed
        began = self._clock()
        planner = self._planner
        if planner is None:
            return
        try:
            answers = await asyncio.to_thread(planner.answer, question)
        except asyncio.CancelledError:
            planner.stop()  # its thread would go on
            raise
        self._metrics.round_seconds.observe(self._clock() - began)
        self._next.is_cut = bool(answers.left)
        for uid in answers.looked:
            self._memory[uid].looked = freed
        await self._carry_out(answers, stages)

    def _forget_view(self) -> None:
        """Have the next view made of what the cache has then, without what was noted for this one."""
        self._planner = None
        self._changes.clear()
        self._held.clear()

    async def _stages(self, names: CheckNames) -> Mapping[CheckStage, list[Workload]]:
        found: dict[CheckStage, list[Workload]] = {stage: [] for stage in CheckStage}
        now, store, backing_off = self._now(), self._cluster.store_of(Workload), 0
        if names != self._writer.names:
            self._answer_checks(names)
        self._open |= self._resting.woken(self._clock(), self._next.freed)
        for number, key in enumerate(list(self._open)):
            if number % WORKLOADS_BETWEEN_PAUSES == WORKLOADS_BETWEEN_PAUSES - 1:
                await asyncio.sleep(0)
            workload = store.get(key)
            stage = self._stage(workload, names, now) if workload is not None else CheckStage.NONE
            if workload is None or stage is CheckStage.NONE:
                self._open.discard(key)
                if workload is not None:
                    self._cluster.give_back(workload)
            elif self._needs_a_look(workload, stage, now):
                found[stage].append(workload)
            backing_off += stage is CheckStage.BACKING_OFF and key in self._open
        self._next.by(self._resting.due)
        waiting = len(found[CheckStage.CANDIDATE]) + len(found[CheckStage.RETURNING])
        self._metrics.waiting.set(waiting + backing_off + self._resting.backing_off)
        if len(self._memory) > len(store) + SPARE_OBJECTS:
            for uid in self._memory.keys() - {workload.metadata.uid for workload in store}:
                del self._memory[uid]
        return found

    def _needs_a_look(self, workload: Workload, stage: CheckStage, now: datetime) -> bool:
        """Return whether there is something to do for it in this round."""
        memory = self._memory[workload.metadata.uid]
        match stage:
            case CheckStage.REPLACING:
                return self._is_unsaid(workload, memory)
            case CheckStage.CANDIDATE:
                memory.admission, memory.is_started = workload.status.admission, False
                memory.replacing_since = None
            case CheckStage.PROMISED if memory.is_started:
                self._cluster.give_back(workload)
                return False
            case CheckStage.BACKING_OFF | CheckStage.WAITING:
                memory.wait = memory.wait or self._known_wait(workload, stage, now)
                return self._may_requeue(workload.key, memory, memory.wait)
        return True

    def _answer_checks(self, names: CheckNames) -> None:
        """Answer these checks from now on. That may change what each Workload waits for."""
        self._writer.names = names
        self._open = {workload.key for workload in self._cluster.store_of(Workload)}
        self._resting = Resting()
        for memory in self._memory.values():
            memory.wait = None

    def _known_wait(self, workload: Workload, stage: CheckStage, now: datetime) -> KnownWait:
        names = self._writer.names
        left = wait_left(workload, names.active, self._moment(workload, names, now)) or 0.0
        left += LONGEST_RETURNING_SECONDS if left <= 0 else 0.0
        return KnownWait(workload.metadata.resource_version, stage, self._clock() + left)

    def _stage(self, workload: Workload, names: CheckNames, now: datetime) -> CheckStage:
        memory = self._memory.get(workload.metadata.uid)
        # Thousands may wait, and each round goes over all of them.
        if memory is not None and memory.wait is not None:
            if memory.wait.version == workload.metadata.resource_version and self._clock() < memory.wait.until:
                return memory.wait.stage
            memory.wait = None
        stage = stage_of(workload, names, self._moment(workload, names, now), self._settings.promise)
        memory = self._memory.get(workload.metadata.uid)
        # The same is written again, or the watch brings what became of it; also if its check is not answered any more.
        if (
            stage in (CheckStage.CANDIDATE, CheckStage.NONE)
            and memory is not None
            and self._is_unsure(workload, memory)
        ):
            return CheckStage.PROMISED
        replaced = self._cluster.store_of(Workload).get(replaced_slice(workload))
        # Until Kueue has finished that one, its promise and this Workload's would be for the same pods.
        if stage is CheckStage.CANDIDATE and is_replacing(workload, replaced):
            return CheckStage.REPLACING
        return stage

    def _is_unsaid(self, workload: Workload, memory: Memory) -> bool:
        """Return whether a Workload waits long for the one that it replaces, and its check does not say so yet."""
        if memory.replacing_since is None:
            memory.replacing_since = self._clock()
        said = waits_for_replaced(workload).message
        if all(state.message == said for _, state in states(workload, self._writer.names.active)):
            return False
        due = memory.replacing_since + LONGEST_REPLACING_SECONDS
        self._next.by(due)
        return due <= self._clock()

    def _moment(self, workload: Workload, names: CheckNames, now: datetime) -> datetime:
        """Return the time by which a promise or a wait is to be measured: no clock that is set ends or extends it."""
        if not any(states(workload, names.known)):
            return now
        memory = self._memory[workload.metadata.uid]
        began = promised_at(workload, names.known, _UNKNOWN_TIME)
        if not workload.has_quota:
            began = parse_time(evicted_at(workload)) or _UNKNOWN_TIME
        if memory.measured_from != (measured := (workload.has_quota, began)):
            age = (now - began).total_seconds()
            # Only of what was written before this process saw the Workload the clocks say how old it is.
            if memory.measured_from is not None and age > LATE_NEWS_SECONDS:
                age = 0.0
            memory.began = self._clock() - min(max(age, 0.0), self._settings.promise)
            memory.measured_from = measured
        if began.year == MAXYEAR:
            return now
        return began + timedelta(seconds=self._clock() - memory.began)

    def _is_unsure(self, workload: Workload, memory: Memory) -> bool:
        """Return whether the Workload may be Ready although nobody has said so. Until it is known its place is kept."""
        return memory.unsure == workload.metadata.resource_version and self._clock() < memory.unsure_until

    def _may_requeue(self, key: str, memory: Memory, wait: KnownWait) -> bool:
        """Return whether something has come free since the last look, which is not too short ago."""
        if wait.stage is CheckStage.WAITING or memory.looked == self._next.freed:
            self._open.discard(key)
            self._resting.put(key, wait)
            return False
        self._next.by(wait.until)
        rest = min(REQUEUE_REST_SECONDS * 2 ** min(memory.in_vain, DOUBLED_ATTEMPTS), LONGEST_REQUEUE_REST_SECONDS)
        due = memory.retried_at + rest
        if due > self._clock():
            self._next.by(due)
            return False
        return True

    def _has_work(self, stages: Mapping[CheckStage, list[Workload]]) -> bool:
        """Return whether a round may come to another result than the last one."""
        return bool(
            stages[CheckStage.CANDIDATE]
            or stages[CheckStage.LATE]
            or stages[CheckStage.BACKING_OFF]
            or stages[CheckStage.RETURNING]
            or (self._next.has_changed and stages[CheckStage.PROMISED])
        )

    def _question(self, stages: Mapping[CheckStage, Sequence[Workload]]) -> CheckRound:
        cluster, now = self._cluster, self._now()
        if self._planner is None:
            objects = [obj for kind in _PLANNED for obj in cluster.store_of(kind)]
            self._planner = Planner(cluster, self._view, objects)
            self._held = dict(self._all_held)
        changes, self._changes = self._changes, {}
        held, self._held = self._held, {}
        flavors = {it.metadata.name: it for it in cluster.store_of(ResourceFlavor)}
        promised = [*stages[CheckStage.PROMISED], *stages[CheckStage.LATE]]
        promised.sort(key=lambda it: rank_of_promise(it, self._writer.names.known, now))
        for workload in stages[CheckStage.CANDIDATE]:
            self._memory[workload.metadata.uid].flavors = {}
        for workload in (*promised, *stages[CheckStage.CANDIDATE]):
            memory = self._memory[workload.metadata.uid]
            memory.flavors = {
                name: known for name in workload.flavors if (known := memory.flavors.get(name) or flavors.get(name))
            }
        return CheckRound(
            changes=list(changes.values()),
            held=held,
            flying=list(cluster.allocated_devices.flying()),
            assumed=list(cluster.assumed_pods()),
            flavors=flavors,
            promised=[self._promised(it) for it in promised],
            candidates=sorted(stages[CheckStage.CANDIDATE], key=rank),
            backing_off=[self._with_flavors(it) for it in sorted(stages[CheckStage.BACKING_OFF], key=rank)],
            now=now,
            templates=self._reader.templates,
            claims=self._reader.claims,
            lost=self._losses.all(),
            returning=[least_asked(it, flavors) for it in self._at_leisure(stages)],
        )

    def _at_leisure(self, stages: Mapping[CheckStage, Sequence[Workload]]) -> Sequence[Workload]:
        """Return the Workloads whose back-off is over, a few at a time, and none while others hold quota and wait."""
        returning = sorted(stages[CheckStage.RETURNING], key=rank)
        now = returning[:MOST_RETURNING_JOBS] if not stages[CheckStage.CANDIDATE] else ()
        if len(now) < len(returning):
            self._next.by(self._clock() + RETURNING_REST_SECONDS)
        return now

    def _promised(self, workload: Workload) -> PromisedWorkload:
        memory = self._memory[workload.metadata.uid]
        return PromisedWorkload(workload, memory.nodes, memory.flavors)

    def _with_flavors(self, workload: Workload) -> Workload:
        """Return the Workload with the quota that it had last: it may get the same again."""
        admission = self._memory[workload.metadata.uid].admission
        return replace(workload, status=replace(workload.status, admission=admission))

    # --- what follows ---

    async def _carry_out(self, answers: CheckAnswers, stages: Mapping[CheckStage, Sequence[Workload]]) -> None:
        returning = {workload.metadata.uid: workload for workload in stages[CheckStage.RETURNING]}
        for uid in answers.started:
            self._memory[uid].is_started = True
            self._promise(uid)
        asked = list(answers.candidates.values())
        for uid, outcome in answers.promised.items():
            memory = self._memory.get(uid)
            if memory is not None and self._is_unsure(outcome.workload, memory):
                asked.append(outcome)
            else:
                self._kept(uid, outcome)
        async with asyncio.TaskGroup() as group:
            for workload in stages[CheckStage.LATE]:
                group.create_task(self._say(workload, _LATE))
            for outcome in asked:
                group.create_task(self._decide(outcome))
            for outcome in answers.backing_off.values():
                if outcome.fits:
                    group.create_task(self._requeue(outcome.workload))
            for uid, outcome in answers.returning.items():
                group.create_task(self._return(returning[uid], outcome))
        self._metrics.promises.set(len(self._promises))

    async def _answer_unplanned(self, stages: Mapping[CheckStage, Sequence[Workload]]) -> None:
        """Answer Workloads for which no place is looked for."""
        async with asyncio.TaskGroup() as group:
            for workload in stages[CheckStage.ELSEWHERE]:
                group.create_task(self._say(workload, _ELSEWHERE))
            for workload in stages[CheckStage.REPLACING]:
                group.create_task(self._say(workload, waits_for_replaced(workload)))
            for workload in stages[CheckStage.STALE]:
                group.create_task(self._say(workload, _STALE))
            for workload in stages[CheckStage.DUE]:
                group.create_task(self._writer.end_wait(workload, "its back-off is over"))

    async def _return(self, workload: Workload, outcome: Outcome) -> None:
        """Have Kueue try a Workload again whose back-off is over, or wait on if its pods fit nowhere.

        Quota that comes free is offered to one Workload after another. Each of dozens that fit nowhere would take its
        turn from one that fits.
        """
        memory = self._memory[workload.metadata.uid]
        if outcome.fits or outcome.fits_never or outcome.is_final or memory.passed_turns >= MOST_PASSED_TURNS:
            await self._writer.end_wait(workload, "its back-off is over")
            return
        wait = self._next_wait(workload, memory)
        memory.retries += 1
        memory.passed_turns += 1
        await self._writer.wait_on(
            workload, CheckDecision(CheckState.RETRY, outcome.reason, wait + KUEUE_LATER_SECONDS)
        )

    async def _say(self, workload: Workload, decision: CheckDecision) -> None:
        written = await self._writer.write(workload, decision)
        if written is Written.YES:
            self._is_decided(workload, decision)

    def _is_decided(self, workload: Workload, decision: CheckDecision) -> None:
        self._metrics.decided(decision.state)
        said = shortened(decision.message, LOGGED_CHARACTERS)
        tell(logger, logging.INFO, "check decided", workload=workload.key, state=decision.state, why=said)

    def _kept(self, uid: str, outcome: Outcome) -> None:
        memory = self._memory[uid]
        if outcome.fits:
            memory.nodes = outcome.nodes
        elif not memory.is_broken:
            self._metrics.broken.inc()
            said = shortened(outcome.reason, LOGGED_CHARACTERS)
            tell(logger, logging.WARNING, "promised place lost", workload=outcome.workload.key, why=said)
        memory.is_broken = not outcome.fits
        self._promise(uid, outcome.seats)

    async def _decide(self, outcome: Outcome) -> None:
        workload = outcome.workload
        uid = workload.metadata.uid
        memory = self._memory[uid]
        if outcome.fits:
            if self._promises.is_taken(outcome.seats):
                self._next.look_again()  # by a decision of these milliseconds
                return
            # The devices are kept before the answer of the server: a pod may be decided on meanwhile.
            memory.nodes, memory.is_broken = outcome.nodes, False
            self._promise(uid, outcome.seats)
            decision = CheckDecision(
                CheckState.READY, f"all pods fit on {shown_nodes(outcome.seats)}" if outcome.seats else ""
            )
        else:
            decision = self._refusal(outcome, memory)
            if decision.wait is not None and await self._keeps_quota(workload, decision, memory):
                return
        written = await self._writer.write(workload, self._at_once(decision, memory))
        if written is not Written.YES:
            memory.back_off = None
            if written is Written.UNKNOWN and decision.state is CheckState.READY and outcome.seats:
                memory.unsure, memory.unsure_until = (
                    workload.metadata.resource_version,
                    self._clock() + LATE_WRITE_SECONDS,
                )
            if not self._is_unsure(workload, memory):
                self._promise(uid)
            return
        self._is_decided(workload, decision)
        if decision.state is CheckState.READY:
            memory.retries, memory.in_vain, memory.never_since = 0, 0, None
        else:
            memory.retries += 1
            memory.in_vain += memory.requeued
            memory.retried_at = self._clock()
        memory.requeued, memory.passed_turns = False, 0

    async def _keeps_quota(self, workload: Workload, decision: CheckDecision, memory: Memory) -> bool:
        """Return whether a Workload is not evicted yet, since Kueue gave it quota again and again before its back-off.

        Freed devices let it in meanwhile, as it is pending.
        """
        memory.lost_turns += memory.back_off is not None
        memory.back_off = None
        if memory.lost_turns >= MOST_LOST_TURNS:
            held = min(HOLDING_SECONDS * 2**memory.holdings, LONGEST_HOLDING_SECONDS)
            memory.lost_turns, memory.held_until = 0, self._clock() + held
            memory.holdings = min(memory.holdings + 1, DOUBLED_ATTEMPTS)
            await self._writer.write(workload, changed(decision, state=CheckState.PENDING, wait=None))
        if memory.held_until <= self._clock():
            return False
        self._next.by(memory.held_until)
        return True

    def _at_once(self, decision: CheckDecision, memory: Memory) -> CheckDecision:
        """Return what is written first: a Retry without its back-off, which follows when Kueue has evicted."""
        memory.back_off = None
        if decision.wait is None:
            memory.lost_turns = memory.holdings = 0
            return decision
        memory.back_off = changed(decision, wait=decision.wait + KUEUE_LATER_SECONDS)
        return changed(decision, wait=None)

    def _refusal(self, outcome: Outcome, memory: Memory) -> CheckDecision:
        now = self._clock()
        if outcome.is_final:
            return CheckDecision(CheckState.REJECTED, outcome.reason)
        left = math.inf
        if not outcome.fits_never:
            memory.never_since = None
        else:
            memory.never_since = now if memory.never_since is None else memory.never_since
            since, known = self._settings.never + memory.never_since, self._settings.watched + self._losses.known_since
            left = max(since, known) - now
        if left <= CLOCK_SECONDS:
            return CheckDecision(CheckState.REJECTED, outcome.reason)
        wait = self._next_wait(outcome.workload, memory)
        # A wait that is rounded down would end before its time, and the Workload be evicted once more for nothing.
        return CheckDecision(CheckState.RETRY, outcome.reason, min(wait, math.ceil(min(left, wait))))

    def _next_wait(self, workload: Workload, memory: Memory) -> float:
        counted = max((it.retry_count or 0 for _, it in states(workload, self._writer.names.active)), default=0)
        return backoff_seconds(max(memory.retries, counted), self._settings.backoff)

    def _promise(self, uid: str, seats: tuple[Nomination, ...] = ()) -> None:
        if self._promises.keep(uid, seats):
            self._next.came_free()

    async def _requeue(self, workload: Workload) -> None:
        """End the back-off since devices came free: the Workload may get its quota again at once."""
        memory = self._memory[workload.metadata.uid]
        memory.retried_at, memory.requeued = self._clock(), True
        if await self._writer.end_wait(workload, "devices came free, and its pods fit now"):
            self._metrics.requeued.inc()
            for other in self._memory.values():
                other.held_until = -math.inf  # this one may need the quota
        else:
            # What came free is still there: the next look finds it without anything else that comes free.
            memory.looked, memory.requeued = 0, False
