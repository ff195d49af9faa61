"""A waiting pod gets a node and devices: plan, then commit (scheduling.md section 4).

Concern ``place`` of the queue. Planning is strictly one at a time, and a plan is taken into the ledger before the next
one starts, which so sees these devices as used. The commit then writes, concurrently with other commits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime

from dra_api.core import Pod
from dra_api.references import is_reserved_for
from dra_api.resource import ResourceClaim
from dra_kube import NotFound

from dra_operator.allocator import Allocator
from dra_operator.cluster import EVERYTHING, LEFTOVERS, NONE, Cluster, DeviceTaken, Interest, Key
from dra_operator.kube import ClaimChanged, EventRecorder
from dra_operator.placement import (
    Binding,
    ExtendedResources,
    NoPlace,
    NotReady,
    Plan,
    Planning,
    PodClaim,
    binding_state,
    extended_claims,
    plan,
    ready_claims,
    unservable,
    unsupported,
)

from .commit import Commit, Writing
from .errors import ClaimRefused, PlacementFailed
from .queue import WorkQueue

UNSCHEDULABLE = "Unschedulable"
SCHEDULER_ERROR = "SchedulerError"


class PodPlacer:
    """Handles ``place:`` keys."""

    def __init__(
        self,
        cluster: Cluster,
        allocator: Allocator,
        writing: Writing,
        events: EventRecorder,
        queue: WorkQueue,
        clock: Callable[[], datetime],
    ) -> None:
        self._cluster, self._allocator, self._queue, self._clock = cluster, allocator, queue, clock
        self._writing, self._events = writing, events
        self._claims, self._pods, _ = writing
        self._planning = asyncio.Lock()

    async def handle(self, key: str) -> None:
        """One attempt. Ends with the pod bound, or waiting with a reason in its status."""
        await self._settle_unanswered(key)
        commit = Commit(self._cluster, self._writing, self._queue.add)
        async with self._planning:
            await asyncio.sleep(0)  # one plan per turn of the loop, however many keys are ready
            pod = self._cluster.pods.get(key)
            if pod is None or not self._cluster.is_ours_to_place(pod) or self._cluster.loads.node_of(key):
                return
            self._cluster.note_waiting(key, EVERYTHING)
            claims: list[PodClaim] = []
            decision: Plan | NoPlace | None
            try:
                claims = ready_claims(pod, self._cluster.claims.get)
                decision = await self._decide(pod, claims, commit)
            except NotReady as reason:
                self._cluster.note_waiting(key, NONE)
                decision = None if reason.being_made else NoPlace(str(reason))
        if isinstance(decision, NoPlace):
            await self._wait(pod, claims, decision)
        elif decision is not None:
            await self._carry_out(pod, decision, commit)

    async def _decide(self, pod: Pod, claims: list[PodClaim], commit: Commit) -> Plan | NoPlace | None:
        """The plan, after its devices were taken; None if something else has to be awaited first.

        A complete claim for extended resources joins ``claims``.
        """
        made, leftovers = extended_claims(pod, self._cluster.claims_owned_by(pod))
        if leftovers:
            self._cluster.note_waiting(pod.key, LEFTOVERS)
            names = ", ".join(claim.metadata.name for claim in leftovers)
            text = f"cannot schedule extended resource claim: {names} of an earlier attempt has to go first"
            return NoPlace(text, leftovers=leftovers)
        if made is not None:
            claims.append(PodClaim(None, made))
        extended = ExtendedResources(pod, self._cluster.classes_serving(pod), made)
        decision = await self._plan(pod, [claim for _, claim in claims], extended)
        if isinstance(decision, Plan):
            try:
                commit.take(pod, claims, decision)
            except DeviceTaken as error:  # by somebody else's allocation that came in while the plan was made
                raise PlacementFailed(str(error)) from error
        return decision

    async def _plan(
        self, pod: Pod, claims: Sequence[ResourceClaim], extended: ExtendedResources
    ) -> Plan | NoPlace | None:
        """Decide; None if the end of somebody else's write, or of getting devices ready, has to be awaited first."""
        if any(self._cluster.ledger.in_flight(claim.metadata.uid) for claim in claims):
            return None
        states = {claim.metadata.uid: binding_state(claim, self._clock()) for claim in claims}
        failed = {uid for uid, binding in states.items() if binding.state is Binding.FAILED}
        pending = [binding.seconds for binding in states.values() if binding.state is Binding.PENDING]
        if pending and not failed and all(is_reserved_for(pod, claim) for claim in claims):
            self._queue.add_after(Key("place", pod.key), min(pending) + 1)  # a change of the claims comes earlier
            return None
        open_claims = [claim for claim in claims if claim.status.allocation is None]
        known, features = self._cluster.classes, self._cluster.features
        obstacle = unsupported(pod)
        obstacle = obstacle or unservable(open_claims, known.__contains__, prioritized_list=features.prioritized_list)
        if obstacle is not None:
            self._cluster.note_waiting(pod.key, NONE)
            return NoPlace(obstacle)
        usage = self._cluster.ledger.usage.snapshot()
        nodes = self._cluster.node_states()
        decision = await _in_slices(plan(pod, claims, nodes, self._allocator, usage, failed, extended))
        if isinstance(decision, NoPlace) and not decision.is_error:
            devices, held = bool(open_claims or extended.classes), extended.made is not None
            interest = Interest(nodes=True, room=decision.short_of_room, devices=devices, leftovers=held)
            self._cluster.note_waiting(pod.key, interest)
        return decision

    async def _carry_out(self, pod: Pod, decision: Plan, commit: Commit) -> None:
        try:
            is_bound = await commit.write(self._may_bind)
        except ClaimRefused as refused:
            await self._report(pod, SCHEDULER_ERROR, str(refused))
            raise
        if is_bound:
            self._events.normal(pod, "Scheduled", f"Successfully assigned {pod.key} to {decision.node}")
            return
        text = f"waiting for binding conditions for device on node {decision.node}"
        self._events.normal(pod, "BindingConditionsPending", text)
        self._queue.add([Key("place", pod.key)])

    def _may_bind(self, claims: Sequence[ResourceClaim]) -> bool:
        """Whether all devices are ready for the pod to be bound to them."""
        now = self._clock()
        return all(binding_state(claim, now).state is Binding.READY for claim in claims)

    async def _wait(self, pod: Pod, claims: Sequence[PodClaim], decision: NoPlace) -> None:
        """Nobody takes the pod: say why, and give back what it holds in the wrong place (4.3)."""
        await self._report(pod, SCHEDULER_ERROR if decision.is_error else UNSCHEDULABLE, decision.message)
        stuck = [held for held in claims if self._may_clear(pod, held.claim, decision)][:1]
        in_vain = [*decision.leftovers, *(held.claim for held in stuck if held.entry is None)]
        try:
            if in_vain:
                await self._discard(pod, in_vain)
            elif stuck:
                await self._claims.clear(stuck[0].claim, pod.metadata.uid)
        except (ClaimChanged, NotFound) as error:
            raise PlacementFailed(str(error)) from error
        if decision.is_error:
            raise PlacementFailed(decision.message)

    async def _discard(self, pod: Pod, claims: Sequence[ResourceClaim]) -> None:
        """Delete claims for extended resources, unless the pod turns out to be bound with them. Raises NotFound."""
        current = await self._pods.read(pod.metadata.namespace, pod.metadata.name)
        if current.metadata.uid == pod.metadata.uid and not current.spec.node_name:
            for claim in claims:
                await self._claims.discard(claim, pod.metadata.uid)

    @staticmethod
    def _may_clear(pod: Pod, claim: ResourceClaim, decision: NoPlace) -> bool:
        consumers = claim.status.reserved_for or ()
        is_alone = all(consumer.uid == pod.metadata.uid for consumer in consumers)
        return claim.metadata.uid in decision.unavailable and is_alone

    async def _report(self, pod: Pod, reason: str, message: str) -> None:
        """Tell in status and event, once per reason: a pod that waits in vain must cost nothing."""
        for condition in pod.status.conditions or ():
            if (condition.type, condition.status) == ("PodScheduled", "False") and (
                condition.reason,
                condition.message,
            ) == (reason, message):
                return
        self._events.warning(pod, "FailedScheduling", message)
        await self._pods.report_waiting(pod, reason, message)

    async def _settle_unanswered(self, key: str) -> None:
        """Allocations of an earlier attempt whose write ended in silence: only the server knows what became of them.

        Until it has told, they stay in the ledger, and the pod is not tried again.
        """
        for entry in self._cluster.ledger.in_flight_for(key):
            with suppress(NotFound):
                await self._claims.read(entry.claim)
            self._queue.add(self._cluster.settle(entry.claim.metadata.uid))


async def _in_slices(planning: Planning) -> Plan | NoPlace:
    """Run a plan to its end, letting others run at each pause."""
    while True:
        try:
            next(planning)
        except StopIteration as end:
            answer: Plan | NoPlace = end.value
            return answer
        await asyncio.sleep(0)
