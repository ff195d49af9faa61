"""A waiting pod gets a node and devices: decide, then carry out (scheduling.md section 4).

A pod of another scheduler that waits at our scheduling gate gets its devices in the same way, and then its gate is
opened instead of a node assigned (``ending``).

Concern ``place`` of the queue. The dispatcher asks for one decision at a time (``decide``); a plan takes its devices
and its room before the next decision starts, which so sees them as used. What a decision calls for (writing the plan,
telling why the pod waits, asking what became of an unanswered write) comes back as a follow-up, and is carried out
beside those of other pods: by ``carry_out`` if there is a plan, by ``give_back`` if there is none.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from dra_api.core import Pod
from dra_api.references import is_reserved_for
from dra_api.resource import ResourceClaim
from dra_kube.spans import span

from dra_operator.allocator import Allocator
from dra_operator.cluster import (
    ANOTHER_WRITE,
    BEING_BOUND,
    EVERYTHING,
    FAILED,
    GETTING_READY,
    LEFTOVERS,
    NONE,
    VOLUMES_PENDING,
    DeviceTaken,
    WakeConditions,
    classes_of,
)
from dra_operator.kube import EventReason
from dra_operator.placement import (
    GATE,
    NO_VOLUMES,
    OF_VOLUMES,
    Case,
    GettingReady,
    NodeAnswer,
    NoPlace,
    NotTried,
    ObstacleKind,
    Plan,
    Planning,
    PodClaim,
    Stolen,
    VolumesFailed,
    VolumesPending,
    WriteUnderWay,
    examine,
    is_at_gate,
    is_stand_in,
    plan,
    text,
    title,
)

from .allocate_ahead import AllocateAhead
from .bind import Bind
from .carry_out import CarryOut
from .commit import Commit
from .concerns import Concerns
from .dispatcher import Decided, FollowUp, Postponed
from .ending import Ending
from .errors import PlacementFailed
from .give_back import GiveBack
from .logbook import tell
from .open_gate import OpenGate
from .placing import Placing
from .planning import PlanInProgress
from .report import WaitingReport

logger = logging.getLogger(__name__)

NOTED_AFTER = 1.0
"""Seconds of planning after which a pod says that it is being planned."""


class PodPlacer:
    """Decides on ``place:`` keys."""

    def __init__(self, placing: Placing, allocator: Allocator, concerns: Concerns) -> None:
        self._placing, self._allocator, self._concerns = placing, allocator, concerns
        self._cluster, self._pace, pods = placing.cluster, placing.pace, placing.writing.pods
        is_limited = self._cluster.features.filter_timeout and self._pace.filter_timeout
        self._filter_timeout = self._pace.filter_timeout if is_limited else math.inf
        self._bind, self._open_gate = Bind(self._cluster, pods), OpenGate(self._cluster, pods)
        self._allocate_ahead = AllocateAhead(self._cluster)
        report = WaitingReport(self._cluster, pods, placing.events)
        self._carry_out, self._give_back = CarryOut(placing, report), GiveBack(placing, report)
        self._put_aside: dict[str, PlanInProgress] = {}

    async def decide(self, key: str) -> Decided | Postponed:
        """One attempt, or another piece of one. Its end is a plan taken, a reason to wait, or nothing to do."""
        attempt = self._put_aside.pop(key, None)
        if self._cluster.holdings.in_flight_for(key):
            return Decided(partial(self._give_back.settle, key), clears_up=True)
        pod = self._cluster.applicant(key)
        if pod is None or not self._is_ours(pod) or self._cluster.is_bound(pod):
            return Decided()
        pod = self._placing.writing.recording.foreseen(pod)
        if self._placing.writing.pods.unanswered(pod) is not None:
            return Decided(partial(self._give_back.ask, pod, self._ending(pod)), clears_up=True)
        if attempt is None or not attempt.is_of(self._cluster):
            begun = self._begin(pod)
            if not isinstance(begun, PlanInProgress):
                return begun
            attempt = begun
        return await self._go_on(attempt)

    def _is_ours(self, pod: Pod) -> bool:
        is_ahead = is_at_gate(pod) or is_stand_in(pod)
        concern = self._concerns.allocation if is_ahead else self._concerns.placement
        return concern and self._cluster.waits_for_us(pod)

    def _ending(self, pod: Pod) -> Ending:
        if is_stand_in(pod):
            return self._allocate_ahead
        return self._open_gate if is_at_gate(pod) else self._bind

    def _begin(self, pod: Pod) -> PlanInProgress | Decided:
        """Look at the pod and its claims; a plan to be made, if they are in order and nothing has to come first."""
        self._cluster.set_wake_conditions(pod.key, EVERYTHING)
        found = examine(pod, self._cluster.snapshot(self._allocator, self._placing.clock(), self._pace.binding_timeout))
        match found:
            case Case():
                if is_at_gate(pod) and not found.claims:
                    return Decided(partial(self._let_pass, pod))
                if neighbours := found.nodes.neighbours_of(pod):
                    self._cluster.set_wake_conditions(pod.key, EVERYTHING._replace(hints=neighbours.hints()))
                unsure = [claim for claim in found.resource_claims if self._may_change_yet(pod, claim)]
                if unsure:
                    return Decided(partial(self._give_back.let_go, pod, unsure), clears_up=True)
                if seconds := self._leave_to_others(found):
                    self._placing.look_again(pod.key, seconds)
                    return Decided()
                return PlanInProgress(found, self._plan(found))
            case NotTried(obstacle, claims, stale):
                reason, volumes = obstacle.kind.value, obstacle.kind in OF_VOLUMES
                wake_on = (LEFTOVERS if stale else NONE)._replace(reason=reason, volumes=volumes)
                self._cluster.set_wake_conditions(pod.key, wake_on)
                if obstacle.kind is ObstacleKind.CLAIM_UNMADE:
                    return Decided()
                return self._refuse(pod, claims, NoPlace(text(obstacle), reason, leftovers=stale))
            case Stolen(claim, devices):
                return Decided(partial(self._give_back.give_way, pod, claim, devices))
            case GettingReady(_, seconds) | VolumesPending(_, _, seconds):
                wake_on = GETTING_READY if isinstance(found, GettingReady) else VOLUMES_PENDING
                self._cluster.set_wake_conditions(pod.key, wake_on)
                self._placing.look_again(pod.key, seconds + 1)  # a change of the claims comes earlier
                return Decided()
            case VolumesFailed(failure, held):
                return Decided(partial(self._give_back.after_volumes, pod, held, failure))
            case WriteUnderWay():
                self._cluster.set_wake_conditions(pod.key, ANOTHER_WRITE)
                return Decided()  # the end of the other pod's write brings this one here again

    def _leave_to_others(self, case: Case) -> float:
        """Seconds for which other schedulers have the right of way to the devices that the pod wants."""
        is_served = case.extended.made is not None  # which is done last
        wanted = frozenset() if is_served else self._cluster.drivers_of(_wanted_classes(case))
        return self._placing.right_of_way.wait(case.pod, wanted)

    def _plan(self, case: Case) -> Planning:
        """A plan that says what each node answered, if that is logged."""
        if not logger.isEnabledFor(logging.DEBUG):
            return plan(case, self._filter_timeout)
        pod = case.pod.key

        def answered(node: str, answer: NodeAnswer) -> None:
            tell(logger, logging.DEBUG, "node asked", pod=pod, node=node, answer=answer.text)

        return plan(case, self._filter_timeout, answered)

    async def _go_on(self, attempt: PlanInProgress) -> Decided | Postponed:
        pod, cluster = attempt.pod, self._cluster
        with cluster.without_load_of(pod):
            cluster.loaded_nodes()  # brings the plan's nodes up to date
            with span("plan", pod=pod.key, claims=lambda: [claim.key for claim in attempt.case.resource_claims]):
                decision = await attempt.advance(self._pace.turns.turn)
            if decision is None:
                self._put_aside[pod.key] = attempt
                return Postponed(attempt.spent, self._note(attempt))
            if isinstance(decision, Plan):
                return Decided(self._take(attempt, decision), attempt.spent)
        if not decision.is_error:
            self._wait_for_changes(attempt, decision)
        return self._refuse(pod, attempt.case.claims, decision, attempt.spent)

    def _note(self, attempt: PlanInProgress) -> Callable[[], Awaitable[None]] | None:
        """For a pod that has shown no reason yet, and takes long: what is going on. Once per attempt."""
        conditions = attempt.pod.status.conditions or ()
        if attempt.is_noted or attempt.spent < NOTED_AFTER or any(it.type == "PodScheduled" for it in conditions):
            return None
        attempt.is_noted = True
        return partial(self._give_back.is_being_planned, attempt.pod, attempt.spent)

    def _take(self, attempt: PlanInProgress, decision: Plan) -> FollowUp:
        """Take the devices and the room of a plan. Raises PlacementFailed when they are no more what they were."""
        pod = attempt.pod
        self._cluster.set_wake_conditions(pod.key, BEING_BOUND)  # a failure has its back-off, and nothing else helps
        if not attempt.is_current(decision, self._cluster):
            raise PlacementFailed(f"the cluster changed while {title(pod)} was being planned")
        ending = self._ending(pod)
        commit = Commit(self._cluster, self._placing.writing, ending, self._placing.wake)
        try:
            commit.take(pod, attempt.case.claims, decision)
        except DeviceTaken as error:  # by another writer's allocation that came in while the plan was made
            raise PlacementFailed(str(error)) from error
        if attempt.case.claims:
            self._placing.lingering.placed()
        return partial(self._carry_out.write, pod, decision, commit, ending)

    def _wait_for_changes(self, attempt: PlanInProgress, decision: NoPlace) -> None:
        """Have the pod woken by what it lacked, and by nothing else."""
        classes = _wanted_classes(attempt.case)
        if classes:
            self._placing.lingering.lacked()
        wake_on = WakeConditions(
            nodes=True,
            room=decision.short_of_room,
            devices=bool(classes),
            freed=self._cluster.drivers_of(classes),
            leftovers=attempt.case.extended.made is not None,
            hints=decision.hints,
            reason=decision.reason,
            volumes=attempt.case.volumes != NO_VOLUMES,
        )
        self._cluster.set_wake_conditions(attempt.pod.key, wake_on)

    def _refuse(self, pod: Pod, claims: Sequence[PodClaim], decision: NoPlace, spent: float = 0.0) -> Decided:
        if decision.is_error:
            self._cluster.set_wake_conditions(pod.key, FAILED)
        self._placing.wake(self._cluster.forget_placed(pod))
        return Decided(partial(self._give_back.refuse, pod, claims, decision), spent)

    async def _let_pass(self, pod: Pod) -> None:
        """A pod at the gate that uses no claims needs nothing from us, wherever it runs."""
        await self._open_gate.write(pod, "", ())
        done = f"Scheduling gate {GATE} removed: the pod uses no claims"
        self._placing.events.post(pod, EventReason.GATE_REMOVED, done)

    def _may_change_yet(self, pod: Pod, claim: ResourceClaim) -> bool:
        """Whether a write of ours without an answer may still take from the pod what it seems to have.

        A claim that the pod does not hold yet is written once more before the pod is bound, which settles the matter.
        """
        is_held = claim.status.allocation is not None and is_reserved_for(pod, claim)
        return is_held and self._placing.writing.claims.is_unsettled(claim)


def _wanted_classes(case: Case) -> set[str]:
    """The classes of the devices that the pod has yet to get."""
    wanted = [claim for claim in case.resource_claims if claim.status.allocation is None]
    return {name for claim in wanted for name in classes_of(claim)} | set(case.extended.classes.values())
