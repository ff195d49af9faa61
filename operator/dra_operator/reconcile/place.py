"""A waiting pod gets a node and devices: decide, then carry out (scheduling.md section 4).

A pod of another scheduler that waits at our scheduling gate gets its devices in the same way, and then its gate is
opened instead of a node assigned (``ending``).

Concern ``place`` of the queue. The dispatcher asks for one decision at a time (``decide``); a plan takes its devices
and its room before the next decision starts, which so sees them as used. What a decision calls for (writing the plan,
telling why the pod waits, asking what became of an unanswered write) comes back as a follow-up, and is carried out
beside those of other pods.

A pod may be allocated and reserved and still not be bound: its devices have to get ready, or the watch has to show that
no other scheduler took them. It keeps its devices and its room, and is looked at again when that may have changed.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial

from dra_api.core import Pod
from dra_api.references import is_reserved_for
from dra_api.resource import FINALIZER, ResourceClaim
from dra_api.volumes import volume_uses
from dra_kube import NotFound

from dra_operator.allocator import Allocator, DeviceId
from dra_operator.cluster import (
    ANOTHER_WRITE,
    BEING_BOUND,
    EVERYTHING,
    FAILED,
    GETTING_READY,
    LEFTOVERS,
    NONE,
    VOLUMES_PENDING,
    Cluster,
    DeviceTaken,
    Key,
    WakeConditions,
    classes_of,
)
from dra_operator.kube import ClaimChanged, EventReason, EventRecorder
from dra_operator.placement import (
    GATE,
    HOLD,
    NO_VOLUMES,
    OF_VOLUMES,
    Case,
    GettingReady,
    Kind,
    NodeAnswer,
    NoPlace,
    NotTried,
    Plan,
    Planning,
    PodClaim,
    Readiness,
    Stolen,
    VolumesFailed,
    VolumesPending,
    VolumeWait,
    WriteUnderWay,
    answer_text,
    claim_readiness,
    examine,
    is_alone,
    is_at_gate,
    is_immediate,
    is_stand_in,
    plan,
    text,
    title,
)

from .allocate_ahead import AllocateAhead
from .bind import Bind
from .commit import Commit, Writing
from .concerns import Concerns
from .dispatcher import Decided, FollowUp, Postponed, Result
from .ending import Ending
from .errors import CommitRefused, PlacementFailed
from .logbook import devices_in, tell
from .open_gate import OpenGate
from .pace import Pace
from .planning import PlanInProgress
from .queue import WorkQueue
from .report import WaitingReport

logger = logging.getLogger(__name__)

UNSCHEDULABLE = "Unschedulable"
SCHEDULER_ERROR = "SchedulerError"
UNSEEN = 5.0  # seconds between two looks whether the watch has brought an allocation


class PodPlacer:
    """Decides on ``place:`` keys."""

    def __init__(
        self,
        cluster: Cluster,
        allocator: Allocator,
        writing: Writing,
        events: EventRecorder,
        queue: WorkQueue,
        wake: Callable[[Sequence[Key]], None],
        clock: Callable[[], datetime],
        pace: Pace,
        concerns: Concerns,
    ) -> None:
        self._pace, self._concerns = pace, concerns
        is_limited = cluster.features.filter_timeout and pace.filter_timeout
        self._filter_timeout = pace.filter_timeout if is_limited else math.inf
        self._cluster, self._allocator, self._queue, self._clock = cluster, allocator, queue, clock
        self._writing, self._events, self._wake = writing, events, wake
        self._claims, self._pods, _, self._confirmations, _ = writing
        self._bind, self._open_gate = Bind(cluster, writing.pods), OpenGate(cluster, writing.pods)
        self._allocate_ahead = AllocateAhead(cluster)
        self._report = WaitingReport(cluster, writing.pods, events)
        self._put_aside: dict[str, PlanInProgress] = {}

    async def decide(self, key: str) -> Decided | Postponed:
        """One attempt, or another piece of one. Its end is a plan taken, a reason to wait, or nothing to do."""
        attempt = self._put_aside.pop(key, None)
        if self._cluster.ledger.in_flight_for(key):
            return Decided(partial(self._settle, key))
        pod = self._cluster.applicant(key)
        if pod is None or not self._is_ours(pod) or self._cluster.is_bound(pod):
            return Decided()
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

    # --- deciding ---

    def _begin(self, pod: Pod) -> PlanInProgress | Decided:
        """Look at the pod and its claims; a plan to be made, if they are in order and nothing has to come first."""
        self._cluster.set_wake_conditions(pod.key, EVERYTHING)
        found = examine(pod, self._cluster.snapshot(self._allocator, self._clock(), self._pace.binding_timeout))
        match found:
            case Case():
                if is_at_gate(pod) and not found.claims:
                    return Decided(partial(self._let_pass, pod))
                if neighbours := found.nodes.neighbours_of(pod):
                    self._cluster.set_wake_conditions(pod.key, EVERYTHING._replace(hints=neighbours.hints()))
                unsure = [claim for claim in found.resource_claims if self._may_change_yet(pod, claim)]
                if unsure:
                    return Decided(partial(self._let_go, pod, unsure))
                return PlanInProgress(found, self._plan(found))
            case NotTried(obstacle, claims, stale):
                reason, volumes = obstacle.kind.value, obstacle.kind in OF_VOLUMES
                wake_on = (LEFTOVERS if stale else NONE)._replace(reason=reason, volumes=volumes)
                self._cluster.set_wake_conditions(pod.key, wake_on)
                if obstacle.kind is Kind.CLAIM_UNMADE:
                    return Decided()
                return self._refuse(pod, claims, NoPlace(text(obstacle), reason, leftovers=stale))
            case Stolen(claim, devices):
                return Decided(partial(self._give_way, pod, claim, devices))
            case GettingReady(_, seconds):
                self._cluster.set_wake_conditions(pod.key, GETTING_READY)
                self._queue.add_after(Key("place", pod.key), seconds + 1)  # a change of the claims comes earlier
                return Decided()
            case VolumesPending(_, _, seconds):
                self._cluster.set_wake_conditions(pod.key, VOLUMES_PENDING)
                self._queue.add_after(Key("place", pod.key), seconds + 1)  # a change of the claims comes earlier
                return Decided()
            case VolumesFailed(failure, held):
                return Decided(partial(self._place_anew, pod, held, failure))
            case WriteUnderWay():
                self._cluster.set_wake_conditions(pod.key, ANOTHER_WRITE)
                return Decided()  # the end of the other pod's write brings this one here again

    def _plan(self, case: Case) -> Planning:
        """A plan that says what each node answered, if that is logged."""
        if not logger.isEnabledFor(logging.DEBUG):
            return plan(case, self._filter_timeout)
        pod = case.pod.key

        def answered(node: str, answer: NodeAnswer) -> None:
            tell(logger, logging.DEBUG, "node asked", pod=pod, node=node, answer=answer_text(answer))

        return plan(case, self._filter_timeout, answered)

    async def _go_on(self, attempt: PlanInProgress) -> Decided | Postponed:
        pod, cluster = attempt.pod, self._cluster
        with cluster.without_load_of(pod):
            cluster.node_states()  # brings the plan's nodes up to date
            decision = await attempt.advance(self._pace.turns.turn)
            if decision is None:
                self._put_aside[pod.key] = attempt
                return Postponed(attempt.spent)
            if isinstance(decision, Plan):
                return Decided(self._take(attempt, decision), attempt.spent)
        if not decision.is_error:
            self._wait_for_changes(attempt, decision)
        return self._refuse(pod, attempt.case.claims, decision, attempt.spent)

    def _take(self, attempt: PlanInProgress, decision: Plan) -> FollowUp:
        """Take the devices and the room of a plan. Raises PlacementFailed when they are no more what they were."""
        pod = attempt.pod
        self._cluster.set_wake_conditions(pod.key, BEING_BOUND)  # a failure has its back-off, and nothing else helps
        if not attempt.is_current(decision, self._cluster):
            raise PlacementFailed(f"the cluster changed while {title(pod)} was being planned")
        commit = Commit(self._cluster, self._writing, self._ending(pod), self._wake)
        try:
            commit.take(pod, attempt.case.claims, decision)
        except DeviceTaken as error:  # by another writer's allocation that came in while the plan was made
            raise PlacementFailed(str(error)) from error
        return partial(self._carry_out, pod, decision, commit)

    def _wait_for_changes(self, attempt: PlanInProgress, decision: NoPlace) -> None:
        """Have the pod woken by what it lacked, and by nothing else."""
        wanted = [claim for claim in attempt.case.resource_claims if claim.status.allocation is None]
        classes = {name for claim in wanted for name in classes_of(claim)}
        classes.update(attempt.case.extended.classes.values())
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
        self._wake(self._cluster.forget_placed(pod))
        return Decided(partial(self._wait, pod, claims, decision), spent)

    # --- carrying out ---

    async def _carry_out(self, pod: Pod, decision: Plan, commit: Commit) -> Result | None:
        try:
            is_done = await commit.write(partial(self._may_end, pod))
        except CommitRefused as refused:
            await self._report.waits(pod, SCHEDULER_ERROR, f"{refused}; tried again with growing pauses")
            raise
        finally:
            self._cluster.storage.written(pod.metadata.uid)
        if not is_done:
            self._look_again(pod, decision)
            return None
        self._report.forget(pod)
        if news := self._ending(pod).news(pod, decision.node):
            self._events.post(*news)
        for _, claim in self._cluster.claims_of(pod):
            if claim is not None:
                self._writing.metrics.awaited(claim, Readiness.READY, self._clock())
        return Result.SCHEDULED

    def _may_end(self, pod: Pod, claims: Sequence[ResourceClaim]) -> bool:
        """Whether all devices are ready for the pod to run with them, and certainly its own.

        An immediate claim waits for nothing; where they may not be its own, it is looked at once more.
        """
        if is_stand_in(pod):
            if self._confirmations.wait(claims):
                self._queue.add_after(Key("place", pod.key), UNSEEN)
            return True
        now, timeout = self._clock(), self._pace.binding_timeout
        if any(claim_readiness(claim, now, timeout).state is not Readiness.READY for claim in claims):
            return False
        if any(self._unbound_volumes(pod)):
            return False
        return self._confirmations.wait(claims) <= 0 and not any(self._must_give_way(pod, claim) for claim in claims)

    async def _let_pass(self, pod: Pod) -> None:
        """A pod at the gate that uses no claims needs nothing from us, wherever it runs."""
        await self._open_gate.write(pod, "", ())
        self._events.post(pod, EventReason.GATE_REMOVED, f"Scheduling gate {GATE} removed: the pod uses no claims")

    def _look_again(self, pod: Pod, decision: Plan) -> None:
        """The pod has its devices but cannot be bound yet: come back when that may have changed."""
        claims = [claim for _, claim in self._cluster.claims_of(pod) if claim is not None]
        unbound = ", ".join(self._unbound_volumes(pod))
        if unbound:
            deadline = self._clock() + timedelta(seconds=self._pace.volume_binding_timeout)
            self._cluster.storage.wait(pod.metadata.uid, VolumeWait(decision.node, deadline))
            waiting = f"waiting for PersistentVolumeClaim {unbound} to be bound on node {decision.node}"
            self._events.post(pod, EventReason.VOLUMES_PENDING, waiting)
        wait = self._confirmations.wait(claims)
        if wait > 0:
            # The watch wakes the pod when it brings the allocation; should it never come, look at what there is.
            self._queue.add_after(Key("place", pod.key), UNSEEN if wait == math.inf else wait)
            return
        if not unbound and not any(self._must_give_way(pod, claim) for claim in claims):
            waiting = f"waiting for binding conditions for device on node {decision.node}"
            self._events.post(pod, EventReason.BINDING_CONDITIONS_PENDING, waiting)
        self._queue.add([Key("place", pod.key)])

    def _unbound_volumes(self, pod: Pod) -> Iterator[str]:
        """The pod's claims of volumes that are not bound yet; those of a pod at the gate are not our concern."""
        for use in () if is_at_gate(pod) else volume_uses(pod):
            claim = self._cluster.storage.claim(use.key)
            if claim is None or not claim.is_bound:
                yield use.name

    def _must_give_way(self, pod: Pod, claim: ResourceClaim) -> bool:
        """Whether another claim holds a device of this one too, and no other pod relies on this one."""
        return is_alone(pod, claim) and bool(self._cluster.ledger.clashes(claim))

    def _may_change_yet(self, pod: Pod, claim: ResourceClaim) -> bool:
        """Whether a write of ours without an answer may still take from the pod what it seems to have.

        A claim that the pod does not hold yet is written once more before the pod is bound, which settles the matter.
        """
        is_held = claim.status.allocation is not None and is_reserved_for(pod, claim)
        return is_held and self._claims.is_unsettled(claim)

    async def _let_go(self, pod: Pod, claims: Sequence[ResourceClaim]) -> None:
        """Finish what may be under way: the pod gives the claims up, by writes that are answered, and starts afresh."""
        await self._give_up(pod, claims, "a write to it was not answered")
        self._queue.add([Key("place", pod.key)])

    async def _place_anew(self, pod: Pod, claims: Sequence[ResourceClaim], reason: str) -> None:
        """Its volumes were not bound on the node: others may use the devices until the pod is tried again."""
        await self._give_up(pod, claims, reason)
        await self._report.waits(pod, SCHEDULER_ERROR, f"binding volumes: {reason}; tried again with growing pauses")
        raise PlacementFailed(f"binding volumes of pod {pod.key}: {reason}")

    async def _give_up(self, pod: Pod, claims: Sequence[ResourceClaim], because: str) -> None:
        for claim in claims:
            with suppress(NotFound, ClaimChanged):
                await self._claims.release(claim, {pod.metadata.uid}, deallocate=True)
                self._released(pod, claim, because)
        self._confirmations.forget(claims)
        self._wake(self._cluster.forget_placed(pod))

    async def _give_way(self, pod: Pod, claim: ResourceClaim, devices: Sequence[DeviceId]) -> None:
        """Another scheduler took the same device at the same time: give ours back, and choose anew."""
        self._wake(self._cluster.forget_placed(pod))
        try:
            await self._claims.clear(claim, pod.metadata.uid)
        except (ClaimChanged, NotFound) as error:
            raise PlacementFailed(str(error)) from error
        finally:
            self._confirmations.forget([claim])
        self._writing.metrics.gave_way()
        self._released(pod, claim, "another claim holds a device too")
        given_up = ", ".join(map(str, devices))
        raise PlacementFailed(f"claim {claim.key} gave up {given_up}, which another claim holds too")

    async def _wait(self, pod: Pod, claims: Sequence[PodClaim], decision: NoPlace) -> Result:
        """No node takes the pod: say why, and give back what it holds in the wrong place (4.3)."""
        await self._report.waits(pod, SCHEDULER_ERROR if decision.is_error else UNSCHEDULABLE, decision.message)
        stuck = [held for held in claims if self._may_clear(pod, held.claim, decision)][:1]
        in_vain = [*decision.leftovers, *(held.claim for held in stuck if held.entry is None)]
        try:
            if in_vain:
                await self._discard(pod, in_vain)
            elif stuck:
                await self._claims.clear(stuck[0].claim, pod.metadata.uid)
                self._released(pod, stuck[0].claim, "the pod cannot run where it is allocated")
                self._count_lost(stuck[0].claim)
        except (ClaimChanged, NotFound) as error:
            raise PlacementFailed(str(error)) from error
        if decision.is_error:
            raise PlacementFailed(decision.message)
        return Result.UNSCHEDULABLE

    def _released(self, pod: Pod, claim: ResourceClaim, because: str) -> None:
        freed = partial(devices_in, claim.status.allocation)
        tell(logger, logging.INFO, "claim released", claim=claim.key, pod=pod.key, because=because, freed=freed)

    def _may_clear(self, pod: Pod, claim: ResourceClaim, decision: NoPlace) -> bool:
        """Whether the pod may give the claim's devices back; an immediate claim keeps them, unless they failed."""
        is_stuck = claim.metadata.uid in decision.unavailable and is_alone(pod, claim)
        if not is_stuck or not is_immediate(claim):
            return is_stuck
        return claim_readiness(claim, self._clock(), self._pace.binding_timeout).is_lost

    def _count_lost(self, claim: ResourceClaim) -> None:
        now = self._clock()
        binding = claim_readiness(claim, now, self._pace.binding_timeout)
        if binding.is_lost:
            self._writing.metrics.awaited(claim, binding.state, now)

    async def _discard(self, pod: Pod, claims: Sequence[ResourceClaim]) -> None:
        """Delete claims for extended resources, unless the pod turns out to be bound with them. Raises NotFound."""
        current = await self._pods.read(pod.metadata.namespace, pod.metadata.name)
        if current.metadata.uid == pod.metadata.uid and not current.spec.node_name:
            for claim in claims:
                await self._claims.discard(claim, pod.metadata.uid)

    async def _settle(self, key: str) -> None:
        """Allocations of an earlier attempt whose write was not answered: find out what became of them.

        Until that is certain they stay in the ledger, and the pod is not tried again. The server is asked, and an
        allocation that is not there is fenced off: giving up the finalizer changes the claim's resourceVersion, which
        the old write names, so that it fails should it still be under way. A claim without allocation needs none.
        """
        for entry in self._cluster.ledger.in_flight_for(key):
            with suppress(NotFound, ClaimChanged):  # gone, or replaced: with it the old write's object
                await self._claims.remove_finalizer(entry.claim, HOLD if is_stand_in(entry.pod) else FINALIZER)
            self._wake(self._cluster.settle(entry.claim.metadata.uid))
        self._queue.add([Key("place", key)])
