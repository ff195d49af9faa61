"""What a pod gives back when it cannot run with it, when another has a right to it, or when its fate is unknown.

Each step may fail or be the last before a crash: then the next attempt finds what is left, and gives that back. A claim
that is gone, or became another one meanwhile, needs nothing more.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from dra_api.core import Pod
from dra_api.references import (
    group_consumer,
    is_reserved_for,
    owning_pod,
    stands_for,
)
from dra_api.releases import Release
from dra_api.resource import FINALIZER, ResourceClaim
from dra_kube import KubeError, NotFound

from dra_operator.allocator import DeviceId
from dra_operator.controllers.claims.group import releasing
from dra_operator.controllers.claims.release import discard
from dra_operator.controllers.errors import GenerationFailed, PlacementFailed, PodVanished
from dra_operator.controllers.scheduling.planning import BindStep
from dra_operator.controllers.workers import AttemptResult, devices_in, tell
from dra_operator.kube import ClaimChanged, EventReason, Unanswered
from dra_operator.scheduling import NoPlace
from dra_operator.scheduling.state import HOLD, contest, is_at_gate, is_immediate, is_parked, is_placeholder, title
from dra_operator.wording import counted

from .planning import InProgress, SchedulingContext
from .report import AGAIN, SCHEDULER_ERROR, UNSCHEDULABLE, WaitingReport, shows_reason

logger = logging.getLogger(__name__)


NOTED_AFTER_SECONDS = 1.0
"""Seconds of planning after which a pod says that it is being planned."""


class Unreserve:
    """Ends attempts without a plan."""

    def __init__(self, context: SchedulingContext, report: WaitingReport) -> None:
        self._context, self._report = context, report
        self._cluster = context.cluster
        self._claims, self._pods = context.claims, context.pods
        self._metrics, self._conflict_check = context.metrics, context.conflict_check

    async def confirm(self, key: str) -> None:
        """Allocations of an earlier attempt whose write was not answered: find out what became of them.

        Until that is certain they stay among the allocated devices, and the pod is not tried again. The server is
        asked, and an allocation that is not there is fenced off: giving up the finalizer changes the claim's
        resourceVersion, which the old write names, so that it fails should it still be under way. A claim without
        allocation needs none.
        """
        for entry in self._cluster.allocated_devices.assumed_for(key):
            with suppress(NotFound, ClaimChanged):  # gone, or replaced: with it the old write's object
                await self._claims.release(entry.claim, HOLD if is_placeholder(entry.pod) else FINALIZER)
            self._context.queues.add(self._cluster.confirm(entry.claim.metadata.uid))
            current = self._cluster.claims.get(entry.claim.key)
            if current is not None and current.status.allocation is not None:
                # The old write did land: from its moment on others may not have seen it.
                self._conflict_check.wrote(current)
        self._context.look_again(key)

    async def confirm_bind_step(self, pod: Pod, bind_step: BindStep) -> AttemptResult | None:
        """Find out what became of a binding, or of the opening of a gate, that was not answered.

        Before that is certain the pod keeps its devices, for it may run with them. If the server has the version on
        which the write is based, then the write may still be under way: another one outdates it, and says why the pod
        waits.
        """
        unanswered, node = self._pods.unanswered(pod), self._cluster.loads.node_of(pod.metadata.uid)
        is_done = False
        with suppress(NotFound, PodVanished):
            current = await self._pods.read(pod.metadata.namespace, pod.metadata.name)
            is_same = current.metadata.uid == pod.metadata.uid
            is_done = is_same and (not is_at_gate(current) if is_at_gate(pod) else current.spec.node_name == node)
            if unanswered is not None and is_same and current.metadata.resource_version == unanswered.resource_version:
                why = _news_of(current, f"cannot {bind_step.action(node or '')}", unanswered)
                await self._report.waits(current, SCHEDULER_ERROR, why)
        # Only now: until the server was asked the pod keeps its devices.
        self._pods.settled(pod)
        self._context.look_again(pod.key)
        if not is_done:
            return None
        what = "gate removed" if is_at_gate(pod) else "pod bound"
        tell(logger, logging.INFO, what, pod=pod.key, node=node)
        if news := bind_step.news(pod, node or ""):
            self._context.events.post(*news)
        return AttemptResult.SCHEDULED

    def note(self, attempt: InProgress[Any], pod: Pod) -> Callable[[], Awaitable[None]] | None:
        """Return what to tell the pod of an attempt that takes long, once per attempt, or None.

        Either its plan took long, or others had precedence for long.
        """
        is_late = (self._report.silence_left(pod) or 0.0) <= 0
        is_news = attempt.spent >= NOTED_AFTER_SECONDS and not shows_reason(pod)
        # Once per attempt: the words differ in their seconds, and each would be a write.
        if attempt.is_noted or not (is_late or is_news):
            return None
        attempt.is_noted = True
        return partial(self.is_being_planned, pod, attempt.spent)

    async def is_being_planned(self, pod: Pod, spent: float) -> None:
        """Say that the pod's plan takes long, until there is an answer."""
        await self._report.waits(
            pod,
            SCHEDULER_ERROR,
            f"still looking for a node after {spent:.0f} s of work; pods that need less work have precedence. If this "
            f"continues, make the selectors of its claims cheaper, or ask for fewer alternatives and constraints",
            alone=True,
        )

    async def let_go(self, pod: Pod, claims: Sequence[ResourceClaim]) -> None:
        """Finish what may be under way: the pod gives the claims up, by writes that are answered, and starts afresh."""
        await self._give_up(pod, claims, "a write to it was not answered")
        self._rest(pod)
        self._context.look_again(pod.key)

    async def after_volumes(self, pod: Pod, claims: Sequence[ResourceClaim], reason: str) -> None:
        """Its volumes were not bound on the node: others may use the devices until the pod is tried again."""
        await self._give_up(pod, claims, reason)
        await self._report.waits(pod, SCHEDULER_ERROR, f"binding volumes: {reason}; {AGAIN}")
        raise PlacementFailed(f"binding volumes of pod {pod.key}: {reason}", self._pause(pod))

    async def give_way(self, pod: Pod, claim: ResourceClaim, devices: Sequence[DeviceId]) -> None:
        """Another scheduler took the same device at the same time: the pod leaves the claim, and chooses anew.

        The claim is parked (``scheduling.state.applicants``), unless none but ours holds the device, or a pod of
        another scheduler waits for the claim, which would run with it.

        Each of several pods that share the claim leaves it, and the last one parks it: so none loses what it may be on
        its way to a node with.
        """
        self._context.queues.add(self._cluster.forget_placed(pod))
        # The pauses were too short for the other scheduler: from now on they are longer.
        self._context.deference.clashed({device.driver for device in devices})
        taken = ", ".join(map(str, devices))
        # A rival that is gone still matters: its scheduler takes the device for free (docs/contests.md).
        rival = next(self._cluster.rivals(claim, devices), None) or self._cluster.contested.get(claim.metadata.uid)
        try:
            if rival is not None and all(map(self._cluster.waits_for_us, self._cluster.awaiting(claim))):
                await self._park(pod, claim, rival, taken)
                return
            # Others share the claim: the last one that leaves gives the devices back.
            if all(stands_for(consumer, pod) for consumer in claim.status.reserved_for or ()):
                left = await self._deallocate(pod, claim)
            else:
                left = await self._claims.unreserve(claim, {pod.metadata.uid})
        except (ClaimChanged, NotFound) as error:
            raise PlacementFailed(str(error)) from error
        finally:
            self._conflict_check.given_up([claim])
        if left.status.allocation is not None:
            raise PlacementFailed(
                f"claim {claim.key} keeps {taken}, also allocated to another claim, until its other pods release it"
            )
        self._metrics.gave_way()
        _tell(pod, claim, "a device was also allocated to another claim")
        raise PlacementFailed(f"claim {claim.key} released {taken}, also allocated to another claim", self._pause(pod))

    async def _park(self, pod: Pod, claim: ResourceClaim, rival: ResourceClaim, taken: str) -> None:
        consumers = self._consumers(pod, claim)
        left = await self._claims.park(claim, consumers, contest(self._cluster.scheduler_name, rival))
        if not is_parked(left):
            raise PlacementFailed(f"claim {claim.key} keeps {taken}, also allocated to claim {rival.key}")
        self._metrics.gave_way()
        lost = f"{taken} was also allocated to claim {rival.key}"
        # ``Permit.may_bind`` puts the claim there itself where nothing is known of a rival.
        if rival.metadata.uid == claim.metadata.uid:
            lost = f"{taken} may have been allocated to another claim as well, before this operator led"
        tell(logger, logging.WARNING, "claim parked", claim=claim.key, pod=pod.key, because=lost)
        about = claim if is_placeholder(pod) else pod
        self._context.events.post(
            about, EventReason.CLAIM_PARKED, f"Claim {claim.key} keeps its devices without a pod: {lost}"
        )
        self._context.look_again(pod.key)

    async def without_parked(self, pod: Pod, decision: NoPlace) -> AttemptResult | None:
        """Replace a parked claim that is from a template by a new one; for another one the pod waits.

        Meanwhile it gives the rest of its devices back.
        """
        parked = [(use, claim) for use, claim in self._cluster.claims_of(pod) if claim is not None and is_parked(claim)]
        made = {}
        for use, claim in parked:
            template = use.entry.resource_claim_template_name if use.entry is not None else None
            owner = owning_pod(claim)
            # A claim that a person made is not replaced: only its pod's author knows what else would do.
            if use.entry is not None and template is not None and owner is not None and owner.uid == pod.metadata.uid:
                try:
                    made[use.entry.name] = (
                        await self._context.maker.create(pod, use.entry.name, template)
                    ).metadata.name
                except GenerationFailed as error:
                    await self._report.waits(pod, SCHEDULER_ERROR, f"{decision.message}; {error}; {AGAIN}")
                    raise PlacementFailed(str(error)) from error
        if made:
            try:
                await self._pods.record_claims(pod, made)
            except NotFound as error:
                raise PodVanished(str(error)) from error
            return None
        if not parked:
            return None  # its end is not certain yet, and brings the pod here again
        await self._report.waits(pod, UNSCHEDULABLE, decision.message)
        await self.give_up_held([pod], "another claim of the pod is parked")
        return AttemptResult.UNSCHEDULABLE

    async def refuse(self, pod: Pod, decision: NoPlace) -> AttemptResult:
        """No node takes the pod: say why, and give back what it holds in the wrong place (scheduling.md 4.3).

        Claims that are being deleted it gives up as well: each would wait for the other for ever. And so it does with
        claims whose devices failed and that other pods have reserved: the last one gives the devices back.
        """
        # First the words, then the writes below: should one of them fail, the pod has said why it waits.
        await self._report.waits(pod, SCHEDULER_ERROR if decision.is_error else UNSCHEDULABLE, decision.message)
        if ending := [claim for claim in self._cluster.known_claims(pod) if _ends(pod, claim)]:
            await self._give_up(pod, ending, "it is being deleted")
        # One claim at a time: with it given back, the others may turn out to be of use.
        stuck = decision.stuck[:1]
        if failed := [] if decision.stuck else list(self._failed(pod)):
            await self._give_up(pod, failed, self._context.readiness(failed[0]).text)
        in_vain = [*decision.leftovers, *(held.claim for held in stuck if held.entry is None)]
        try:
            if in_vain:
                await self._discard(pod, in_vain)
            elif stuck:
                await self._give_back(pod, stuck[0].claim)
                self._tell_stuck(pod, stuck[0].claim)
        except (ClaimChanged, NotFound) as error:
            raise PlacementFailed(str(error)) from error
        if decision.is_error:
            raise PlacementFailed(decision.message)
        # It may take the same devices again at once, and lose them again: so it pauses, the longer the oftener.
        if in_vain or stuck or failed:
            self._rest(pod)
        return AttemptResult.UNSCHEDULABLE

    def _failed(self, pod: Pod) -> Iterator[ResourceClaim]:
        """Claims that are reserved for the pod itself, and whose devices will not get ready."""
        for claim in self._cluster.known_claims(pod):
            is_own = any(consumer.uid == pod.metadata.uid for consumer in claim.status.reserved_for or ())
            if is_own and self._context.readiness(claim).is_lost:
                yield claim

    async def _give_back(self, pod: Pod, claim: ResourceClaim) -> None:
        """Give the devices back of a claim that is allocated where the pod cannot run.

        Up to Kubernetes 1.36 a claim that is reserved for the pod's group first loses the reservation, and its devices
        with the next attempt. Raises ClaimChanged when a pod of the group got a node meanwhile.
        """
        group = group_consumer(pod, claim)
        if group is None:
            await self._deallocate(pod, claim)
            return
        # A pod of the group that runs relies on these devices.
        if self._cluster.groups.has_placed(pod):
            raise ClaimChanged(f"claim {claim.key} is in use by another pod of PodGroup {group.name} by now")
        with releasing(self._cluster, claim, self._context.queues.add):
            if self._cluster.features.release >= Release.V1_37:
                await self._deallocate(pod, claim)
            else:
                await self._claims.unreserve(claim, {group.uid}, deallocate=False)

    async def _deallocate(self, pod: Pod, claim: ResourceClaim) -> ResourceClaim:
        return await self._claims.deallocate(claim, *self._consumers(pod, claim))

    def _consumers(self, pod: Pod, claim: ResourceClaim) -> set[str]:
        """Whose reservations the pod may end: its own, and that of its PodGroup while no other pod relies on it."""
        group = group_consumer(pod, claim)
        is_in_use = group is not None and self._cluster.groups.has_placed(pod)
        return {pod.metadata.uid} if group is None or is_in_use else {pod.metadata.uid, group.uid}

    async def give_up_held(self, pods: Iterable[Pod], because: str) -> bool:
        """Pods without a node give the devices back that are reserved for them; immediate claims keep theirs.

        Whether there were such claims.

        A pod for which a write fails is looked at again by itself: this may be another one's attempt.
        """
        had_some = False
        for pod in pods:
            for claim in self._cluster.known_claims(pod):
                if claim.status.allocation is None or not is_reserved_for(pod, claim):
                    continue
                had_some = True
                try:
                    # An immediate claim has devices whether a pod uses it or not.
                    frees = not is_immediate(claim)
                    await self._claims.unreserve(claim, self._consumers(pod, claim), deallocate=frees)
                    _tell(pod, claim, because)
                except (NotFound, ClaimChanged):
                    pass
                except KubeError:
                    self._context.look_again(pod.key, self._context.pauses.did(pod.metadata.uid))
                    raise
                self._conflict_check.given_up([claim])
            self._context.queues.add(self._cluster.forget_placed(pod))
        return had_some

    def _pause(self, pod: Pod) -> float:
        """Return the seconds before the pod is tried again, now that it gave a claim up: the more, the oftener it
        did."""
        return self._context.pauses.did(pod.metadata.uid)

    def _rest(self, pod: Pod) -> None:
        """Note that the pod gave a claim up.

        Raises PlacementFailed if it has to pause before it may take another one.
        """
        if pause := self._pause(pod):
            raise PlacementFailed(f"{title(pod)} released a claim again", pause)

    async def _give_up(self, pod: Pod, claims: Sequence[ResourceClaim], because: str) -> None:
        for claim in claims:
            with suppress(NotFound, ClaimChanged):
                await self._claims.unreserve(claim, self._consumers(pod, claim))
                _tell(pod, claim, because)
        self._conflict_check.given_up(claims)
        self._context.queues.add(self._cluster.forget_placed(pod))

    def _tell_stuck(self, pod: Pod, claim: ResourceClaim) -> None:
        readiness = self._context.readiness(claim)
        _tell(pod, claim, readiness.text if readiness.is_lost else "the pod cannot run where it is allocated")
        if readiness.is_lost:
            self._metrics.awaited(claim, readiness.state, self._context.now())

    async def _discard(self, pod: Pod, claims: Sequence[ResourceClaim]) -> None:
        """Delete claims for extended resources, unless the pod turns out to be bound with them. Raises NotFound."""
        current = await self._pods.read(pod.metadata.namespace, pod.metadata.name)
        if current.metadata.uid == pod.metadata.uid and not current.spec.node_name:
            for claim in claims:
                await discard(self._claims, claim, pod.metadata.uid)


def _news_of(pod: Pod, what: str, unanswered: Unanswered) -> str:
    """Return the part of the text that the pod does not show yet: only a change outdates the write. A former process
    may have counted as well."""
    shown = {condition.message for condition in pod.status.conditions or ()}
    texts = (f"{what} ({counted(n, 'time')}): {unanswered.error}; {AGAIN}" for n in itertools.count(unanswered.times))
    return next(text for text in texts if text not in shown)


def _ends(pod: Pod, claim: ResourceClaim) -> bool:
    """Return whether the claim is being deleted, and waits for the pod."""
    return claim.metadata.deletion_timestamp is not None and is_reserved_for(pod, claim)


def _tell(pod: Pod, claim: ResourceClaim, because: str) -> None:
    freed = partial(devices_in, claim.status.allocation)
    tell(logger, logging.INFO, "claim released", claim=claim.key, pod=pod.key, because=because, freed=freed)
