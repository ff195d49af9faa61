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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as changed
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from typing import Any, Final

from dra_api.codec import convert
from dra_api.core import Pod
from dra_api.kueue import Admission, AdmissionCheck, ResourceFlavor, Workload
from dra_api.meta import ADMISSION_CHECKS, WORKLOADS, Object
from dra_api.references import pod_is_done
from dra_api.resource import AllocationResult, ResourceClaim
from dra_api.values import format_time
from dra_kube import ApiError, Conflict, Invalid, KubeError, NotFound, ServerError, Unreachable
from dra_ledger.errors import shortened
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from dra_operator.allocator import DeviceId
from dra_operator.controllers import Control
from dra_operator.controllers.metrics import AdmissionMetrics
from dra_operator.kube import Client
from dra_operator.scheduling.state import Nomination
from dra_operator.sources.kind_table import OF_KUEUE
from dra_operator.sources.kinds import WATCHED

from .planner import CheckAnswers, CheckRound, Outcome, Planner, PromisedWorkload, SeenChange, ViewSettings
from .reading import AsideReader
from .workloads import (
    CONTROLLER_NAME,
    DOUBLED_ATTEMPTS,
    KUEUE_LATER_SECONDS,
    AdmissionSettings,
    CheckDecision,
    CheckNames,
    CheckStage,
    CheckState,
    active_patch,
    after_eviction,
    backoff_seconds,
    decision_patch,
    evicted_at,
    follow_up_patch,
    is_in_queue,
    promised_at,
    rank,
    rank_of_promise,
    replaced_slice,
    requeue_patch,
    stage_of,
    states,
    wait_left,
)

logger = logging.getLogger(__name__)

LEAST_REST_SECONDS: Final = 0.01
"""Seconds between two rounds."""
LONGEST_LOOK_REST_SECONDS: Final = 1.0
"""The same after a long one. Most of that is a wait for writes, and the planner has paused already for others."""
PROMISE_LOOK_SECONDS: Final = 5.0
"""Seconds after which the times of promises are looked at, if nothing happens."""
WRITES: Final = 8
"""Writes at the same time."""
REQUEUE_REST_SECONDS: Final = 0.1
"""Seconds after *Retry* until freed devices may end the wait; doubled with each such end that was in vain.

That needs no time for Kueue: a wait is ended only when Kueue has evicted the Workload and begun the wait.
"""
LONGEST_REQUEUE_REST_SECONDS: Final = 1.0
LONGEST_LEFT_BEHIND_SECONDS: Final = 600.0
MOST_LOST_TURNS: Final = 3
"""Times in a row that Kueue may give quota again before a back-off is written. Then the quota is kept for a while."""
CHANGED_SECONDS: Final = 0.5
"""Seconds until a Workload is looked at again that was refused, most likely since it has changed."""
HOLDING_SECONDS: Final = 1.0
"""Seconds for which it is kept, doubled each time until a back-off is written. That ends when devices come free for
others: they may need the quota.

A *Retry* with a back-off would have Kueue end the wait (``workloads``).
"""
LONGEST_HOLDING_SECONDS: Final = 10.0
LEFT_BEHIND_SECONDS: Final = 5.0
"""Seconds after which a Workload without quota, whose back-off was ended, counts as one that Kueue has not tried. The
pause doubles each time."""
CHECK_PAUSE_SECONDS: Final = 1.0
"""Seconds for which a check is not active then."""
LATE_WRITE_SECONDS: Final = 60.0
"""Seconds after which a write without an answer has no effect any more: what an API server gives a request."""
CLOCK_SECONDS: Final = 1.0
"""Seconds that a time in the API may be off: it has no fractions."""
SHOWN_NODES: Final = 8
LOGGED_CHARACTERS: Final = 500
"""Length of a reason in the log; the Workload has the whole text."""
SPARE_OBJECTS: Final = 100
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


class Written(Enum):
    """What became of a write."""

    YES = auto()
    NO = auto()
    UNKNOWN = auto()
    """No answer came, or one that says nothing about it."""


