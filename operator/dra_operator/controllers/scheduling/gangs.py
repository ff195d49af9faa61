"""Gangs: one pod of a gang leads, and its decision is that of all.

The pod that is decided on first leads. While its plan is made and written, the decisions of the others do nothing.
When the gang has no place the leader waits for what may help, the others wait for nothing, and none keeps devices.
A pod whose gang has its size among the pods that run joins late, as a pod without a gang would.

Nothing but the API server has to survive a restart: pods that have devices and no node are planned with these devices,
together with the rest of their gang, or give them back if there is no such plan.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Final

from dra_api.core import Pod

from dra_operator.cache import EVERYTHING, FAILED, WITH_GANG, Key, WakeConditions
from dra_operator.controllers.errors import PlacementFailed, PodVanished
from dra_operator.controllers.scheduling.binding import SchedulingContext
from dra_operator.controllers.scheduling.gang_attempt import Fingerprint, GangAttempt, Unready, fingerprint
from dra_operator.controllers.scheduling.gang_binding import GangBinding, Part
from dra_operator.controllers.scheduling.planning import same_values
from dra_operator.controllers.scheduling.preemption import MakesRoom
from dra_operator.controllers.scheduling.report import SCHEDULER_ERROR, UNSCHEDULABLE, WaitingReport
from dra_operator.controllers.scheduling.unreserve import Unreserve
from dra_operator.controllers.workers import Decided, Postponed, Result
from dra_operator.scheduling import CycleState, NoPlace, NotTried, Snapshot, pre_filter
from dra_operator.scheduling.claims import CLAIM_UNMADE
from dra_operator.scheduling.state import GANG_INCOMPLETE, Gang, Obstacle, has_gate, is_placeholder

JOIN_LOOK_SECONDS = 60.0
"""Between two looks of a pod that joins, in case that those before it are bound without another decision."""
MATE_LOOK_SECONDS = 2.0
"""Between two looks of a gang at what is being written for one of its pods."""
NO_OBSTACLES: Final[Mapping[str, Obstacle]] = {}
REMEMBERED_GANGS = 100  # gangs without a place, before those that are gone are looked for; later twice those found


class Refusal:
    """A gang that cannot be bound: its leader, and what each member asked for.

    ``untried``: by key, what keeps a pod of the gang from being tried, if that is why.
    """

    def __init__(self, attempt: GangAttempt, untried: Mapping[str, Obstacle] = NO_OBSTACLES) -> None:
        self.gang, self.leader, self.members = attempt.gang, attempt.leader, dict(attempt.fingerprints())
        self.untried, self._wanted = untried, attempt.wanted

    def covers(self, gang: Gang, wanted: int, key: str, asked: Fingerprint) -> bool:
        """Whether the pod and its gang asked for the same then. ``wanted``: so many pods of it need a node."""
        return (self.gang, self._wanted) == (gang, wanted) and self.members.get(key) == asked


@dataclass(slots=True)
class AwaitedClaims:
    """A gang whose plan waits for claims of some of its pods to be made.

    ``teller``: the pod that says so. ``lacking``: the pod of which it does. ``since``: by the loop's clock.
    """

    teller: Pod
    lacking: Pod
    since: float
    is_told: bool = False


class Gangs:
    """Decides on pods of gangs."""

    def __init__(
        self,
        context: SchedulingContext,
        binding: GangBinding,
        unreserve: Unreserve,
        report: WaitingReport,
        snapshot: Callable[[], Snapshot],
        makes_room: MakesRoom | None,
    ) -> None:
        self._context, self._binding, self._unreserve, self._report = context, binding, unreserve, report
        self._cluster, self._snapshot, self._makes_room = context.cluster, snapshot, makes_room
        self._leaders: dict[str, str] = {}
        """By gang: the pod that is being decided on, or whose plan is being written."""
        self._asked: dict[str, set[str]] = {}
        """By gang: pods that were to be decided on meanwhile."""
        self._written: dict[str, Gang] = {}
        """By the key of a pod: its gang, while the plan is being written."""
        self._telling: dict[str, Gang] = {}
        """By the key of a pod: its gang, while it is being written that the pod waits with it."""
        self._put_aside: dict[str, GangAttempt] = {}
        self._refusals: dict[str, Refusal] = {}
        self._unmade: dict[str, AwaitedClaims] = {}
        self._mate_looks: dict[str, float] = {}
        """By gang: when one of its pods looks whether what was being written for another one is over."""
        self._most_remembered = REMEMBERED_GANGS

    def leave(self, key: str) -> None:
        """The pod of this key waits no more. If its gang was being planned, another pod leads."""
        attempt = self._put_aside.pop(key, None)
        if attempt is not None:
            self._over(attempt.gang)

    def not_tried(self, pod: Pod, obstacle: Obstacle) -> None:
        """The pod cannot be tried: if the others of its gang wait with it, another one leads.

        Those that say that pods are missing wait for this one, if the gang is complete. A leader that says why this one
        cannot be tried says so anew if that is another reason now.
        """
        gang = self._cluster.gang_of(pod)
        if isinstance(gang, Gang) and obstacle.reason not in (GANG_INCOMPLETE, CLAIM_UNMADE):
            for key in self._cluster.pods_by_gang.keys(gang.key):
                waits = self._cluster.waiting.get(key)
                if waits is not None and waits.reason == GANG_INCOMPLETE.name:
                    self._context.look_again(key)
        refusal = self._refusals.get(gang.key) if isinstance(gang, Gang) else None
        if refusal is None:
            return
        if refusal.untried.get(pod.key, obstacle) != obstacle:
            self._context.look_again(refusal.leader.key)
        if refusal.leader.key == pod.key:
            del self._refusals[refusal.gang.key]
            for key in refusal.members:
                if key != pod.key:
                    self._context.look_again(key)

    def puts_off(self, key: str) -> bool:
        """Whether something is being written for the pod with its gang: no other decision may write meanwhile."""
        gang = self._written.get(key) or self._telling.get(key)
        if gang is not None:
            self._asked.setdefault(gang.key, set()).add(key)
        return gang is not None

    def taken_up(self, key: str) -> GangAttempt | None:
        """The plan that was put aside for this leader, if it still counts."""
        attempt = self._put_aside.pop(key, None)
        is_same = attempt is not None and self._cluster.gang_of(attempt.leader) == attempt.gang
        if attempt is None or (
            is_same and attempt.is_of(self._cluster) and self._cluster.pods.get(key) is attempt.leader
        ):
            return attempt
        self._over(attempt.gang)
        return None

    def begin(self, state: CycleState) -> GangAttempt | Decided | None:
        """The attempt that this pod leads; a decision if it leads none, and None if it is planned by itself."""
        pod = state.pod
        gang = None if has_gate(pod) or is_placeholder(pod) else self._cluster.gang_of(pod)
        if not isinstance(gang, Gang):
            return None
        running, waiting = self._cluster.members_of(gang)
        wanted = max(gang.size - len(running), 1)
        if len(running) >= gang.size and not gang.has_domain:
            return None
        if gang.key in self._leaders:
            self._asked.setdefault(gang.key, set()).add(pod.key)
            self._cluster.set_wake_conditions(pod.key, WITH_GANG)
            return Decided(waits_for=f"waits with gang {gang.title}, which is being planned")
        refusal = self._refusals.get(gang.key)
        if refusal is not None and self._waits_with(refusal, gang, wanted, state):
            self._cluster.set_wake_conditions(pod.key, WITH_GANG)
            return Decided(partial(self._tell_mate, gang, pod, refusal.leader))
        if (lacking := self._lacks_claim(gang, waiting, wanted)) is not None:
            self._cluster.set_wake_conditions(pod.key, WITH_GANG)
            return self._await_claims(gang, pod, lacking)  # the pod whose claim is made last leads
        self._unmade.pop(gang.key, None)
        if self._context.pauses.puts_off(gang.key, Key("placement", pod.key)):
            self._cluster.set_wake_conditions(pod.key, WITH_GANG)
            return Decided(waits_for=f"waits with gang {gang.title}, which gave devices back again and again")
        holding = {it.key for it in waiting if self._cluster.holds_devices(it)}
        if len(holding) >= wanted and pod.key not in holding:  # they are about to be bound, and this one joins them
            self._cluster.set_wake_conditions(pod.key, WITH_GANG)
            self._asked.setdefault(gang.key, set()).add(pod.key)
            self._context.look_again(pod.key, JOIN_LOOK_SECONDS)
            return Decided(waits_for=f"waits until the pods of gang {gang.title} that have devices are bound")
        waiting.sort(key=lambda it: it.key not in holding)
        self._refusals.pop(gang.key, None)  # an attempt that comes to no end leaves none to wait with
        self._leaders[gang.key] = pod.key
        if wanted == 1:  # with those beside it that are on their way to a node
            running = [*running, *(it for it in waiting if it is not pod and self._cluster.node_of(it))]
        same, is_unsure = same_values(self._cluster, gang, running), self._is_unsure
        tried_at = self._cluster.times_freed()
        return GangAttempt(gang, pod, waiting, wanted, same, self._snapshot, is_unsure, self._makes_room, tried_at)

    def _lacks_claim(self, gang: Gang, waiting: Sequence[Pod], wanted: int) -> Pod | None:
        """A pod whose claims are not made, if too few are left without it. The one that is known is looked at first."""
        known = self._unmade.get(gang.key)
        first = known.lacking.metadata.uid if known is not None else ""
        ordered = sorted(waiting, key=lambda it: it.metadata.uid != first)
        lacking = (it for it in ordered if self._cluster.lacks_generated_claim(it))
        found = list(islice(lacking, len(waiting) - wanted + 1))
        return found[0] if len(waiting) - len(found) < wanted else None

    def _await_claims(self, gang: Gang, pod: Pod, lacking: Pod) -> Decided:
        """Claims are made within a moment; where that takes longer, one pod says for which it waits, once for all."""
        self._forget_gangs()
        now, known = asyncio.get_running_loop().time(), self._unmade.get(gang.key)
        teller = self._cluster.pods.get(known.teller.key, known.teller.metadata.uid) if known is not None else None
        if known is None or teller is None or self._cluster.gang_of(teller) != gang:
            known = self._unmade[gang.key] = AwaitedClaims(pod, lacking, now)
        is_other, known.lacking = known.lacking.key != lacking.key, lacking
        if known.teller.key != pod.key:
            if known.is_told and is_other:
                self._context.look_again(known.teller.key)
            return Decided()
        left = known.since + self._context.times.unmade_gang_claims - now
        if left > 0:
            self._context.look_again(pod.key, left)
            return Decided()
        found = pre_filter(lacking, self._snapshot())
        if not isinstance(found, NotTried):
            return Decided()
        known.is_told = True
        text = f"waits for pod {lacking.metadata.name} of its gang, which {found.text}"
        others = [it for it in self._cluster.members_of(gang)[1] if not self._cluster.lacks_generated_claim(it)]
        return Decided(partial(self._tell_all, gang, pod, others, UNSCHEDULABLE, text))

    def _waits_with(self, refusal: Refusal, gang: Gang, wanted: int, state: CycleState) -> bool:
        """Whether the gang was refused as it is now, and its leader still waits for what may help."""
        leader = self._cluster.pods.get(refusal.leader.key, refusal.leader.metadata.uid)
        if leader is None or leader.key == state.pod.key or not self._cluster.is_waiting_member(leader):
            return False
        if self._cluster.gang_of(leader) != gang:
            return False
        return refusal.covers(gang, wanted, state.pod.key, fingerprint(state))

    def _is_unsure(self, pod: Pod) -> bool:
        """Whether something is being written for the pod, or was and had no answer. It leads when that is over."""
        is_unsure = (
            self._context.is_working(pod.key)
            or bool(self._cluster.allocated_devices.assumed_for(pod.key))
            or self._context.writing.pods.unanswered(pod) is not None
        )
        if is_unsure:
            self._context.look_again(pod.key)
        return is_unsure

    def lacks_pods(self, pod: Pod, text: str) -> Decided:
        """The gang has fewer pods than it needs: no pod of it keeps devices."""
        gang = self._cluster.gang_of(pod)
        if isinstance(gang, Gang) and self._makes_room is not None:
            self._makes_room.forget_gang(gang)
        if not isinstance(gang, Gang) or not self._cluster.holds_devices(pod):
            return Decided(partial(self._tell_of_lack, pod, text))
        if gang.key in self._leaders:
            self._asked.setdefault(gang.key, set()).add(pod.key)
            return Decided(waits_for=text)
        self._leaders[gang.key] = pod.key
        return Decided(partial(self._give_up, gang, pod, text))

    async def give_up_alone(self, pod: Pod, text: str) -> Result:
        """What the pod's gang is cannot be said, so it gets no place, and keeps no devices."""
        await self._unreserve.give_up_held((pod,), text)
        return await self._tell_of_lack(pod, text)

    async def _give_up(self, gang: Gang, pod: Pod, text: str) -> Result:
        try:
            await self._unreserve.give_up_held(self._cluster.members_of(gang)[1], text)
        finally:
            self._over(gang)
        return await self._tell_of_lack(pod, text)

    async def _tell_of_lack(self, pod: Pod, text: str) -> Result:
        await self._report.waits(pod, UNSCHEDULABLE, text, alone=True)
        if self._makes_room is not None:
            await self._makes_room.prepare_candidate(pod, None)
        return Result.UNSCHEDULABLE

    async def go_on(self, attempt: GangAttempt) -> Decided | Postponed:
        """A piece of the plan; then its devices are taken."""
        with ExitStack() as without:
            for pod in attempt.without_load:
                without.enter_context(self._cluster.without_load_of(pod))
            self._cluster.loaded_nodes()
            try:
                answer = await attempt.advance(self._context.times.time_slices.turn)
            except Exception:
                self._over(attempt.gang)  # so that it is tried again
                raise
            if answer is None:
                self._put_aside[attempt.leader.key] = attempt
                return Postponed(attempt.spent, self._unreserve.note(attempt, attempt.leader))
            if isinstance(answer, tuple) and not isinstance(answer, Unready):
                if any(self._is_unsure(pod) for pod in attempt.members if pod is not attempt.leader):
                    return self._wait_for_mate(attempt)
                try:
                    parts = self._binding.reserve(attempt, answer)
                except PlacementFailed:
                    self._over(attempt.gang)
                    raise
                for pod in attempt.members:
                    self._cluster.set_wake_conditions(pod.key, WITH_GANG)
                    self._written[pod.key] = attempt.gang
                return Decided(partial(self._write, attempt, parts), attempt.spent)
        return self._wait(attempt, answer) if isinstance(answer, Unready) else self._refuse(attempt, answer)

    async def _write(self, attempt: GangAttempt, parts: list[Part]) -> Result | None:
        try:
            return await self._binding.write(attempt, parts)
        finally:
            for part in parts:
                self._written.pop(part.pod.key, None)
            self._over(attempt.gang)

    def _wait(self, attempt: GangAttempt, unready: Unready) -> Decided:
        """Another pod of the gang is not ready; when it is, it leads."""
        if isinstance(unready.found, CycleState):
            return self._wait_for_mate(attempt)
        self._cluster.set_wake_conditions(attempt.leader.key, WITH_GANG)
        if not isinstance(unready.found, NotTried):
            self._over(attempt.gang)
            text = f"waits for pod {unready.pod.metadata.name} of its gang, which {unready.found.text}"
            return Decided(None, attempt.spent, waits_for=text)
        self._remember(Refusal(attempt, {unready.pod.key: unready.found.obstacle}))
        if self._makes_room is not None:
            self._makes_room.forget_gang(attempt.gang)
        text = f"waits for pod {unready.pod.metadata.name} of its gang, which {unready.found.text}"
        return Decided(partial(self._tell, attempt, NoPlace(text, "with-gang")), attempt.spent)

    def _wait_for_mate(self, attempt: GangAttempt) -> Decided:
        """Something is being written for another pod of the gang, which leads when that is over, unless it is bound.

        In case that it is, one pod of the gang looks again, however many have met that one.
        """
        self._cluster.set_wake_conditions(attempt.leader.key, WITH_GANG)
        now = asyncio.get_running_loop().time()
        if self._mate_looks.get(attempt.gang.key, 0.0) <= now:
            self._forget_gangs()
            self._mate_looks[attempt.gang.key] = now + MATE_LOOK_SECONDS
            self._context.look_again(attempt.leader.key, MATE_LOOK_SECONDS)
        self._over(attempt.gang)
        text = f"waits with gang {attempt.gang.title} for a write to another pod of it"
        return Decided(None, attempt.spent, waits_for=text)

    def _refuse(self, attempt: GangAttempt, decision: NoPlace) -> Decided:
        self._remember(Refusal(attempt))
        for pod in attempt.members:
            self._cluster.set_wake_conditions(pod.key, WITH_GANG)
        wake_on = FAILED if decision.is_error else self._helps(attempt, decision)
        self._cluster.set_wake_conditions(attempt.leader.key, wake_on)
        for pod in attempt.members:
            self._context.wake(self._cluster.forget_placed(pod))
        prospect = self._makes_room.prospect(attempt.leader, attempt.gang) if self._makes_room is not None else ""
        told = f"gang {attempt.gang.title}: {decision.message}{f'; {prospect}' if prospect else ''}"
        return Decided(partial(self._tell, attempt, decision, told), attempt.spent)

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
        room = decision.short_of_room or decision.drivers is None or is_nominated
        return EVERYTHING._replace(
            room=room,
            devices=bool(classes),
            freed=freed,
            hints=decision.hints | hints,
            tried_at=None if room else attempt.tried_at,
            reason=decision.reason,
        )

    async def _tell(self, attempt: GangAttempt, decision: NoPlace, told: str = "") -> Result:
        """Why all wait; none keeps devices meanwhile, and the gang pauses the longer before the next plan the oftener
        it had some."""
        leader, members = attempt.leader, attempt.members
        try:
            if await self._unreserve.give_up_held(members, f"gang {attempt.gang.title} has no place"):
                self._context.pauses.did(attempt.gang.key)
        finally:  # until then no other plan may count on what they give up
            self._over(attempt.gang)
        reason = SCHEDULER_ERROR if decision.is_error else UNSCHEDULABLE
        result = await self._tell_all(attempt.gang, leader, members, reason, told or decision.message)
        if decision.is_error:
            raise PlacementFailed(decision.message)
        if self._makes_room is not None:
            await self._makes_room.prepare_for_gang(attempt.gang, members, attempt.nominated)
        return result

    async def _tell_all(self, gang: Gang, leader: Pod, members: Iterable[Pod], reason: str, text: str) -> Result:
        """The leader says why all wait, and the others name it, as long as it waits."""
        await self._report.waits(leader, reason, text)
        for pod in members:
            current = self._cluster.pods.get(leader.key, leader.metadata.uid)
            if current is None or not self._cluster.is_waiting_member(current):
                break
            if pod.key != leader.key:
                await self._tell_mate(gang, pod, leader)
        return Result.UNSCHEDULABLE

    async def _tell_mate(self, gang: Gang, pod: Pod, leader: Pod) -> None:
        """A decision about the pod itself says more, and waits until this is told: the last word has to stay."""
        # Asked here and not by the callers: the pod's own decision and that of its leader may come at the same moment.
        if self.puts_off(pod.key):
            return
        text = f"waits with gang {gang.title}: pod {leader.metadata.name} says why"
        self._telling[pod.key] = gang
        try:
            with suppress(PodVanished):
                await self._report.waits(pod, UNSCHEDULABLE, text, alone=True)
        finally:
            del self._telling[pod.key]
            if gang.key not in self._leaders:
                self._over(gang)

    def _remember(self, refusal: Refusal) -> None:
        """The others of the gang wait with its leader."""
        self._forget_gangs()
        self._refusals[refusal.gang.key] = refusal

    def _forget_gangs(self) -> None:
        """Those that have no pods, now and then: each scan is paid for by as many gangs that were added since."""
        remembered: tuple[dict[str, Any], ...] = (self._refusals, self._unmade, self._mate_looks)
        if max(map(len, remembered)) < self._most_remembered:
            return
        for gangs in remembered:
            for key in [key for key in gangs if not self._cluster.pods_by_gang.has(key)]:
                del gangs[key]
        self._most_remembered = max(REMEMBERED_GANGS, 2 * max(map(len, remembered)))

    def _over(self, gang: Gang) -> None:
        """Others may lead. Those that asked meanwhile are looked at now."""
        self._leaders.pop(gang.key, None)
        for key in sorted(self._asked.pop(gang.key, ())):
            self._context.look_again(key)
