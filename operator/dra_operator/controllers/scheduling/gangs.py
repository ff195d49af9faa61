"""Gangs: one pod of a gang leads, and its decision is that of all.

The pod that is decided on first leads. While its plan is made and written, the decisions of the others do nothing.
When the gang has no place the leader waits for what may help, the others wait for nothing, and none keeps devices.
A pod whose gang has its size among the pods that run joins late, as a pod without a gang would. ``gang`` has the states
of a gang; here each decision and each write is one of its events.

A pod is *in hand* of one gang at most: it leads it, or something is being written for it with that gang. Until that is
over no other decision about the pod writes, so that the last word on its status stays.

Nothing but the API server has to survive a restart: pods that have devices and no node are planned with these devices,
together with the rest of their gang, or give them back if there is no such plan.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import islice

from dra_api.core import Pod

from dra_operator.cache import EVERYTHING, FAILED, WITH_GANG, Key, WakeConditions
from dra_operator.controllers.errors import PlacementFailed, PodVanished
from dra_operator.controllers.scheduling.binding import BindingCycle
from dra_operator.controllers.scheduling.gang import (
    AwaitedClaims,
    GangAttempt,
    GangBinding,
    GangProgress,
    GangRefusal,
    GangState,
    GangTask,
    Unready,
    fingerprint,
)
from dra_operator.controllers.scheduling.planning import SchedulingContext
from dra_operator.controllers.scheduling.preemption import Preemption
from dra_operator.controllers.scheduling.report import NOT_ANSWERED, SCHEDULER_ERROR, UNSCHEDULABLE, WaitingReport
from dra_operator.controllers.scheduling.unreserve import Unreserve
from dra_operator.controllers.workers import AttemptResult, Decided, Postponed
from dra_operator.scheduling import CycleState, NoPlace, NotTried, Snapshot, pre_filter
from dra_operator.scheduling.claims import CLAIM_UNMADE
from dra_operator.scheduling.state import GANG_INCOMPLETE, Gang, Obstacle

JOIN_LOOK_SECONDS = 60.0
"""Between two looks of a pod that joins, in case that those before it are bound without another decision."""
MATE_LOOK_SECONDS = 2.0
"""Between two looks of a gang at what is being written for one of its pods."""
REMEMBERED_GANGS = 100  # known gangs before deleted ones are looked for; later twice the number found


class Gangs:
    """Decides on pods of gangs."""

    def __init__(
        self,
        context: SchedulingContext,
        binding: GangBinding,
        unreserve: Unreserve,
        report: WaitingReport,
        snapshot: Callable[[], Snapshot],
        preemption: Preemption | None,
        filter_timeout: float,
    ) -> None:
        self._context, self._binding, self._unreserve, self._report = context, binding, unreserve, report
        self._cluster, self._snapshot, self._preemption = context.cluster, snapshot, preemption
        self._filter_timeout = filter_timeout
        self._gangs: dict[str, GangProgress] = {}
        """Gangs that are led, or that wait, by key. A gang without a state has no entry."""
        self.in_hand: dict[str, GangProgress] = {}
        """By the key of a pod: the gang that it leads, or with which something is being written for it."""
        self._most_remembered = REMEMBERED_GANGS

    # --- whose turn it is ---

    def leave(self, key: str) -> None:
        """Note that the pod of this key waits no more. If its gang was being planned, another pod leads."""
        progress = self.in_hand.get(key)
        # Only while the plan is put aside: writes under way go on without the leader.
        if progress is not None and progress.leader == key and progress.attempt is not None:
            self._over(progress)

    def not_tried(self, pod: Pod, obstacle: Obstacle) -> None:
        """Note that the pod cannot be tried: if the others of its gang wait with it, another one leads.

        All pods of a gang say whether it lacks pods, or none. A leader that says why this one cannot be tried says so
        anew if that is another reason now.
        """
        gang = self._cluster.gang_of(pod)
        if not isinstance(gang, Gang):
            return
        # The pod that the others wait with may be the one that is gone. This one counts as one of the gang's: if it is
        # kept by something else, the others lack no pods any more.
        lacks_pods = obstacle.reason is GANG_INCOMPLETE
        if obstacle.reason is not CLAIM_UNMADE:
            self._look_at(gang, WITH_GANG.reason if lacks_pods else GANG_INCOMPLETE.name)
        progress = self._gangs.get(gang.key)
        if progress is None:
            return
        if progress.former is not None and progress.former.teller.key == pod.key:
            progress.former = None
        if progress.awaited_pod == pod.key:
            self._replace(progress, pod)
        if (refusal := progress.refusal) is None:
            return
        # The leader's message names this pod's former obstacle, or says why a gang with all its pods has no place.
        if refusal.untried.get(pod.key, obstacle) != obstacle or (lacks_pods and refusal.teller.key != pod.key):
            self._context.look_again(refusal.teller.key)
        if refusal.teller.key == pod.key and not progress.is_led:
            progress.forget()
            for key in refusal.members:
                if key != pod.key:
                    self._context.look_again(key)

    def _look_at(self, gang: Gang, reason: str) -> None:
        """Have the pods decided on that wait for this reason."""
        for key in self._cluster.pods_by_gang.keys(gang.key):
            waits = self._cluster.waiting.get(key)
            if waits is not None and waits.reason == reason:
                self._context.look_again(key)

    def _replace(self, progress: GangProgress, pod: Pod) -> None:
        """Have the others decided on: the gang waited until this pod gets ready, and another one may take its place."""
        progress.awaited_pod = ""
        for key in self._cluster.pods_by_gang.keys(progress.key):
            # Not at once: a plan has use for the devices that this pod is about to give up.
            if key != pod.key and key in self._cluster.waiting:
                self._context.look_again(key, MATE_LOOK_SECONDS)

    def puts_off(self, key: str, progress: GangProgress) -> bool:
        """Return whether something is being written for the pod with its gang, which has it in hand: no other decision
        may write meanwhile."""
        if progress.leader == key and progress.state is GangState.PLANNING:
            return False
        progress.asked.add(key)
        return True

    def taken_up(self, key: str, progress: GangProgress) -> GangAttempt | None:
        """Return the plan that was put aside for this leader, if it still counts."""
        if progress.leader != key or (attempt := progress.attempt) is None:
            return None
        progress.attempt = None
        # Size or topology may have been changed meanwhile: the plan is for another gang then.
        is_same = self._cluster.gang_of(attempt.leader) == attempt.gang
        if is_same and attempt.is_of(self._cluster):
            return attempt
        self._over(progress)
        return None

    def begin(self, state: CycleState, gang: Gang) -> GangAttempt | Decided | None:
        """Return the attempt that this pod of the gang leads; a decision if it leads none, and None if it is planned by
        itself."""
        pod = state.pod
        running, waiting = self._cluster.members_of(gang)
        wanted = max(gang.size - len(running), 1)
        # It joins running pods, without a common place.
        if len(running) >= gang.size and not gang.has_domain:
            return None
        progress = self._progress_of(gang)
        if progress.is_led:
            return self._ask_later(progress, pod, f"waits with gang {gang.title}, which is being planned")
        refusal = progress.refusal
        is_covered = refusal is not None and refusal.members.get(pod.key) == fingerprint(state)
        if refusal is not None and is_covered and self._is_told(refusal, gang, wanted, but=pod):
            self._cluster.set_wake_conditions(pod.key, WITH_GANG)
            return Decided(partial(self._tell_mate, progress, refusal, gang, pod))
        # A plan without them would be refused, with words that are wrong a moment later.
        if (lacking := self._lacks_claim(progress, waiting, wanted)) is not None:
            self._cluster.set_wake_conditions(pod.key, WITH_GANG)
            return self._await_claims(progress, gang, pod, lacking)  # the pod whose claim is made last leads
        if progress.awaited is not None:
            progress.forget()
        # Taking devices for all and giving them back again and again keeps other pods from them.
        if self._context.pauses.puts_off(gang.key, Key("placement", pod.key)):
            self._cluster.set_wake_conditions(pod.key, WITH_GANG)
            return Decided(waits_for=f"waits with gang {gang.title}, which gave devices back again and again")
        holding = {it.key for it in waiting if self._cluster.holds_devices(it)}
        if len(holding) >= wanted and pod.key not in holding:  # they are about to be bound, and this one joins them
            self._context.look_again(pod.key, JOIN_LOOK_SECONDS)
            text = f"waits until the pods of gang {gang.title} that have devices are bound"
            return self._ask_later(progress, pod, text)
        # Pods that have devices come first: a plan without them would leave them with devices and without a node.
        waiting.sort(key=lambda it: it.key not in holding)
        if wanted == 1:  # with those beside it that are on their way to a node
            running = [*running, *(it for it in waiting if it is not pod and self._cluster.node_of(it))]
        same, tried_at = self._cluster.same_values(gang, running), self._cluster.times_freed()
        # From here on decisions about the others do nothing until this one's is over.
        progress.lead(pod)
        self.in_hand[pod.key] = progress
        task = GangTask(gang, pod, waiting, wanted, same, tried_at, self._filter_timeout, self._has_place)
        return GangAttempt(task, self._snapshot, self._is_unsure, self._preemption)

    def _ask_later(self, progress: GangProgress, pod: Pod, waits_for: str) -> Decided:
        """Look at the pod again when the gang's attempt is over."""
        progress.asked.add(pod.key)
        self._cluster.set_wake_conditions(pod.key, WITH_GANG)
        return Decided(waits_for=waits_for)

    def _is_told(self, refusal: GangRefusal, gang: Gang, wanted: int, but: Pod) -> bool:
        """Return whether the gang was refused as it is now, and another pod than this one still says so, and waits for
        what may help."""
        # A leader that is gone is woken by nothing, and all would wait with it for ever.
        leader = self._cluster.pods.get(refusal.teller.key, refusal.teller.metadata.uid)
        if leader is None or leader.key == but.key or not self._cluster.is_waiting_member(leader):
            return False
        return self._cluster.gang_of(leader) == gang and refusal.is_of(gang, wanted)

    def _has_place(self, pod: Pod) -> bool:
        """Return whether the pod has devices or a node, or a write that gives it some is under way."""
        return self._cluster.holds_devices(pod) or bool(self._cluster.node_of(pod))

    def _is_unsure(self, pod: Pod) -> bool:
        """Return whether something is being written for the pod, or was and had no answer.

        It leads when that is over.
        """
        is_unsure = (
            pod.key in self.in_hand
            or self._context.is_working(pod.key)
            or bool(self._cluster.allocated_devices.assumed_for(pod.key))
            or self._context.pods.unanswered(pod) is not None
        )
        if is_unsure:
            self._context.look_again(pod.key)
        return is_unsure

    # --- claims that are not made ---

    def _lacks_claim(self, progress: GangProgress, waiting: Sequence[Pod], wanted: int) -> Pod | None:
        """Return a pod whose claims are not made, if too few are left without it.

        The one that is known is looked at first.
        """
        known = progress.awaited
        first = known.lacking.metadata.uid if known is not None else ""
        # So that it is one look while that pod still lacks its claims.
        ordered = sorted(waiting, key=lambda it: it.metadata.uid != first)
        lacking = (it for it in ordered if self._cluster.lacks_generated_claim(it))
        found = list(islice(lacking, len(waiting) - wanted + 1))
        return found[0] if len(waiting) - len(found) < wanted else None

    def _await_claims(self, progress: GangProgress, gang: Gang, pod: Pod, lacking: Pod) -> Decided:
        """Claims are made within a moment; where that takes longer, one pod says for which it waits, once for all."""
        now, known = asyncio.get_running_loop().time(), progress.awaited
        teller = self._cluster.pods.get(known.teller.key, known.teller.metadata.uid) if known is not None else None
        if known is None or teller is None or self._cluster.gang_of(teller) != gang:
            known = AwaitedClaims(pod, lacking, now)
            progress.await_claims(known)
        is_other, known.lacking = known.lacking.key != lacking.key, lacking
        # One pod says it for all: each of a thousand would be a write.
        if known.teller.key != pod.key:
            if known.is_told and is_other:
                self._context.look_again(known.teller.key)
            return self._is_recorded_in(pod)
        left = known.since + self._context.times.unmade_gang_claims - now
        if left > 0:
            self._context.look_again(pod.key, left)
            return self._is_recorded_in(pod)
        found = pre_filter(lacking, self._snapshot())
        if not isinstance(found, NotTried):
            return Decided()
        known.is_told = True
        text = f"waits for pod {lacking.metadata.name} of its gang, which {found.text}"
        others = [it for it in self._cluster.members_of(gang)[1] if not self._cluster.lacks_generated_claim(it)]
        return Decided(partial(self._tell_all, progress, known, gang, others, UNSCHEDULABLE, text))

    def _is_recorded_in(self, pod: Pod) -> Decided:
        """Nothing is to be said for the gang. A pod whose claims are made and being recorded in it says so itself if
        that lasts: the others are told for which pod they wait."""
        known = self._cluster.pods.get(pod.key)  # without the names that are foreseen
        if known is not None and self._cluster.lacks_generated_claim(known):
            return Decided(waits_for=f"waits until its claims are recorded: it {NOT_ANSWERED}")
        return Decided()

    # --- too few pods ---

    def lacks_pods(self, pod: Pod, text: str) -> Decided:
        """Decide for a gang that has fewer pods than it needs: no pod of it keeps devices."""
        gang = self._cluster.gang_of(pod)
        if not isinstance(gang, Gang) or not self._cluster.holds_devices(pod):
            return Decided(partial(self._tell_of_lack, pod, text))
        progress = self._progress_of(gang)
        if progress.is_led:
            progress.asked.add(pod.key)
            return Decided(waits_for=text)
        progress.dissolve(pod)
        self.in_hand[pod.key] = progress
        return Decided(partial(self._dissolve, progress, gang, pod, text))

    async def give_up_alone(self, pod: Pod, text: str) -> AttemptResult:
        """Refuse the pod, of which the gang cannot be said: it gets no place, and keeps no devices."""
        await self._unreserve.give_up_held((pod,), text)
        return await self._tell_of_lack(pod, text)

    async def _dissolve(self, progress: GangProgress, gang: Gang, pod: Pod, text: str) -> AttemptResult:
        try:
            await self._unreserve.give_up_held(self._cluster.members_of(gang)[1], text)
        finally:
            self._over(progress)
        return await self._tell_of_lack(pod, text)

    async def _tell_of_lack(self, pod: Pod, text: str) -> AttemptResult:
        await self._report.waits(pod, UNSCHEDULABLE, text, alone=True)
        if self._preemption is not None:
            await self._preemption.prepare_candidate(pod, None)
        return AttemptResult.UNSCHEDULABLE

    # --- the plan ---

    async def go_on(self, attempt: GangAttempt) -> Decided | Postponed:
        """Plan a piece; with the last one the plan's devices are taken."""
        progress = self._gangs[attempt.gang.key]
        try:
            return await self._go_on(progress, attempt)
        except Exception:
            if progress.is_led:
                self._over(progress)  # so that the gang is tried again
            raise

    async def _go_on(self, progress: GangProgress, attempt: GangAttempt) -> Decided | Postponed:
        with ExitStack() as without:
            for pod in attempt.without_load:
                # Room that they hold from an earlier attempt must not keep them from their nodes.
                without.enter_context(self._cluster.without_load_of(pod))
            self._cluster.loaded_nodes()
            answer = await attempt.advance(self._context.times.time_slices.turn)
            if answer is None:
                progress.attempt = attempt
                return Postponed(attempt.spent, self._unreserve.note(attempt, attempt.leader))
            if isinstance(answer, tuple) and not isinstance(answer, Unready):
                # Asked again: the plan was made in pieces, and a member may have been decided on in between.
                if any(self._is_unsure(pod) for pod in attempt.members if pod is not attempt.leader):
                    return self._wait_for_mate(progress, attempt)
                cycles = self._binding.reserve(attempt, answer)
                progress.take(attempt.members)
                for pod in attempt.members:
                    self._cluster.set_wake_conditions(pod.key, WITH_GANG)
                    self.in_hand[pod.key] = progress
                return Decided(partial(self._write, progress, attempt, cycles), attempt.spent)
        if isinstance(answer, Unready):
            return self._wait(progress, attempt, answer)
        return self._refuse(progress, attempt, answer)

    async def _write(
        self, progress: GangProgress, attempt: GangAttempt, cycles: Sequence[BindingCycle]
    ) -> AttemptResult | None:
        try:
            return await self._binding.write(attempt, cycles)
        finally:
            self._over(progress)

    def _wait(self, progress: GangProgress, attempt: GangAttempt, unready: Unready) -> Decided:
        """Have the gang wait for a pod that is not ready; when it is, it leads."""
        if isinstance(unready.found, CycleState):
            return self._wait_for_mate(progress, attempt)
        self._cluster.set_wake_conditions(attempt.leader.key, WITH_GANG)
        text = f"waits for pod {unready.pod.metadata.name} of its gang, which {unready.found.text}"
        if not isinstance(unready.found, NotTried):
            progress.awaited_pod = unready.pod.key
            self._context.look_again(unready.pod.key)  # its own decision knows when to look next
            self._over(progress)
            return Decided(None, attempt.spent, waits_for=text)
        refusal = GangRefusal(attempt, {unready.pod.key: unready.found.obstacle})
        progress.refuse(refusal)
        if self._preemption is not None:
            self._preemption.forget_gang(attempt.gang)
        return Decided(partial(self._tell, progress, refusal, attempt, NoPlace(text, "with-gang")), attempt.spent)

    def _wait_for_mate(self, progress: GangProgress, attempt: GangAttempt) -> Decided:
        """Something is being written for another pod of the gang, which leads when that is over, unless it is bound.

        In case that it is, one pod of the gang looks again, however many have met that one.
        """
        self._cluster.set_wake_conditions(attempt.leader.key, WITH_GANG)
        now = asyncio.get_running_loop().time()
        # Each member meets the same write: one look for all is enough.
        if progress.mate_looks_at <= now:
            progress.mate_looks_at = now + MATE_LOOK_SECONDS
            self._context.look_again(attempt.leader.key, MATE_LOOK_SECONDS)
        self._over(progress)
        text = f"waits with gang {attempt.gang.title} for a write to another pod of it"
        return Decided(None, attempt.spent, waits_for=text)

    # --- no plan ---

    def _refuse(self, progress: GangProgress, attempt: GangAttempt, decision: NoPlace) -> Decided:
        refusal = self._former(progress, attempt, decision) or GangRefusal(attempt)
        teller = refusal.teller
        progress.refuse(refusal)
        self.in_hand[teller.key] = progress
        for pod in attempt.members:
            if pod.key != teller.key:
                self._cluster.set_wake_conditions(pod.key, WITH_GANG)
        wake_on = FAILED if decision.is_error else self._helps(attempt, decision)
        self._cluster.set_wake_conditions(attempt.leader.key, wake_on)
        for pod in attempt.members:
            self._context.queues.add(self._cluster.forget_placed(pod))
        prospect = self._preemption.prospect(attempt.leader, attempt.gang) if self._preemption is not None else ""
        told = f"gang {attempt.gang.title}: {decision.message}{f'; {prospect}' if prospect else ''}"
        return Decided(partial(self._tell, progress, refusal, attempt, decision, told), attempt.spent)

    def _former(self, progress: GangProgress, attempt: GangAttempt, decision: NoPlace) -> GangRefusal | None:
        """Return the refusal before this one, if its leader goes on saying why all wait.

        The words of each leader name other pods of the gang. Without this every pod would be told other words after
        each attempt, and come back to be told them after a pause: an attempt of another leader.
        """
        former = progress.former
        # An error, a nomination and a pod that can be tried by now are news.
        if former is None or former.untried or decision.is_error or attempt.nominated is not None:
            return None
        is_free = former.teller.key not in self.in_hand
        return former if is_free and self._is_told(former, attempt.gang, attempt.wanted, but=attempt.leader) else None

    def _helps(self, attempt: GangAttempt, decision: NoPlace) -> WakeConditions:
        """A pod that fits nowhere by itself has all wait for what helps it: nothing else helps the gang.

        Room that comes free may help any of them, so the leader is tried then, whether it fits there or not.
        """
        classes = {name for state in attempt.states for name in state.wanted_classes}
        is_nominated = self._cluster.nominated_pods.get(attempt.leader.metadata.uid) is not None
        freed = self._cluster.drivers_of(classes) if decision.drivers is None else decision.drivers
        if classes and freed:
            self._context.delayed_deletion.scarce()
        nodes = attempt.states[0].nodes
        hints = frozenset(hint for state in attempt.states for hint in nodes.rules_between(state.pod).hints())
        # If the reason is not certain, it may be room.
        room = decision.short_of_room or decision.drivers is None or is_nominated
        return EVERYTHING._replace(
            room=room,
            devices=bool(classes),
            freed=freed,
            hints=decision.hints | hints,
            tried_at=None if room else attempt.tried_at,
            reason=decision.reason,
        )

    async def _tell(
        self, progress: GangProgress, refusal: GangRefusal, attempt: GangAttempt, decision: NoPlace, told: str = ""
    ) -> AttemptResult:
        """Why all wait; none keeps devices meanwhile, and the gang pauses the longer before the next plan the oftener
        it had some."""
        members = attempt.members
        try:
            if await self._unreserve.give_up_held(members, f"gang {attempt.gang.title} has no place"):
                self._context.pauses.did(attempt.gang.key)
        finally:  # until then no other plan may count on what they give up
            self._over(progress)
        reason = SCHEDULER_ERROR if decision.is_error else UNSCHEDULABLE
        text = (told or decision.message) if refusal.teller.key == attempt.leader.key else None
        result = await self._tell_all(progress, refusal, attempt.gang, members, reason, text)
        if decision.is_error:
            raise PlacementFailed(decision.message)
        if self._preemption is not None:
            await self._preemption.prepare_for_gang(attempt.gang, members, attempt.nominated)
        return result

    async def _tell_all(
        self,
        progress: GangProgress,
        why: GangRefusal | AwaitedClaims,
        gang: Gang,
        members: Iterable[Pod],
        reason: str,
        text: str | None,
    ) -> AttemptResult:
        """One pod says why all wait, and the others name it, as long as they wait for that reason.

        ``text`` is None if it has said so already.
        """
        teller = why.teller
        if text is not None:
            await self._report.waits(teller, reason, text)
        for pod in members:
            # The gang may be decided on anew while these are written: then the words are out of date.
            current = self._cluster.pods.get(teller.key, teller.metadata.uid)
            if current is None or not self._cluster.is_waiting_member(current):
                break
            if pod.key != teller.key:
                await self._tell_mate(progress, why, gang, pod)
        return AttemptResult.UNSCHEDULABLE

    async def _tell_mate(self, progress: GangProgress, why: GangRefusal | AwaitedClaims, gang: Gang, pod: Pod) -> None:
        """Say that the pod waits with its gang.

        A decision about the pod itself says more, and waits until this is written.
        """
        if progress.waits_because is not why:  # a pod leads, or did: its result says more
            if progress.is_led:
                progress.asked.add(pod.key)
            return
        with self._held(progress, pod.key) as is_free:
            if is_free:
                text = f"waits with gang {gang.title}: pod {why.teller.metadata.name} says why"
                with suppress(PodVanished):
                    await self._report.waits(pod, UNSCHEDULABLE, text, alone=True)

    # --- pods in hand, and gangs that are known ---

    @contextmanager
    def _held(self, progress: GangProgress, key: str) -> Iterator[bool]:
        """Have the pod in hand while something is written for it; False if a gang has it already."""
        if (other := self.in_hand.get(key)) is not None:
            self.puts_off(key, other)
            yield False
            return
        self.in_hand[key] = progress
        try:
            yield True
        finally:
            del self.in_hand[key]
            if not progress.is_led:
                self._look_at_asked(progress)

    def _over(self, progress: GangProgress) -> None:
        """Others may lead. Those that asked meanwhile are looked at now."""
        for key in progress.pods:
            self.in_hand.pop(key, None)
        progress.end()
        self._look_at_asked(progress)
        is_waited_for = progress.awaited_pod or progress.mate_looks_at > asyncio.get_running_loop().time()
        if progress.state is GangState.FREE and not is_waited_for:
            self._gangs.pop(progress.key, None)

    def _look_at_asked(self, progress: GangProgress) -> None:
        asked, progress.asked = progress.asked, set()
        # In an order of their own: that of a set differs from process to process.
        for key in sorted(asked):
            self._context.look_again(key)

    def _progress_of(self, gang: Gang) -> GangProgress:
        """Return the gang.

        Those without pods are forgotten now and then: a scan is paid for by as many that came since.
        """
        known = self._gangs.get(gang.key)
        if known is not None:
            return known
        if len(self._gangs) >= self._most_remembered:
            has_pods = self._cluster.pods_by_gang.has
            self._gangs = {key: it for key, it in self._gangs.items() if it.is_led or has_pods(key)}
            self._most_remembered = max(REMEMBERED_GANGS, 2 * len(self._gangs))
        made = self._gangs[gang.key] = GangProgress(gang.key)
        return made
