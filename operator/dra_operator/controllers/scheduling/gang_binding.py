"""Carries the joint plan of a gang out: all devices are written before the first pod is bound.

The devices and the room of all members are taken at once. Then the claims of all are written, side by side. If one
write fails, all give back what they got, and no pod was bound. Only when the devices of all are certain and ready are
the pods bound. A binding that fails then leaves its pod to wait as one that joins late, with its devices: the others
may run already. If no binding succeeds, all give back what they have.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dra_api.core import Pod
from dra_api.resource import ResourceClaim
from dra_kube.spans import span

from dra_operator.cache import DeviceTaken
from dra_operator.controllers.errors import BindingRefused, PlacementFailed, PodVanished
from dra_operator.controllers.scheduling.binding import UNSEEN_LOOK_SECONDS, BindingCycle, Permit
from dra_operator.controllers.scheduling.gang import GangAttempt
from dra_operator.controllers.scheduling.planning import BindStep, SchedulingContext, has_devices, has_room, is_promised
from dra_operator.controllers.scheduling.report import AGAIN, SCHEDULER_ERROR, WaitingReport
from dra_operator.controllers.workers import AttemptResult
from dra_operator.scheduling import ConflictCheckDue, Plan
from dra_operator.scheduling.gang import JointPlan
from dra_operator.scheduling.rules import NO_BINDINGS
from dra_operator.scheduling.state import title


class MemberBinding(NamedTuple):
    """One member on its way to its node. ``waits``: another member allocates a claim of it."""

    pod: Pod
    plan: Plan
    binding_cycle: BindingCycle
    waits: bool


class GangBinding:
    """The binding cycle of gangs."""

    def __init__(self, context: SchedulingContext, permit: Permit, report: WaitingReport, bind: BindStep) -> None:
        self._context, self._permit, self._report, self._bind = context, permit, report, bind
        self._cluster = context.cluster

    def reserve(self, attempt: GangAttempt, plans: JointPlan) -> list[MemberBinding]:
        """Take the devices and the room of all. Raises PlacementFailed when they are no more what they were."""
        usage, parts = attempt.states[0].usage, list[MemberBinding]()
        failed = PlacementFailed(f"the cluster changed while gang {attempt.gang.title} was being planned")
        # Before anything is taken: the devices of one member are no change for the others.
        if not all(has_devices(usage, plan, self._cluster) for plan in plans):
            raise failed
        # In the order in which they were planned: each counts on what those before it take.
        for number in plans.order:
            state, plan = attempt.states[number], plans[number]
            binding_cycle = BindingCycle(self._context, self._bind)
            open_claims = {it.metadata.uid for it in state.resource_claims if it.status.allocation is None}
            try:
                if is_promised(state, plan, self._cluster) or not has_room(state.pod, plan, self._cluster):
                    raise failed
                binding_cycle.reserve(state.pod, state.claims, plan)
            except (DeviceTaken, PlacementFailed) as error:
                for part in parts:
                    part.binding_cycle.unreserve()
                raise PlacementFailed(str(error)) from error
            parts.append(MemberBinding(state.pod, plan, binding_cycle, not open_claims <= plan.allocations.keys()))
        # Back in the order of the members, in which their states are.
        parts = [part for _, part in sorted(zip(plans.order, parts, strict=True), key=lambda it: it[0])]
        if any(state.claims for state in attempt.states):
            self._context.delayed_deletion.abundance.placed()
        return parts

    async def write(self, attempt: GangAttempt, parts: Sequence[MemberBinding]) -> AttemptResult | None:
        """Write the plan; None if the pods cannot be bound yet. Raises as ``Permit.write``."""
        try:
            with span("binding_cycle", pod=attempt.leader.key, node=parts[0].plan.node):
                claims = await self._reserve(attempt, parts)
        finally:
            for part in parts:
                self._cluster.storage.written(part.pod.metadata.uid)
        unready = [it for it, its in zip(parts, claims, strict=True) if not self._permit.may_bind(it.pod, its)]
        if unready:
            if waits_for := self._look_again(attempt, unready, [claim for its in claims for claim in its]):
                await self._report.goes_on_waiting(attempt.leader, SCHEDULER_ERROR, waits_for)
            return None
        await self._end(attempt, parts, claims)
        return AttemptResult.SCHEDULED

    async def _reserve(self, attempt: GangAttempt, parts: Sequence[MemberBinding]) -> list[list[ResourceClaim]]:
        done: dict[int, list[ResourceClaim] | BaseException] = {}
        # Side by side: a gang of a thousand pods would take minutes one after the other.
        first = [number for number, part in enumerate(parts) if not part.waits]
        answers = await asyncio.gather(*(parts[it].binding_cycle.pre_bind() for it in first), return_exceptions=True)
        done.update(zip(first, answers, strict=True))
        for number, part in enumerate(parts):
            if part.waits and not _errors(done.values()):
                # Another member has allocated the claim by now: the plan's version of it would conflict.
                part.binding_cycle.renew()
                [done[number]] = await asyncio.gather(part.binding_cycle.pre_bind(), return_exceptions=True)
        errors = _errors(done.values())
        if not errors:
            # Last, since it is never taken back: until here every member may still fail.
            await self._bind_volumes(parts, done)
            errors = _errors(done.values())
        if not errors:
            return [it for number in range(len(parts)) if not isinstance(it := done[number], BaseException)]
        for number, part in enumerate(parts):
            if isinstance(done.get(number), BaseException):
                self._come_back(attempt, part)
            else:
                await part.binding_cycle.take_back()
        await self._raise(attempt, errors[0])
        raise errors[0]

    async def _bind_volumes(
        self, parts: Sequence[MemberBinding], done: dict[int, list[ResourceClaim] | BaseException]
    ) -> None:
        """Begun when all have their devices: it is never taken back. Puts errors into ``done``."""
        numbers = [number for number, part in enumerate(parts) if part.plan.volumes != NO_BINDINGS]
        begun = (parts[number].binding_cycle.bind_volumes() for number in numbers)
        answers = await asyncio.gather(*begun, return_exceptions=True)
        done.update((it, answer) for it, answer in zip(numbers, answers, strict=True) if answer is not None)

    async def _end(
        self, attempt: GangAttempt, parts: Sequence[MemberBinding], claims: Sequence[Sequence[ResourceClaim]]
    ) -> None:
        # Without undoing: others of the gang may run already, and the one that failed joins them with its devices.
        ends = (part.binding_cycle.bind(its, undo=False) for part, its in zip(parts, claims, strict=True))
        answers = await asyncio.gather(*ends, return_exceptions=True)
        unanswered = self._context.pods.unanswered
        # A binding without an answer counts as one that happened.
        runs = any(
            not isinstance(answer, BaseException) or unanswered(part.pod) is not None
            for part, answer in zip(parts, answers, strict=True)
        )
        for part, answer in zip(parts, answers, strict=True):
            if isinstance(answer, BaseException):
                if not isinstance(answer, PodVanished) and unanswered(part.pod) is None:
                    await self._let_go(part, keep=runs)
                self._come_back(attempt, part)
            else:
                pod = self._cluster.pods.get(part.pod.key, part.pod.metadata.uid) or part.pod
                self._permit.ended(pod, part.plan, self._bind)
        if errors := _errors(answers):
            await self._raise(attempt, errors[0])

    async def _let_go(self, part: MemberBinding, *, keep: bool) -> None:
        """Undo a pod that was not bound: it keeps its devices if others of its gang were, else gives them back."""
        if keep:
            part.binding_cycle.unreserve()
        else:
            await part.binding_cycle.take_back()

    def _come_back(self, attempt: GangAttempt, part: MemberBinding) -> None:
        """Have a pod looked at again of which a write failed. The leader is, since its decision fails."""
        if part.pod.key != attempt.leader.key:
            self._context.look_again(part.pod.key, self._context.pauses.did(part.pod.metadata.uid))

    async def _raise(self, attempt: GangAttempt, error: BaseException) -> None:
        if isinstance(error, BindingRefused):
            text = f"{title(attempt.leader)} waits with gang {attempt.gang.title}: {error}; {AGAIN}"
            await self._report.waits(attempt.leader, SCHEDULER_ERROR, text)
        raise error

    def _look_again(
        self, attempt: GangAttempt, unready: Sequence[MemberBinding], claims: Sequence[ResourceClaim]
    ) -> str:
        """Have the pods, which have their devices and cannot be bound yet, looked at when that may have changed.

        Return for what they wait, or an empty text if that is seen at once.
        """
        for part in unready:
            self._permit.await_volumes(self._cluster.pods.get(part.pod.key) or part.pod, part.plan)
        if self._context.conflict_check.wait(claims) > 0:
            wait = self._context.conflict_check.wait(claims)
            self._context.look_again(attempt.leader.key, min(wait, UNSEEN_LOOK_SECONDS))
            return self._context.conflict_check.obstacle or ConflictCheckDue(tuple(claims)).text
        for part in unready:
            self._context.look_again(part.pod.key)
        self._context.look_again(attempt.leader.key, UNSEEN_LOOK_SECONDS)
        return ""


def _errors(answers: Iterable[object]) -> list[BaseException]:
    return [answer for answer in answers if isinstance(answer, BaseException)]
