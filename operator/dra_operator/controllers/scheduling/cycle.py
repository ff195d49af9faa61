"""A waiting pod gets a node and devices: decide, then carry out (scheduling.md section 4).

A pod that is put off without a word says for what it waits once that has lasted: ``decide`` is the one place through
which every attempt goes, so no case can be forgotten. What put it off last is in ``Decided.waits_for``, or is the error
that broke the attempt off.

A pod of another scheduler that waits at our scheduling gate gets its devices in the same way, and then its gate is
opened instead of a node assigned (``RemoveGate``).

The controller ``placement``. The dispatcher asks for one decision at a time (``decide``); a plan takes its devices
and its room before the next decision starts, which so sees them as used. What a decision calls for (writing the plan,
telling why the pod waits, asking what became of an unanswered write) comes back as a follow-up, and is carried out
beside those of other pods: by ``binding`` if there is a plan, by ``unreserve`` if there is none.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from dra_api.core import Pod
from dra_kube import KubeError
from dra_kube.spans import span

from dra_operator.allocator import Allocator
from dra_operator.cache import (
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
)
from dra_operator.controllers.context import Recently
from dra_operator.controllers.errors import BoundElsewhere, ControllerError, PlacementFailed, PodVanished
from dra_operator.controllers.scheduling.binding import BindingCycle, Permit
from dra_operator.controllers.scheduling.gang import GangAttempt, GangBinding
from dra_operator.controllers.scheduling.gangs import Gangs
from dra_operator.controllers.scheduling.mix import MixLearner, MixMemory
from dra_operator.controllers.scheduling.planning import (
    AllocateImmediate,
    Bind,
    BindStep,
    PlanInProgress,
    RemoveGate,
    SchedulingContext,
)
from dra_operator.controllers.scheduling.preemption import Preemption
from dra_operator.controllers.scheduling.report import (
    AGAIN,
    SCHEDULER_ERROR,
    DevicePatience,
    WaitingReport,
    awaited_claim,
    generation_waits,
    template_fault,
)
from dra_operator.controllers.scheduling.unreserve import Unreserve
from dra_operator.controllers.settings import ROUNDING_SECONDS
from dra_operator.controllers.workers import (
    AttemptResult,
    Decided,
    FollowUp,
    Postponed,
    is_held_back,
    pause_asked_for,
    rest_after,
    tell,
)
from dra_operator.kube import EventReason
from dra_operator.scheduling import (
    CycleState,
    Deferring,
    GettingReady,
    NodeStatus,
    NoPlace,
    NotTried,
    Placement,
    Plan,
    Planning,
    Snapshot,
    Stolen,
    Unsettled,
    VolumesFailed,
    VolumesPending,
    WriteUnderWay,
    counted,
    plan,
    pre_filter,
)
from dra_operator.scheduling.claims import CLAIM_PARKED, CLAIM_UNMADE, SET_ASIDE
from dra_operator.scheduling.rules import ANY_CHANGE, GROUP_GATED, GROUP_MISSING, GROUP_UNSUPPORTED, NO_VOLUMES
from dra_operator.scheduling.state import (
    GANG_CROWDED,
    GANG_INCOMPLETE,
    GANG_MALFORMED,
    GATE,
    Gang,
    Obstacle,
    has_gate,
    is_at_gate,
    is_placeholder,
    title,
)

logger = logging.getLogger(__name__)

UNKNOWN_GANG = (GROUP_MISSING, GROUP_GATED, GROUP_UNSUPPORTED, GANG_MALFORMED, GANG_CROWDED)


TELL_AGAIN_SECONDS = (0.5, 1.1, 0.0)
"""Seconds after each attempt to write what fails into the condition of the pod."""
CLAIMS_COME_SECONDS = 5.0
"""Seconds after a claim of any pod in which whoever makes claims counts as busy with others."""
CLAIMS_WARN_SECONDS = 60.0
"""Seconds between two warnings that pods wait for that."""


class SchedulingCycle:
    """Decides on ``placement:`` keys."""

    deciding = ""
    """The pod that is being placed, in words."""

    def __init__(
        self,
        context: SchedulingContext,
        allocator: Allocator,
        preemption: Preemption | None,
        placement: Placement | None,
        mix: MixMemory | None,
    ) -> None:
        self._context, self._allocator, self._preemption = context, allocator, preemption
        self._cluster, self._times, self._clock = context.cluster, context.times, context.clock
        is_limited = self._cluster.features.filter_timeout and self._times.filter_timeout
        self._filter_timeout = self._times.filter_timeout if is_limited else math.inf
        self._bind = Bind(self._cluster, context.pods)
        self._remove_gate = RemoveGate(self._cluster, context.pods)
        self._allocate_immediate = AllocateImmediate(self._cluster)
        self.report = report = WaitingReport(context)
        """What pods are told while they wait."""
        self._permit, self._unreserve = Permit(context, report), Unreserve(context, report)
        self._placement = placement or Placement()
        self._patience = DevicePatience(context.delayed_deletion, self._clock)
        self._mix = MixLearner(self._cluster, allocator, mix)
        binding = GangBinding(context, self._permit, report, self._bind)
        self._gangs = Gangs(context, binding, self._unreserve, report, self._snapshot, preemption, self._filter_timeout)
        self._claim_came_at, self._late_claims = -math.inf, Recently(self._clock)
        self._put_aside: dict[str, PlanInProgress] = {}

    async def tell_late(self, pod: Pod, text: str) -> None:
        """Have the condition of a pod that is late say why. A write that fails is left to the pod's next decision."""
        try:
            await self.report.waits_after(pod, SCHEDULER_ERROR, text)
        except Exception as error:  # the decision about the pod, which comes, tells more
            is_expected = isinstance(error, KubeError | ControllerError)
            level = logging.DEBUG if is_expected else logging.ERROR
            tell(logger, level, "cannot record why the pod is late", error=error, pod=pod.key)

    def written_with(self, key: str) -> Sequence[str]:
        """Return the keys of the pods of a gang for which something is written together with the pod of this key."""
        progress = self._gangs.in_hand.get(key)
        return progress.pods if progress is not None else ()

    def claim_came(self) -> None:
        """Note that a claim was recorded in a pod: claims are being made."""
        self._claim_came_at = self._clock()

    async def decide(self, key: str) -> Decided | Postponed:
        """One attempt, or another piece of one. Its end is a plan taken, a reason to wait, or nothing to do."""
        pod = self._cluster.applicant(key)
        if pod is not None:
            # Counted from the first attempt on: however often the pod is put off, it says why once that has lasted.
            self.report.begin(pod)
        decided: Decided | Postponed
        # Should the decision hang, the probe can say at which pod.
        self.deciding = f"pod {key}"
        try:
            attempt = self._taken_up(key)
            if isinstance(attempt, PlanInProgress):
                decided = await self._go_on(attempt)
            elif isinstance(attempt, GangAttempt):
                decided = await self._gangs.go_on(attempt)
            else:
                decided = attempt
        except Exception as error:
            if self._is_to_be_told(key, error):
                return Decided(partial(self._fail, key, error))
            raise
        finally:
            self.deciding = ""
        if isinstance(decided, Postponed):
            return decided
        if pod is not None and decided.spent > self._times.time_slices.turn:
            self.report.rests(pod, rest_after(self._times.time_slices, decided.spent))
        # The writes run after this turn, beside other decisions; the pod is told of their failures as of those above.
        if decided.follow_up is not None:
            return decided._replace(follow_up=partial(self._carry_out, key, decided.follow_up))
        # Nothing to do, or nothing to wait for: silence is right.
        if pod is None or not decided.waits_for:
            if pod is not None:
                self.report.is_over(pod)
            return decided
        if (left := self.report.silence_left(pod) or 0.0) > 0:
            self._context.look_again(key, left + ROUNDING_SECONDS)
            return decided
        waits = partial(self.report.goes_on_waiting, pod, SCHEDULER_ERROR, decided.waits_for)
        return decided._replace(follow_up=waits)

    async def _carry_out(self, key: str, follow_up: FollowUp) -> AttemptResult | None:
        try:
            return await follow_up()
        except Exception as error:
            if self._is_to_be_told(key, error):
                await self._fail(key, error)
            raise

    def _is_to_be_told(self, key: str, error: Exception) -> bool:
        """Return whether the pod is to say that attempts fail: the next one may come after its silence is over."""
        pod = self._cluster.applicant(key)
        if pod is None or self._cluster.is_bound(pod) or isinstance(error, PodVanished | BoundElsewhere):
            return False
        if (left := self.report.silence_left(pod)) is None:
            return False  # this attempt told more
        # Failures have a back-off that doubles: the next one may come after the silence is over.
        spent = self._times.silence - left
        return 2 * spent + pause_asked_for(error) >= self._times.silence and not is_held_back(error)

    async def _fail(self, key: str, error: Exception) -> AttemptResult | None:
        """Have the pod say what fails. Raises the error."""
        pod = self._cluster.applicant(key)
        is_expected = isinstance(error, KubeError | ControllerError)
        # A person who reads the pod cannot do anything about a bug, but has to know that it is one.
        text = str(error) if is_expected else f"the operator failed unexpectedly, its log says where: {error!r}"
        for pause in TELL_AGAIN_SECONDS:
            if pod is None:
                break
            try:
                await self.report.waits_after(pod, SCHEDULER_ERROR, f"{text}; {AGAIN}")
                break
            except (KubeError, ControllerError):  # what failed may fail here as well; the next attempt is seconds away
                await asyncio.sleep(pause)
        raise error

    def _taken_up(self, key: str) -> PlanInProgress | GangAttempt | Decided:
        """Return the attempt that was put aside, or a new one; a decision if there is nothing to plan."""
        attempt = self._put_aside.pop(key, None)
        # Something is being written for the pod with its gang: the last word on its status is that one.
        of_gang = self._gangs.in_hand.get(key)
        if of_gang is not None and self._gangs.puts_off(key, of_gang):
            return Decided()
        # A write of an earlier attempt was not answered: nothing is decided before its fate is certain, since the
        # devices that it names may be the pod's already.
        if self._cluster.allocated_devices.assumed_for(key):
            return Decided(partial(self._unreserve.confirm, key), clears_up=True)
        pod = self._cluster.applicant(key)
        if pod is None or not self._is_ours(pod) or self._cluster.is_bound(pod):
            self._gangs.leave(key)
            return Decided()
        # The names of its claims may be on their way into the pod's status: it is planned meanwhile.
        pod = self._context.names_being_written.foreseen(pod)
        # The binding may have happened: the pod keeps its devices until the server says.
        if self._context.pods.unanswered(pod) is not None:
            return Decided(partial(self._unreserve.confirm_bind_step, pod, self._bind_step(pod)), clears_up=True)
        if of_gang is not None and (planned := self._gangs.taken_up(key, of_gang)) is not None:
            return planned
        # A plan that was put aside continues, unless the pod or a claim of it is another one by now.
        if attempt is not None and attempt.is_of(self._cluster):
            return attempt
        began = time.thread_time()
        begun = self._begin(pod)
        spent = time.thread_time() - began
        if isinstance(begun, Decided):
            return begun._replace(spent=spent)  # a look at all pods of a large gang is not cheap
        begun.spent = spent
        return begun

    def is_vain(self, key: str) -> bool:
        """Return whether the pod that devices or room were to help would find no more of them than at its last attempt.

        Its answer would be the same: all that was in use at that attempt is in use again. Where pods end for others it
        may find one by now, so it is tried if there are pods of lower priority.
        """
        if (self._preemption is not None and self._cluster.may_preempt(key)) or self._cluster.may_find_more(key):
            return False
        if self._cluster.waiting[key].freed:
            self._context.delayed_deletion.scarce()
        return True

    def _is_ours(self, pod: Pod) -> bool:
        # Neither gets a node from us, so who places pods has no say in it.
        is_ahead = is_at_gate(pod) or is_placeholder(pod)
        controller = self._context.ours.allocation if is_ahead else self._context.ours.placement
        return controller and self._cluster.waits_for_us(pod)

    def _bind_step(self, pod: Pod) -> BindStep:
        if is_placeholder(pod):
            return self._allocate_immediate
        return self._remove_gate if is_at_gate(pod) else self._bind

    def _begin(self, pod: Pod) -> PlanInProgress | GangAttempt | Decided:
        """Look at the pod and its claims; a plan to be made, if they are in order and nothing has to come first."""
        # Any change wakes the pod while it is looked at. The answer narrows the changes down.
        self._cluster.set_wake_conditions(pod.key, EVERYTHING)
        match found := pre_filter(pod, self._snapshot(self._context.deference.wait)):
            case CycleState():
                # The gate was put on for all pods of a workload, of which some use no claims.
                if is_at_gate(pod) and not found.claims:
                    return Decided(partial(self._let_pass, pod))
                # Only pods that are tried: what cannot be tried is not what devices will be asked for. Most strategies
                # do not use the mix.
                if self._allocator.looks_at_mix:
                    self._mix.see(pod, found.resource_claims)
                # A pod at the gate is placed by another scheduler, which has gangs of its own.
                gang = None if has_gate(pod) or is_placeholder(pod) else self._cluster.gang_of(pod)
                if isinstance(gang, Gang) and (of_gang := self._gangs.begin(found, gang)) is not None:
                    return of_gang
                return PlanInProgress(found, self._planning(found), self._cluster.times_freed())
            case Unsettled(claims):
                return Decided(partial(self._unreserve.let_go, pod, claims), clears_up=True)
            case Deferring(_, drivers, seconds):
                self._context.look_again(pod.key, seconds)
                longest = self._context.deference.longest(drivers)
                more = f", for up to {longest:.0f} s, because both gave the same device away lately" if longest else ""
                return Decided(waits_for=f"{found.text}{more}")
            case NotTried():
                return self._not_tried(pod, found)
            case Stolen(claim, devices):
                return Decided(partial(self._unreserve.give_way, pod, claim, devices))
            case GettingReady(_, seconds) | VolumesPending(_, _, seconds):
                wake_on = GETTING_READY if isinstance(found, GettingReady) else VOLUMES_PENDING
                self._cluster.set_wake_conditions(pod.key, wake_on)
                self._context.look_again(pod.key, seconds + 1)  # a change of the claims comes earlier
                return Decided(waits_for=found.lasting)
            case VolumesFailed(failure, held):
                return Decided(partial(self._unreserve.after_volumes, pod, held, failure))
            case WriteUnderWay():
                self._cluster.set_wake_conditions(pod.key, ANOTHER_WRITE)
                return Decided(waits_for=found.text)  # the end of the other pod's write brings this one here again

    def _not_tried(self, pod: Pod, found: NotTried) -> Decided:
        obstacle, stale = found.obstacle, found.stale
        reason, volumes = obstacle.reason.name, obstacle.reason.is_about_volumes
        # No change of nodes or devices helps a pod that is not tried; its claims and its own changes wake it always.
        wake_on = (LEFTOVERS if stale else NONE)._replace(reason=reason, volumes=volumes)
        self._cluster.set_wake_conditions(pod.key, wake_on)
        self._gangs.not_tried(pod, obstacle)
        if obstacle.reason is CLAIM_UNMADE:
            return self._await_claims(pod, obstacle)
        if obstacle.reason is SET_ASIDE:
            return Decided(partial(self._read_whole, pod, obstacle))
        if obstacle.reason is CLAIM_PARKED:
            return Decided(partial(self._unreserve.without_parked, pod, NoPlace(obstacle.text, reason)))
        if self._preemption is not None:
            self._preemption.forget(pod)
        if obstacle.reason is GANG_INCOMPLETE:
            return self._gangs.lacks_pods(pod, obstacle.text)
        # Nobody can plan for its gang, so nobody would ever use the devices.
        if obstacle.reason in UNKNOWN_GANG and self._cluster.holds_devices(pod):
            return Decided(partial(self._gangs.give_up_alone, pod, obstacle.text))
        return self._refuse(pod, NoPlace(obstacle.text, reason, leftovers=stale))

    def _await_claims(self, pod: Pod, obstacle: Obstacle) -> Decided:
        fault = template_fault(self._cluster, pod, obstacle) or self._context.claim_failure(pod)
        if not fault and (waits := generation_waits(self._context.queues.of("templates"), pod)):
            # Nothing wakes the pod when its claims get their turn, or when the requests for them are answered.
            self._context.look_again(pod.key, self._times.faulty_templates + ROUNDING_SECONDS)
            fault = f"{obstacle.text}: it {waits}"
        are_made = self._clock() - self._claim_came_at < CLAIMS_COME_SECONDS
        # Whoever makes claims is busy with others: the pod's turn comes, and a condition would be wrong a moment later.
        silent = self._times.unmade_claims if are_made and not fault else self._times.faulty_templates
        left = silent - self.report.age(pod)
        if left > 0:
            self._context.look_again(pod.key, min(left, self._times.faulty_templates) + ROUNDING_SECONDS)
            # Many pods wait for the same: the log says it for all.
            if silent - left >= self._times.faulty_templates and not self._late_claims.within("", CLAIMS_WARN_SECONDS):
                self._late_claims.add("")
                tell(logger, logging.WARNING, "pods wait for claims, others get theirs meanwhile", pod=pod.key)
            return Decided()
        text = fault or awaited_claim(obstacle, self._context.ours, are_made=self._claim_came_at > -math.inf)
        return self._refuse(pod, NoPlace(text, obstacle.reason.name))

    def _snapshot(self, defers: Callable[[Pod, frozenset[str]], float] = lambda _pod, _drivers: 0.0) -> Snapshot:
        """In which no pod defers to other schedulers: the pod that is decided on has, for its gang as well."""
        return self._cluster.snapshot(
            self._allocator,
            self._context.now(),
            self._times.binding_timeout,
            is_unsettled=self._context.claims.is_unsettled,
            defers=defers,
        )

    def _planning(self, cycle_state: CycleState) -> Planning:
        """Counts first what the pod's rules ask about; the pod waits for any change of it until they are made."""
        pod, nodes = cycle_state.pod, cycle_state.nodes
        post_filter = self._preemption.post_filter if self._preemption is not None else None

        def answered(node: str, answer: NodeStatus) -> None:
            tell(logger, logging.DEBUG, "node asked", pod=pod.key, node=node, answer=answer.text)

        # For nearly every pod it stays with what ``_begin`` has set: no rule is about other pods.
        if nodes.minds_pods(pod):
            for pause in counted(pod, nodes):
                self._cluster.set_wake_conditions(pod.key, EVERYTHING._replace(hints=ANY_CHANGE))
                yield pause
            self._cluster.set_wake_conditions(pod.key, EVERYTHING._replace(hints=nodes.rules_between(pod).hints()))
        # Every node's answer is put into words, which costs more than the search: only where that is logged.
        noted = answered if logger.isEnabledFor(logging.DEBUG) else None
        decision = yield from plan(cycle_state, self._filter_timeout, noted, post_filter, self._placement)
        if isinstance(decision, Plan):
            yield from counted(pod, nodes)  # for the last look at the rules, if others needed the room meanwhile
        return decision

    async def _go_on(self, attempt: PlanInProgress) -> Decided | Postponed:
        pod, cluster = attempt.pod, self._cluster
        # Room that the pod holds on a node from an earlier attempt must not keep it from that node.
        with cluster.without_load_of(pod):
            cluster.loaded_nodes()  # brings the plan's nodes up to date
            with span("plan", pod=pod.key, claims=lambda: [claim.key for claim in attempt.cycle_state.resource_claims]):
                decision = await attempt.advance(self._times.time_slices.turn)
            if decision is None:
                # By key, and taken out at the pod's next turn: a plan for an older version of the pod is found out
                # then.
                self._put_aside[pod.key] = attempt
                return Postponed(attempt.spent, self._unreserve.note(attempt, pod))
            if isinstance(decision, Plan):
                return Decided(self._take(attempt, decision), attempt.spent)
        if not decision.is_error:
            self._wait_for_changes(attempt, decision)
            # Devices of deleted pods come free in a moment: the pod would be told that there are none, and be wrong.
            seconds = self._silent_seconds(attempt, decision)
            # A pod that rests for longer could not say it in time.
            if seconds > 0 and rest_after(self._times.time_slices, attempt.spent) <= seconds:
                self._context.queues.add(cluster.forget_placed(pod))
                self._context.look_again(pod.key, seconds)
                return Decided(None, attempt.spent)
        return self._refuse(pod, decision, attempt.spent)

    def _silent_seconds(self, attempt: PlanInProgress, decision: NoPlace) -> float:
        """Return how long the pod may wait for devices before it is told; 0 also if the answer has more to do than to
        tell."""
        does_more = decision.nominated is not None or decision.stuck or decision.leftovers
        return 0.0 if does_more or not attempt.cycle_state.wanted_classes else self._patience.seconds_left(attempt.pod)

    def _take(self, attempt: PlanInProgress, decision: Plan) -> FollowUp:
        """Take the devices and the room of a plan. Raises PlacementFailed when they are no more what they were."""
        pod = attempt.pod
        self._cluster.set_wake_conditions(pod.key, BEING_BOUND)  # a failure has its back-off, and nothing else helps
        # Others took devices and room while the plan was made in pieces.
        if not attempt.is_current(decision, self._cluster):
            raise PlacementFailed(f"the cluster changed while {title(pod)} was being planned")
        claims = attempt.cycle_state.claims
        binding_cycle = BindingCycle(self._context, self._bind_step(pod), pod, claims, decision)
        try:
            binding_cycle.reserve()
        except DeviceTaken as error:  # by another writer's allocation that came in while the plan was made
            raise PlacementFailed(str(error)) from error
        if claims:
            self._context.delayed_deletion.abundance.placed()
        return partial(self._permit.write, binding_cycle)

    def _wait_for_changes(self, attempt: PlanInProgress, decision: NoPlace) -> None:
        """Have the pod woken by what it lacked, and by nothing else."""
        classes = attempt.cycle_state.wanted_classes
        # All drivers of the classes may help if the index does not know which.
        freed = self._cluster.drivers_of(classes) if decision.drivers is None else decision.drivers
        if classes and freed:  # nothing that ends would help who asks for what no device is
            self._context.delayed_deletion.scarce()
        wake_on = WakeConditions(
            nodes=True,
            room=decision.short_of_room or self._cluster.nominated_pods.get(attempt.pod.metadata.uid) is not None,
            devices=bool(classes),
            freed=freed,
            leftovers=attempt.cycle_state.extended.made is not None,
            tried_at=attempt.tried_at,
            hints=decision.hints,
            reason=decision.reason,
            volumes=attempt.cycle_state.volumes != NO_VOLUMES,
        )
        self._cluster.set_wake_conditions(attempt.pod.key, wake_on)

    def _refuse(self, pod: Pod, decision: NoPlace, spent: float = 0.0) -> Decided:
        if decision.is_error:
            self._cluster.set_wake_conditions(pod.key, FAILED)
        self._context.queues.add(self._cluster.forget_placed(pod))
        return Decided(partial(self._tell, pod, decision), spent)

    async def _tell(self, pod: Pod, decision: NoPlace) -> AttemptResult:
        """Why the pod waits; then room is made for it, if a post filter found out how."""
        if self._preemption is None:
            return await self._unreserve.refuse(pod, decision)
        prospect = self._preemption.prospect(pod)
        message = f"{decision.message}; {prospect}" if prospect else decision.message
        # The pod releases its own claims before others are preempted for it: their room may be enough.
        result = await self._unreserve.refuse(pod, replace(decision, message=message))
        await self._preemption.prepare_candidate(pod, decision.nominated)
        return result

    async def _read_whole(self, pod: Pod, obstacle: Obstacle) -> None:
        """Read what is set aside of the pod and its claims, and have the pod looked at again."""
        aside = self._cluster.set_aside(pod)
        if aside and isinstance(aside[0], Pod):
            await self._context.pods.read_whole(aside[0], self._cluster.lend)
            # It may use claims that are not known before it is whole.
            aside = self._cluster.set_aside(pod)
        for obj in aside:
            # The next decision comes soon, so that these are still there then.
            if isinstance(obj, Pod):
                break  # its room was taken meanwhile
            await self._context.claims.read_whole(obj, self._cluster.lend)
        if self._cluster.set_aside(pod):
            # Others were read meanwhile, or the claims of the pod are more than fit: without a pause they would be
            # read again and again.
            raise PlacementFailed(obstacle.text)
        if (left := self.report.silence_left(pod)) is not None and left <= 0:
            await self.report.waits_after(pod, SCHEDULER_ERROR, obstacle.text)
        self._context.look_again(pod.key)

    async def _let_pass(self, pod: Pod) -> None:
        """Open the gate of a pod that uses no claims: it needs nothing from us, wherever it runs."""
        await self._remove_gate.write(pod, "", ())
        done = f"Scheduling gate {GATE} removed: the pod uses no claims"
        self._context.events.post(pod, EventReason.GATE_REMOVED, done)