@dataclass(slots=True)
class Memory:
    """What is known of one Workload beside what it says itself. All of it may be lost."""

    retries: int = 0
    requeued: bool = False
    """Freed devices ended the last wait."""
    in_vain: int = 0
    """How often that was in vain in a row."""
    retried_at: float = -math.inf
    looked: int = 0
    """How often something had come free at the last look."""
    refused: str = ""
    """The last version of which the server has refused a write as invalid."""
    unsure: str = ""
    """The version into which a promise was written, and no answer came: it may be Ready since, or become so."""
    unsure_until: float = -math.inf
    never_since: float | None = None
    back_off: CheckDecision | None = None
    """The write that follows when Kueue has evicted the Workload."""
    lost_turns: int = 0
    holdings: int = 0
    """How often its quota was kept, since no back-off could be written."""
    held_until: float = -math.inf
    """Until then it keeps its quota, though it does not fit."""
    admission: Admission | None = None
    """The quota that it had last: its flavors say which nodes it may use."""
    nodes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The nodes of its promise, by pod set."""
    flavors: Mapping[str, ResourceFlavor] = field(default_factory=dict)
    """Its flavors as they were when it was promised a place: Kueue has put their labels into its pods."""
    promised_at: datetime | None = None
    """When the promise began, by the clocks of those who wrote it."""
    promise_began: float = -math.inf
    """The same by the clock that pauses are measured by."""
    is_started: bool = False
    """All its pods were bound, so the promise is over."""
    is_broken: bool = False


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
        self._control, self._cluster, self._client = control, control.cluster, client
        self._view, self._now, self._settings = view, now, settings or AdmissionSettings()
        self._clock = clock or asyncio.get_running_loop().time
        self._metrics = AdmissionMetrics(registry or CollectorRegistry(), DECIDED)
        self._planner: Planner | None = None
        self._changes: dict[tuple[type[Object], str], SeenChange] = {}
        self._held: dict[str, AllocationResult | None] = {}
        self._all_held: dict[str, AllocationResult] = {}
        self._memory: dict[str, Memory] = {}
        self._seats: dict[str, tuple[Nomination, ...]] = {}
        self._reader = AsideReader(control.cluster, client)
        self._news, self._is_cut, self._due = asyncio.Event(), False, math.inf
        self._freed = 1
        """How often something came free."""
        self._workloads_changed = self._cluster_changed = True
        self.is_idle = False
        """Whether it waits for something to happen."""
        self._is_unread = False
        """Whether the last look was given up, since a Workload with a promise could not be read."""
        self._failed_checks: dict[str, float] = {}
        self._paused: dict[str, float] = {}
        """The time at which the pause of a check is over, by its name."""
        self._ended: dict[str, tuple[str, float, float]] = {}
        """Workloads whose back-off was ended, by key: UID, time of the next look, and pause until the look after it."""
        self._names = CheckNames()
        self._follow_ups = set[asyncio.Task[None]]()
        self._follow_up_limit = asyncio.Semaphore(WRITES)
        self._open: set[str] = set()
        """Keys of Workloads that needed something at the last look, and of those that have changed since."""
        control.observe(self)

    # --- what happens ---

    def note(self, before: Object | None, now: Object | None) -> None:
        """Take in a change of the cache. Exactly one of the two may be None."""
        obj = now if now is not None else before
        if obj is None:
            return
        if isinstance(obj, Workload | AdmissionCheck | ResourceFlavor):
            self._workloads_changed = True
            self._news.set()
            if not isinstance(obj, Workload):
                self._freed += 1
                return
            self._open.add(obj.key)  # the next round finds out whether a promise is over
            if isinstance(now, Workload):
                self._follow_eviction(now)
            return
        if type(obj) not in _PLANNED:
            return
        if self._planner is not None:
            kind = type(obj)
            self._changes[kind, obj.key] = SeenChange(kind, obj.key, obj.metadata.uid, now)
        self._freed += _frees(before, now)
        self._cluster_changed = True
        self._news.set()

    def hold(self, uid: str, allocation: AllocationResult | None) -> None:
        """Count devices for a claim that cannot be read; None gives them back."""
        if self._planner is not None:
            self._held[uid] = allocation
        if allocation is not None:
            self._all_held[uid] = allocation
        elif self._all_held.pop(uid, None) is not None:
            self._freed += 1
            self._news.set()

    # --- rounds ---

    async def recall(self) -> None:
        """Keep the promises of the last process, before any pod is decided on. To be called once, before ``run``.

        All else waits for ``run``: pods do not wait for a decision about a Workload, nor for a write.
        """
        stages = self._stages(self._names.after(self._cluster.store_of(AdmissionCheck)))
        try:
            if stages[CheckStage.PROMISED]:
                nothing = {stage: list[Workload]() for stage in CheckStage}
                await self._ask({**nothing, CheckStage.PROMISED: stages[CheckStage.PROMISED]})
        except Exception:
            logger.exception("promises of earlier processes are not kept")
            self._forget_view()
        self._look_again()

    async def run(self) -> None:
        """Decide until cancelled."""
        try:
            await self._run()
        finally:
            for task in self._follow_ups:
                task.cancel()

    async def _run(self) -> None:
        while True:
            began, rest = self._clock(), LEAST_REST_SECONDS
            try:
                await self._round()
            except Exception:
                logger.exception("a look at all Workloads failed; the next one: in %g s", PROMISE_LOOK_SECONDS)
                self._forget_view()
                rest = PROMISE_LOOK_SECONDS
                self._look_again()
            await asyncio.sleep(max(rest, min(self._clock() - began, LONGEST_LOOK_REST_SECONDS)))
            if not self._is_cut:
                await self._wait()

    async def _wait(self) -> None:
        self.is_idle = not self._news.is_set() and self._due == math.inf
        try:
            async with asyncio.timeout(max(0.0, min(PROMISE_LOOK_SECONDS, self._due - self._clock()))):
                await self._news.wait()
        except TimeoutError:
            self._workloads_changed = True  # times may be over
        finally:
            self.is_idle = False

    async def _round(self) -> None:
        self._news.clear()
        self._due, self._is_cut = math.inf, False
        self._find_left_behind()
        await self._activate_checks()
        stages = self._stages(self._names.after(self._cluster.store_of(AdmissionCheck)))
        self._metrics.waiting.set(len(stages[CheckStage.CANDIDATE]) + len(stages[CheckStage.BACKING_OFF]))
        promised = (*stages[CheckStage.PROMISED], *stages[CheckStage.LATE])
        self._forget_promises({it.metadata.uid for it in promised})
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
            self._due = self._clock() + PROMISE_LOOK_SECONDS
            return
        self._is_unread = False
        question, freed = self._question(stages), self._freed
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
        self._is_cut = bool(answers.left)
        for uid in answers.looked:
            self._memory.setdefault(uid, Memory()).looked = freed
        await self._carry_out(answers, stages[CheckStage.LATE])

    def _forget_view(self) -> None:
        """Have the next view made of what the cache has then, without what was noted for this one."""
        self._planner = None
        self._changes.clear()
        self._held.clear()

    def _stages(self, names: CheckNames) -> Mapping[CheckStage, list[Workload]]:
        found: dict[CheckStage, list[Workload]] = {stage: [] for stage in CheckStage}
        now, store = self._now(), self._cluster.store_of(Workload)
        if names != self._names:
            self._names, self._open = names, {workload.key for workload in store}
        for key in list(self._open):
            workload = store.get(key)
            stage = self._stage(workload, names, now) if workload is not None else CheckStage.NONE
            if workload is None or stage is CheckStage.NONE:
                self._open.discard(key)
                if workload is not None:
                    self._cluster.give_back(workload)
                continue
            memory = self._memory.setdefault(workload.metadata.uid, Memory())
            if stage is CheckStage.CANDIDATE:
                if self._is_replacing(workload):
                    continue
                memory.admission, memory.is_started = workload.status.admission, False
            if stage is CheckStage.PROMISED and memory.is_started:
                self._cluster.give_back(workload)
                continue
            if stage in (CheckStage.BACKING_OFF, CheckStage.WAITING):
                left = wait_left(workload, names.active, now)
                self._due = min(self._due, self._clock() + (left or 0.0))
            if stage is CheckStage.BACKING_OFF and not self._may_requeue(memory):
                continue
            found[stage].append(workload)
        if len(self._memory) > len(store) + SPARE_OBJECTS:
            known = {workload.metadata.uid for workload in store}
            self._memory = {uid: it for uid, it in self._memory.items() if uid in known}
        return found

    def _stage(self, workload: Workload, names: CheckNames, now: datetime) -> CheckStage:
        stage = stage_of(workload, names, self._moment(workload, names, now), self._settings.promise)
        memory = self._memory.get(workload.metadata.uid)
        # The same is written again, or the watch brings what became of it; also if its check is not answered any more.
        if (
            stage in (CheckStage.CANDIDATE, CheckStage.NONE)
            and memory is not None
            and self._is_unsure(workload, memory)
        ):
            return CheckStage.PROMISED
        return stage

    def _is_replacing(self, workload: Workload) -> bool:
        """Return whether the Workload replaces a slice of its job that has not finished yet.

        Until Kueue has finished that one, its promise and this Workload's would be for the same pods.
        """
        replaced = self._cluster.store_of(Workload).get(replaced_slice(workload))
        return replaced is not None and replaced.has_quota and not replaced.has("Finished")

    def _moment(self, workload: Workload, names: CheckNames, now: datetime) -> datetime:
        """Return the time by which the promise is to be measured: clocks that are set do not end it, or extend it."""
        if not workload.has_quota or not any(states(workload, names.known)):
            return now
        memory = self._memory.setdefault(workload.metadata.uid, Memory())
        began = promised_at(workload, names.known, _UNKNOWN_TIME)
        if memory.promised_at != began:
            # Only of what was written before this process saw the Workload the clocks say how old it is.
            age = (now - began).total_seconds() if memory.promised_at is None else 0.0
            memory.promise_began = self._clock() - min(max(age, 0.0), self._settings.promise)
            memory.promised_at = began
        if began == _UNKNOWN_TIME:
            return now
        return began + timedelta(seconds=self._clock() - memory.promise_began)

    def _is_unsure(self, workload: Workload, memory: Memory) -> bool:
        """Return whether the Workload may be Ready although nobody has said so. Until it is known its place is kept."""
        return memory.unsure == workload.metadata.resource_version and self._clock() < memory.unsure_until

    def _may_requeue(self, memory: Memory) -> bool:
        """Return whether something has come free since the last look, which is not too short ago."""
        if memory.looked == self._freed:
            return False
        rest = min(REQUEUE_REST_SECONDS * 2 ** min(memory.in_vain, DOUBLED_ATTEMPTS), LONGEST_REQUEUE_REST_SECONDS)
        due = memory.retried_at + rest
        if due > self._clock():
            self._due = min(self._due, due)
            return False
        return True

    def _look_again(self) -> None:
        self._workloads_changed = True
        self._news.set()

    def _has_work(self, stages: Mapping[CheckStage, list[Workload]]) -> bool:
        """Return whether a round may come to another result than the last one. What has changed is over with that."""
        has_changed = self._workloads_changed or self._cluster_changed
        if not (
            stages[CheckStage.CANDIDATE]
            or stages[CheckStage.LATE]
            or stages[CheckStage.BACKING_OFF]
            or (has_changed and stages[CheckStage.PROMISED])
        ):
            return False
        self._workloads_changed = self._cluster_changed = False
        return True

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
        promised.sort(key=lambda it: rank_of_promise(it, self._names.known, now))
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
        )

    def _promised(self, workload: Workload) -> PromisedWorkload:
        memory = self._memory[workload.metadata.uid]
        return PromisedWorkload(workload, memory.nodes, memory.flavors)

    def _with_flavors(self, workload: Workload) -> Workload:
        """Return the Workload with the quota that it had last: it may get the same again."""
        admission = self._memory[workload.metadata.uid].admission
        return replace(workload, status=replace(workload.status, admission=admission))

    # --- what follows ---

    async def _carry_out(self, answers: CheckAnswers, late: Sequence[Workload]) -> None:
        for uid in answers.started:
            self._memory.setdefault(uid, Memory()).is_started = True
            self._promise(uid, ())
        asked = list(answers.candidates.values())
        for uid, outcome in answers.promised.items():
            memory = self._memory.get(uid)
            if memory is not None and self._is_unsure(outcome.workload, memory):
                asked.append(outcome)
            else:
                self._kept(uid, outcome)
        limit = asyncio.Semaphore(WRITES)
        async with asyncio.TaskGroup() as group:
            for workload in late:
                group.create_task(self._say(workload, _LATE, limit))
            for outcome in asked:
                group.create_task(self._decide(outcome, limit))
            for outcome in answers.backing_off.values():
                if outcome.fits:
                    group.create_task(self._requeue(outcome.workload, limit))
        self._metrics.promises.set(len(self._seats))

    async def _answer_unplanned(self, stages: Mapping[CheckStage, Sequence[Workload]]) -> None:
        """Answer Workloads for which no place is looked for."""
        limit = asyncio.Semaphore(WRITES)
        async with asyncio.TaskGroup() as group:
            for workload in stages[CheckStage.ELSEWHERE]:
                group.create_task(self._say(workload, _ELSEWHERE, limit))
            for workload in stages[CheckStage.STALE]:
                group.create_task(self._say(workload, _STALE, limit))
            for workload in stages[CheckStage.DUE]:
                group.create_task(self._end_wait(workload, "its back-off is over", limit))

    async def _say(self, workload: Workload, decision: CheckDecision, limit: asyncio.Semaphore) -> None:
        async with limit:
            written = await self._write(workload, decision)
        if written is Written.YES:
            self._metrics.decided(decision.state)
            logger.info("workload %s: %s: %s", workload.key, decision.state, decision.message)

    def _kept(self, uid: str, outcome: Outcome) -> None:
        memory = self._memory.setdefault(uid, Memory())
        if outcome.fits:
            memory.nodes = outcome.nodes
        elif not memory.is_broken:
            self._metrics.broken.inc()
            said = shortened(outcome.reason, LOGGED_CHARACTERS)
            logger.warning("workload %s was promised a place and has none: %s", outcome.workload.key, said)
        memory.is_broken = not outcome.fits
        self._promise(uid, outcome.seats)

    async def _decide(self, outcome: Outcome, limit: asyncio.Semaphore) -> None:
        workload = outcome.workload
        uid = workload.metadata.uid
        memory = self._memory.setdefault(uid, Memory())
        if outcome.fits:
            if self._is_taken(outcome.seats):
                self._look_again()  # by a decision of these milliseconds
                return
            # The devices are kept before the answer of the server: a pod may be decided on meanwhile.
            memory.nodes, memory.is_broken = outcome.nodes, False
            self._promise(uid, outcome.seats)
            decision = CheckDecision(
                CheckState.READY, f"all pods fit on {_places(outcome.seats)}" if outcome.seats else ""
            )
        else:
            decision = self._refusal(outcome, memory)
            if decision.wait is not None and await self._keeps_quota(workload, decision, memory, limit):
                return
        async with limit:
            written = await self._write(workload, self._at_once(decision, memory))
        if written is not Written.YES:
            memory.back_off = None
            if written is Written.UNKNOWN and decision.state is CheckState.READY and outcome.seats:
                memory.unsure, memory.unsure_until = (
                    workload.metadata.resource_version,
                    self._clock() + LATE_WRITE_SECONDS,
                )
            if not self._is_unsure(workload, memory):
                self._promise(uid, ())
            return
        self._metrics.decided(decision.state)
        said = shortened(decision.message, LOGGED_CHARACTERS)
        logger.info("workload %s: %s: %s", workload.key, decision.state, said)
        if decision.state is CheckState.READY:
            memory.retries, memory.in_vain, memory.never_since = 0, 0, None
        else:
            memory.retries += 1
            memory.in_vain += memory.requeued
            memory.retried_at = self._clock()
        memory.requeued = False

    async def _keeps_quota(
        self, workload: Workload, decision: CheckDecision, memory: Memory, limit: asyncio.Semaphore
    ) -> bool:
        """Return whether a Workload is not evicted yet, since Kueue gave it quota again and again before its back-off.

        Freed devices let it in meanwhile, as it is pending.
        """
        memory.lost_turns += memory.back_off is not None
        memory.back_off = None
        if memory.lost_turns >= MOST_LOST_TURNS:
            held = min(HOLDING_SECONDS * 2**memory.holdings, LONGEST_HOLDING_SECONDS)
            memory.lost_turns, memory.held_until = 0, self._clock() + held
            memory.holdings = min(memory.holdings + 1, DOUBLED_ATTEMPTS)
            async with limit:
                await self._write(workload, changed(decision, state=CheckState.PENDING, wait=None))
        if memory.held_until <= self._clock():
            return False
        self._due = min(self._due, memory.held_until)
        return True

    def _at_once(self, decision: CheckDecision, memory: Memory) -> CheckDecision:
        """Return what is written first: a Retry without its back-off, which follows when Kueue has evicted."""
        memory.back_off = None
        if decision.wait is None:
            memory.lost_turns = memory.holdings = 0
            return decision
        memory.back_off = changed(decision, wait=decision.wait + KUEUE_LATER_SECONDS)
        return changed(decision, wait=None)

    def _follow_eviction(self, workload: Workload) -> None:
        """Write the back-off into an evicted Workload: at once, since Kueue is about to give it quota again."""
        memory = self._memory.get(workload.metadata.uid)
        wanted = after_eviction(workload, self._names.active, memory.back_off if memory is not None else None)
        if wanted is not None:
            task = asyncio.create_task(self._write_follow_up(workload, wanted))
            self._follow_ups.add(task)
            task.add_done_callback(self._follow_ups.discard)

    async def _write_follow_up(self, workload: Workload, wanted: CheckDecision) -> None:
        # Refused when Kueue has given quota again: then it is decided on anew.
        async with self._follow_up_limit:
            since = evicted_at(workload) or format_time(self._now())
            written = await self._patch(workload, follow_up_patch(workload, self._names.active, wanted, since))
        memory = self._memory.get(workload.metadata.uid)
        if written is Written.YES and memory is not None and wanted.state is CheckState.RETRY:
            memory.back_off, memory.lost_turns, memory.holdings = None, 0, 0

    def _refusal(self, outcome: Outcome, memory: Memory) -> CheckDecision:
        now = self._clock()
        if outcome.is_final:
            return CheckDecision(CheckState.REJECTED, outcome.reason)
        if not outcome.fits_never:
            memory.never_since = None
            counted = max((it.retry_count or 0 for _, it in states(outcome.workload, self._names.active)), default=0)
            wait = backoff_seconds(max(memory.retries, counted), self._settings.backoff)
            return CheckDecision(CheckState.RETRY, outcome.reason, wait)
        if memory.never_since is None:
            memory.never_since = now
        left = memory.never_since + self._settings.never - now
        if left > CLOCK_SECONDS:
            # A wait that is rounded down would end before its time, and the Workload be evicted once more for nothing.
            return CheckDecision(CheckState.RETRY, outcome.reason, math.ceil(left))
        return CheckDecision(CheckState.REJECTED, outcome.reason)

    def _is_taken(self, seats: Iterable[Nomination]) -> bool:
        """Return whether a claim got one of the whole devices since the view was made."""
        usage = self._cluster.allocated_devices.usage
        return any(not usage.is_free(device) for device in _whole_devices(seats))

    def _is_left_over(self, before: Sequence[Nomination], now: Sequence[Nomination]) -> bool:
        """Return whether a promise that changes leaves something free: its pods got other devices, or other nodes."""
        usage, kept, known = self._cluster.allocated_devices.usage, _whole_devices(now), set[DeviceId]()
        for seat in before:
            known |= (devices := _whole_devices((seat,)))
            if not devices and seat not in now:
                return True  # nobody keeps account of what it had
        return any(usage.is_free(device) for device in known - kept)

    async def _requeue(self, workload: Workload, limit: asyncio.Semaphore) -> None:
        """End the back-off since devices came free: the Workload may get its quota again at once."""
        memory = self._memory.setdefault(workload.metadata.uid, Memory())
        memory.retried_at, memory.requeued = self._clock(), True
        if await self._end_wait(workload, "devices came free, and its pods fit now", limit):
            self._metrics.requeued.inc()
            for other in self._memory.values():
                other.held_until = -math.inf  # this one may need the quota
        else:
            # What came free is still there: the next look finds it without anything else that comes free.
            memory.looked, memory.requeued = 0, False

    async def _end_wait(self, workload: Workload, why: str, limit: asyncio.Semaphore) -> bool:
        """Have Kueue try the Workload again. Return whether that was written."""
        meta = workload.metadata
        patch = requeue_patch(workload, self._names.active, why, format_time(self._now()))
        async with limit:
            try:
                raw = await self._client.patch(
                    WORKLOADS, meta.name, patch, meta.namespace, kind="json", subresource="status"
                )
            except NotFound:
                return False
            except KubeError as error:
                self._tell(workload, error)
                return False
        logger.info("workload %s: Kueue may try it again: %s", workload.key, why)
        self._ended[workload.key] = meta.uid, self._clock() + LEFT_BEHIND_SECONDS, 2 * LEFT_BEHIND_SECONDS
        self._due = min(self._due, self._clock() + LEFT_BEHIND_SECONDS)
        self._control.answered(convert(Workload, raw))
        return True

    async def _write(self, workload: Workload, decision: CheckDecision) -> Written:
        """Return whether the decision was written. A Workload that has changed is decided on anew."""
        return await self._patch(
            workload, decision_patch(workload, self._names.active, decision, format_time(self._now()))
        )

    async def _patch(self, workload: Workload, patch: Sequence[Mapping[str, Any]]) -> Written:
        meta = workload.metadata
        try:
            raw = await self._client.patch(
                WORKLOADS, meta.name, patch, meta.namespace, kind="json", subresource="status"
            )
        except NotFound:
            return Written.NO
        except KubeError as error:
            self._tell(workload, error)
            may_have_effect = isinstance(error, Unreachable | ServerError)
            return Written.UNKNOWN if may_have_effect else Written.NO
        self._control.answered(convert(Workload, raw))
        return Written.YES

    def _tell(self, workload: Workload, error: KubeError) -> None:
        """Log a failed write, and try again a little later. That the object has changed is no failure."""
        if isinstance(error, Conflict):
            self._workloads_changed = True
            self._news.set()
            return
        if isinstance(error, Invalid):
            meta = workload.metadata
            memory = self._memory.setdefault(meta.uid, Memory())
            is_again, memory.refused = memory.refused == meta.resource_version, meta.resource_version
            # The fields of a JSON patch are looked up before the versions are compared: they may be gone by now. A
            # version that is still the newest one at the next look was refused for something else.
            if not is_again:
                asyncio.get_running_loop().call_later(CHANGED_SECONDS, self._look_again)
                logger.debug("workload %s: cannot be written: %s", workload.key, error)
                return
        self._metrics.errors.inc()
        logger.warning("workload %s: cannot be written: %s", workload.key, error)
        asyncio.get_running_loop().call_later(1.0 if not isinstance(error, ApiError) else 5.0, self._look_again)

    async def _activate_checks(self) -> None:
        """Say in each check of ours that it is answered."""
        for check in list(self._cluster.store_of(AdmissionCheck)):
            if check.spec.controller_name != CONTROLLER_NAME or self._failed_checks.get(check.key, 0.0) > self._clock():
                continue
            until = self._paused.get(check.key, -math.inf)
            if until > self._clock():
                self._due = min(self._due, until)
            patch = active_patch(check, format_time(self._now()), is_paused=until > self._clock())
            if patch is None:
                continue
            try:
                raw = await self._client.patch(ADMISSION_CHECKS, check.metadata.name, patch, subresource="status")
            except Conflict:
                continue  # the watch brings the newer version
            except KubeError as error:
                self._failed_checks[check.key] = self._clock() + PROMISE_LOOK_SECONDS
                if not isinstance(error, NotFound):
                    logger.warning("admission check %s: cannot be written: %s", check.key, error)
                continue
            self._control.answered(convert(AdmissionCheck, raw))

    def _find_left_behind(self) -> None:
        """Pause the checks of a Workload that Kueue should have tried, and has not.

        Kueue 0.19.2 may not see that the back-off of a Workload with device claims was ended. It tries the Workload
        when another one of its queue ends, or when a check of the queue was not active for a moment.
        """
        store, late = self._cluster.store_of(Workload), list[Workload]()
        for key, (uid, due, pause) in list(self._ended.items()):
            workload = store.get(key, uid)
            if workload is None or not is_in_queue(workload):
                del self._ended[key]
                continue
            if due > self._clock():
                self._due = min(self._due, due)
                continue
            self._ended[key] = uid, self._clock() + pause, min(2 * pause, LONGEST_LEFT_BEHIND_SECONDS)
            late.append(workload)
        if not late:
            return
        busy = {self._queue_of(it) for it in store if it.has_quota and not it.has("Finished")}
        for workload in late:
            if self._queue_of(workload) in busy:
                continue
            logger.info("workload %s: Kueue has not tried it since its back-off ended: its checks pause", workload.key)
            for _, state in states(workload, self._names.active):
                self._paused[state.name] = self._clock() + CHECK_PAUSE_SECONDS

    def _queue_of(self, workload: Workload) -> str:
        """Return the ClusterQueue in which the Workload has quota, or had it last."""
        memory = self._memory.get(workload.metadata.uid)
        admission = workload.status.admission or (memory.admission if memory is not None else None)
        return admission.cluster_queue if admission is not None else ""

    # --- promises ---

    def _promise(self, uid: str, seats: tuple[Nomination, ...]) -> None:
        """Have the other controllers leave this to the Workload, in the place of what it was promised before."""
        before, known = self._seats.get(uid, ()), self._cluster.nominated_pods
        if before == seats:
            return
        if seats:
            known.is_on = True
            self._seats[uid] = seats
        else:
            self._seats.pop(uid, None)
        if before and self._is_left_over(before, seats):
            self._freed += 1
            self._news.set()
        kept = {seat.pod.metadata.uid for seat in seats}
        for seat in seats:
            if known.get(seat.pod.metadata.uid) != seat:
                self._control.queues.add(self._cluster.nominate(seat))
        for seat in before:
            if seat.pod.metadata.uid not in kept:
                self._control.queues.add(self._cluster.end_nomination(seat.pod.metadata.uid))

    def _forget_promises(self, promised: set[str]) -> None:
        for uid in self._seats.keys() - promised:
            self._promise(uid, ())


def _whole_devices(seats: Iterable[Nomination]) -> set[DeviceId]:
    """Return the devices that are promised to one pod alone."""
    results = (result for seat in seats for allocation in seat.allocations for result in allocation.results)
    return {DeviceId.of(it) for it in results if not it.admin_access and it.share_id is None}


def _frees(before: Object | None, now: Object | None) -> bool:
    """Return whether the change may let a Workload in: anything but a pod or a claim that takes something."""
    match before, now:
        case (Pod(), Pod()):
            return pod_is_done(now) and not pod_is_done(before)
        case (None, Pod()):
            return False
        case (ResourceClaim(), ResourceClaim()):
            return before.status.allocation is not None and now.status.allocation != before.status.allocation
        case (None, ResourceClaim()):
            return False
    return True


def _places(seats: Sequence[Nomination]) -> str:
    nodes = sorted({seat.node for seat in seats})
    shown = ", ".join(nodes[:SHOWN_NODES])
    return shown if len(nodes) <= SHOWN_NODES else f"{shown} and {len(nodes) - SHOWN_NODES} more nodes"
