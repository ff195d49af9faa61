"""Releases a claim: drops stale reservations, deallocates it, removes the finalizer, deletes generated claims.

The controller ``release``; claim-controller.md sections 6 and 7. Each step decides on the claim as the server has it,
and can be repeated.

A claim in use that lost its finalizer gets it back (``_protect``): without it the claim could be deleted while
its pods run, and its devices would look free. A writer that takes it off again and again meets growing pauses.

Immediate claims keep their devices (``_keep_immediate``), and give them back when they are deleted or not immediate:

=============================================  ==================================================================
The claim is                                   Action
=============================================  ==================================================================
immediate, without devices                     requeue it for allocation
immediate, with devices                        replace the built-in finalizer by ours, in one write
deleted, or not immediate, without consumers   deallocate it, then remove our finalizer
not immediate any more, with consumers         replace our finalizer by the built-in one
deleted, with consumers                        none: it waits for them
=============================================  ==================================================================

The built-in finalizer comes with an allocation that a scheduler made for a pod. A fault of the annotation is reported
by an event, once per claim and fault.

``ParkedClaims`` ends contests: it deallocates a parked claim at a moment when no other scheduler can lose a device.

When kube-scheduler sees that a claim is deallocated, it counts the devices as free, even if another claim has them. It
did so already when its own claim, which won the contest, was deallocated. So the moment matters (``docs/contests.md``):

- No claim but the parked one has one of the devices, by a list of all claims that was requested after the last other
  one was seen.
- No pod of another scheduler has wanted such devices for a second. If pods wait that their scheduler has refused, it
  gets ``PARKED_REFUSED_SECONDS`` to try the freed device: it retries each pod after at most 10 s. Pods of a scheduler
  that does not run count for ``PARKED_LONGEST_SECONDS``.

A pod that is created at that moment may get the device before kube-scheduler sees the deallocation. Then the parked
claim is allocated once more, which puts the device back into kube-scheduler's set, and waits again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from typing import Final

from dra_api.codec import DecodeError
from dra_api.core import Pod
from dra_api.references import claims_of_pod, is_for_extended_resources, is_pod_group, owning_pod, pod_is_done
from dra_api.resource import FINALIZER, AllocationResult, ResourceClaim, ResourceClaimConsumerReference
from dra_kube import Conflict, NotFound

from dra_operator.allocator import DeviceId
from dra_operator.cache import Key, Keys, is_in_use, is_unprotected
from dra_operator.controllers.claims.delayed_deletion import DelayedDeletion
from dra_operator.controllers.claims.group import keeps_reservation, releasing
from dra_operator.controllers.context import Announced, ControllerContext
from dra_operator.controllers.errors import ReleaseFailed
from dra_operator.controllers.workers import devices_in, tell
from dra_operator.kube import ClaimChanged, ClaimWriter, EventReason
from dra_operator.scheduling.state import HOLD, annotation_fault, contest, contest_of, is_immediate, placeholder_key


async def discard(claims: ClaimWriter, claim: ResourceClaim, consumer: str) -> None:
    """Deallocate, release and delete the claim, one step after the other. A repetition continues where it stopped.

    Raises ClaimChanged if another consumer has reserved the claim.
    """
    with suppress(NotFound):
        claim = await claims.release(await claims.deallocate(claim, consumer))
    await claims.delete(claim)


logger = logging.getLogger(__name__)


class ClaimReleaser:
    """Handles ``release:`` keys. ``is_listed``: see ``ParkedClaims``."""

    def __init__(
        self,
        context: ControllerContext,
        delayed_deletion: DelayedDeletion,
        is_listed: Callable[[ResourceClaim, float], bool],
    ) -> None:
        self._context, self._delayed_deletion = context, delayed_deletion
        self._cluster, self._claims, self._pods = context.cluster, context.claims, context.pods
        self._parked, self._announced = ParkedClaims(context, is_listed), Announced()

    async def handle(self, key: str) -> None:
        """Bring one claim's status in line with its remaining consumers."""
        claim = self._cluster.claims.get(key)
        if claim is None:
            self._delayed_deletion.ended(key)
            self._parked.ended(key)
            return
        ours = self._context.ours
        # Finalizers first: a claim that could vanish while its devices are in use must not wait for anything else.
        try:
            if ours.allocation:
                claim = await self._keep_immediate(claim)
            if ours.release or ours.placement:
                claim = await self._protect(claim)
        except (NotFound, ClaimChanged):
            return  # another one may have its name now, whose event brings the key here again
        # A contest was begun by placement, whoever releases claims, and only placement knows when it is over.
        if ours.placement:
            with suppress(NotFound, ClaimChanged):
                await self._parked.handle(claim)
        # Beside a kube-controller-manager one thing is left to do: it does not know which claims are of no use.
        if not ours.release:
            if ours.placement and not is_in_use(claim) and self._is_made_in_vain(claim):
                await self._claims.delete(claim)
            return
        try:
            if (released := await self._release(claim)) is None:
                return
        except (NotFound, ClaimChanged):
            return  # deleted meanwhile, and with it everything there was to do; or used again, which brings it back
        if not released.status.reserved_for and self._is_left_over(released):
            await self._claims.delete(released)
            tell(logger, logging.DEBUG, "claim deleted", claim=released.key)

    async def _keep_immediate(self, claim: ResourceClaim) -> ResourceClaim:
        """Keep the devices of an immediate claim, or have it allocated. Return the claim as it is afterwards.

        Raises NotFound and ClaimChanged if it is gone or replaced.
        """
        self._tell_of_annotation(claim)
        finalizers = claim.metadata.finalizers or ()
        if is_immediate(claim):
            if claim.status.allocation is None:
                self._context.queues.add([Key("placement", placeholder_key(claim))])
            elif FINALIZER in finalizers or HOLD not in finalizers:
                # The built-in finalizer came with a scheduler's allocation; kube-controller-manager would take it off
                # with the last consumer, devices and all.
                return await self._claims.swap_finalizers(claim, FINALIZER, HOLD)
            return claim
        if HOLD not in finalizers:
            return claim
        # Not immediate any more: whoever uses it keeps it, under the rules of ordinary claims.
        if claim.status.reserved_for:
            # A deleted object takes no new finalizer: it waits for its consumers with the one that it has.
            is_deleted = claim.metadata.deletion_timestamp is not None
            return claim if is_deleted else await self._claims.swap_finalizers(claim, HOLD, FINALIZER)
        # Devices first, then the finalizer: once that is gone the claim vanishes, and nobody would give them back.
        released = await self._claims.deallocate(claim)
        if claim.status.allocation is not None and released.status.allocation is None:
            freed = devices_in(claim.status.allocation)
            tell(logger, logging.INFO, "claim released", claim=claim.key, consumers=[], freed=freed)
        return await self._claims.release(released, HOLD)

    def _tell_of_annotation(self, claim: ResourceClaim) -> None:
        uid, fault = claim.metadata.uid, annotation_fault(claim)
        if not fault:
            self._announced.forget(uid)
        elif self._announced.is_news(uid, fault):
            self._context.events.post(claim, EventReason.FAILED_ALLOCATION, fault)

    async def _protect(self, claim: ResourceClaim) -> ResourceClaim:
        """Restore the finalizer of a claim in use. Return the claim as it is afterwards.

        Raises NotFound and ClaimChanged if it is gone or replaced.
        """
        what, pauses = f"finalizer {claim.metadata.uid}", self._context.pauses
        if not is_unprotected(self._cluster, claim) or pauses.puts_off(what, Key("release", claim.key)):
            return claim
        # Counted before the write: a webhook that takes the finalizer off answers with success.
        pauses.did(what)
        after = await self._claims.swap_finalizers(claim, "", FINALIZER)
        if is_unprotected(self._cluster, after):
            lost = "a webhook or admission policy removes it: exempt ResourceClaims in use from it"
            tell(logger, logging.WARNING, "claim in use has no finalizer", claim=claim.key, because=lost)
        else:
            tell(logger, logging.WARNING, "finalizer restored on claim in use", claim=claim.key, finalizer=FINALIZER)
        return after

    async def _release(self, claim: ResourceClaim) -> ResourceClaim | None:
        """Remove consumers that no longer need the claim, and its devices with the last consumer (CC-05).

        Return None if the claim is gone, or if the garbage collector gets a moment to delete it.
        """
        consumers = claim.status.reserved_for or ()
        # One after the other: each may be a request, and a claim has at most 256 consumers.
        gone = [consumer.uid for consumer in consumers if not await self._stays(claim, consumer)]
        if len(gone) == len(consumers) and self._ends_with_its_pod(claim):
            # The collector deletes it in a moment: one request less, and no conflict with its.
            if claim.metadata.deletion_timestamp is None and self._delayed_deletion.has_time(claim):
                return None
            # Two writes for deletion and finalizer instead of four. They require an unchanged claim. If it has changed,
            # the steps below follow, each of which tests only the fields on which it depends.
            with suppress(Conflict):
                await self._end(claim, gone)
                self._delayed_deletion.ended(claim.key)
                self._tell(claim, [consumer.name for consumer in consumers], claim.status.allocation)
                return None
        if gone:
            claim, frees = await self._unreserve(claim, gone), True
        else:
            # An allocated claim that nobody uses keeps its devices until its last consumer left it here, or it is
            # deleted (CC-05).
            frees = not consumers and claim.metadata.deletion_timestamp is not None
            if frees and claim.status.allocation is not None and FINALIZER in (claim.metadata.finalizers or ()):
                claim = self._released(claim, await self._claims.deallocate(claim))
        if frees and claim.status.allocation is None and FINALIZER in (claim.metadata.finalizers or ()):
            if claim.metadata.deletion_timestamp is None and any(self._cluster.awaiting(claim)):
                return claim  # its next allocation needs the finalizer, and would conflict with the removal
            claim = await self._claims.release(claim)
        return claim

    async def _unreserve(self, claim: ResourceClaim, gone: list[str]) -> ResourceClaim:
        """Remove consumers, except PodGroups that got a pod while the server was asked about other consumers."""
        groups = [it for it in claim.status.reserved_for or () if it.uid in gone and is_pod_group(it)]
        late = {it.uid for it in groups if self._cluster.groups.needs(claim, it)}
        gone = [uid for uid in gone if uid not in late]
        if not gone:
            return claim
        with releasing(self._cluster, claim, self._context.queues.add) if groups else nullcontext():
            return self._released(claim, await self._claims.unreserve(claim, gone, are_gone=True))

    async def _end(self, claim: ResourceClaim, gone: list[str]) -> None:
        """Delete the claim and remove its finalizer, devices and all. Raises Conflict if it has changed."""
        if claim.metadata.deletion_timestamp is None:
            held = await self._deleted(claim)
        else:
            held = claim
            self._delayed_deletion.was_collected(claim)
        if held is not None:
            await self._claims.release(held, gone=gone)

    async def _deleted(self, claim: ResourceClaim) -> ResourceClaim | None:
        """Delete the claim unless the garbage collector has. Return it while its finalizer keeps it, or None.

        Raises Conflict if it has changed without being deleted.
        """
        try:
            held = await self._claims.delete(claim, unchanged=True)
        except Conflict:
            # A deletion by the collector is what usually came between; any other change is looked at anew.
            held = self._cluster.claims.get(claim.key, claim.metadata.uid)
            if held is None or held.metadata.deletion_timestamp is None:
                raise
            self._delayed_deletion.was_too_early(claim)
        else:
            self._delayed_deletion.was_needed(claim)
        return held

    def _released(self, before: ResourceClaim, after: ResourceClaim) -> ResourceClaim:
        # Taken from the answer: another writer may have removed consumers as well.
        kept = {consumer.uid for consumer in after.status.reserved_for or ()}
        gone = [consumer.name for consumer in before.status.reserved_for or () if consumer.uid not in kept]
        self._tell(after, gone, before.status.allocation if after.status.allocation is None else None)
        return after

    def _tell(self, claim: ResourceClaim, gone: list[str], freed: AllocationResult | None) -> None:
        devices = devices_in(freed) if freed is not None else []
        tell(logger, logging.INFO, "claim released", claim=claim.key, consumers=gone, freed=devices)

    def _ends_with_its_pod(self, claim: ResourceClaim) -> bool:
        """Return whether the claim is deleted with its allocation: its pod is gone, and it has no other owner.

        Its devices are in use until then. So a claim with devices that another scheduler uses is deallocated first, or
        that scheduler would refuse a pod for want of them.
        """
        owner = owning_pod(claim)
        # Only a pod whose deletion was seen: a pod that the watch has not brought yet looks the same.
        if owner is None or owner.uid not in self._cluster.pods.deleted or claim.metadata.finalizers != (FINALIZER,):
            return False
        if len(claim.metadata.owner_references or ()) > 1:
            return False  # the garbage collector asks for the others
        if claim.metadata.deletion_timestamp is not None:
            return True
        allocation = claim.status.allocation
        is_shared = allocation is not None and self._cluster.has_shared_driver(allocation)
        return bool(claim.status.reserved_for) and not is_shared

    async def _stays(self, claim: ResourceClaim, consumer: ResourceClaimConsumerReference) -> bool:
        """Return whether a consumer may still need the claim (6.1). Unknown consumers stay. Raises ReleaseFailed."""
        if is_pod_group(consumer):
            return await keeps_reservation(self._context, claim, consumer)
        # Another kind of consumer is somebody else's: only they know when it needs the claim no more.
        if consumer.api_group or consumer.resource != "pods":
            return True
        if consumer.uid in self._cluster.pods.deleted:
            return False
        pod: Pod | None = self._cluster.pods.get(f"{claim.metadata.namespace}/{consumer.name}", consumer.uid)
        if pod is None:
            # The consumer may be a pod that our watch has not reported yet: only the server knows.
            try:
                pod = await self._pods.read(claim.metadata.namespace, consumer.name)
            except NotFound:
                return False
            except DecodeError as error:
                text = f"its consumer pod {consumer.name} is malformed; correct or delete that pod: {error}"
                raise ReleaseFailed(text) from error
        return pod.metadata.uid == consumer.uid and not pod_is_done(pod)

    def _is_left_over(self, claim: ResourceClaim) -> bool:
        """Return whether its pod does not need it. Claims of unknown pods are left to the garbage collector."""
        owner = owning_pod(claim)
        if owner is None:
            return False
        pod = self._cluster.pods.get(f"{claim.metadata.namespace}/{owner.name}")
        return pod is not None and (pod.metadata.uid != owner.uid or pod_is_done(pod) or _made_in_vain(pod, claim))

    def _is_made_in_vain(self, claim: ResourceClaim) -> bool:
        """Return whether the operator made it for extended resources of a pod that was bound without it."""
        pod = self._cluster.owner_of(claim)
        is_ours = pod is not None and pod.spec.scheduler_name == self._cluster.scheduler_name
        return pod is not None and is_ours and _made_in_vain(pod, claim)


def _made_in_vain(pod: Pod, claim: ResourceClaim) -> bool:
    """Return whether the pod was bound with another claim for its extended resources, or without one.

    After a lost answer to the creation, the next attempt makes another claim.
    """
    if not pod.spec.node_name or not is_for_extended_resources(claim):
        return False
    return all(use.name != claim.metadata.name for use in claims_of_pod(pod))


PARKED_QUIET_SECONDS: Final = 1.0
"""Wait without another claim of the devices if no pod of another scheduler wants such devices."""
PARKED_REFUSED_SECONDS: Final = 15.0
"""Wait without another claim of the devices while such pods are pending, all refused by their scheduler."""
PARKED_LONGEST_SECONDS: Final = 60.0
"""Wait without another claim of the devices while such pods are pending that no scheduler has refused."""
PARKED_LOOK_SECONDS: Final = 1.0
"""Time between two looks at a parked claim."""
PARKED_NEWS_SECONDS: Final = 0.02
"""Share of the grace time between two looks whether another claim has got a freed device."""


class ParkedClaims:
    """Deallocates parked claims when their contest is over. ``handle`` is called until the claim is not parked.

    ``is_listed`` returns whether the cache has all claims as of a time; if not, it requests a list, which wakes the
    claim. Another scheduler writes a decision that it made before it saw ours within ``TimeSettings.grace``.
    """

    def __init__(self, context: ControllerContext, is_listed: Callable[[ResourceClaim, float], bool]) -> None:
        self._cluster, self._claims, self._is_listed = context.cluster, context.claims, is_listed
        self._clock, self._grace = context.clock, context.times.grace
        self._later, self._wake = context.queues.add_after, context.queues.add
        self._alone_since: dict[str, tuple[str, float]] = {}
        """The UID of each parked claim, by key, and the time since which no other claim has its devices."""
        self._asked_at: dict[str, float] = {}
        """The time at which a list was first asked for since then, by key."""

    async def handle(self, claim: ResourceClaim) -> None:
        """Deallocate the claim if its contest is over. Raises KubeError, NotFound and ClaimChanged."""
        lost, allocation = contest_of(claim), claim.status.allocation
        # A contest of another scheduler with this operator's code is ended by that one.
        if lost is None or allocation is None or lost.name != self._cluster.scheduler_name:
            self.ended(claim.key)
            return
        # Never more often than news can come: a loop of looks would only cost time.
        if seconds := self._seconds_left(claim, allocation):
            self._asked_at.pop(claim.key, None)
            self._later(Key("release", claim.key), max(seconds, self._grace * PARKED_NEWS_SECONDS))
        # A list counts from its request: one that takes longer than a moment would always be too old when it comes.
        elif self._is_listed(claim, self._asked_at.setdefault(claim.key, self._clock()) - PARKED_QUIET_SECONDS):
            self.ended(claim.key)
            await self._give_back(claim, allocation, lost)
        else:
            self._later(Key("release", claim.key), PARKED_LOOK_SECONDS)  # the list brings it back earlier

    def ended(self, key: str) -> None:
        """Note that the claim is not parked, or gone."""
        self._alone_since.pop(key, None)
        self._asked_at.pop(key, None)

    def _seconds_left(self, claim: ResourceClaim, allocation: AllocationResult) -> float:
        """Return the seconds until the next look, or 0 if the claim may be deallocated."""
        now, uid = self._clock(), claim.metadata.uid
        # The other claim still has a device: given back now, kube-scheduler would take that for free while a pod runs
        # with it.
        if self._rival(claim, allocation) is not None:
            self.ended(claim.key)
            return PARKED_LOOK_SECONDS
        # A successor of the name has a contest of its own.
        of, since = self._alone_since.get(claim.key, ("", now))
        if of != uid:
            since = now
            self._asked_at.pop(claim.key, None)
        self._alone_since[claim.key] = uid, since
        alone = now - since
        # A scheduler that is about to decide could take the device in the moment in which it comes free.
        others = self._cluster.others_decide(frozenset(device.driver for device in _devices(allocation)))
        seconds = (
            PARKED_LONGEST_SECONDS
            if others.queued
            else PARKED_REFUSED_SECONDS
            if others.waiting
            else PARKED_QUIET_SECONDS
        )
        return max(0.0, min(seconds - alone, PARKED_LOOK_SECONDS))

    def _rival(self, claim: ResourceClaim, allocation: AllocationResult) -> ResourceClaim | None:
        return next(self._cluster.rivals(claim, _devices(allocation)), None)

    def _taker(self, claim: ResourceClaim, allocation: AllocationResult) -> ResourceClaim | None:
        """Return a claim of another scheduler that has got one of the devices, or None.

        It is None as well if a claim of this operator has got a device: that was written after the deallocation.
        """
        holders = list(self._cluster.sharers(claim, _devices(allocation)))
        if any(map(self._cluster.is_only_for_ours, holders)):
            return None
        return next(iter(holders), None)

    async def _give_back(
        self, claim: ResourceClaim, allocation: AllocationResult, lost: ResourceClaimConsumerReference
    ) -> None:
        unparking, uid = self._cluster.unparking, claim.metadata.uid
        # Until it is certain that nobody took the device, no pod of ours may use it, and the claim must not be parked
        # again.
        unparking.add(uid)
        try:
            left = await self._claims.deallocate(claim, lost.uid)
            tell(
                logger,
                logging.INFO,
                "claim released",
                claim=claim.key,
                because="a contest is over",
                freed=lambda: devices_in(allocation),
            )
            # kube-scheduler may have decided just before it saw the deallocation, and write within the grace time.
            ends = self._clock() + self._grace
            while self._clock() < ends:
                await asyncio.sleep(self._grace * PARKED_NEWS_SECONDS)
                if (rival := self._taker(claim, allocation)) is not None:
                    await self._take_again(left, allocation, rival)
                    return
        finally:
            unparking.discard(uid)
            self._wake(self._users(claim))

    async def _take_again(self, claim: ResourceClaim, allocation: AllocationResult, rival: ResourceClaim) -> None:
        """Allocate the claim again, so that the other scheduler counts the devices as in use, as they are."""
        again = contest(self._cluster.scheduler_name, rival)
        with suppress(NotFound, ClaimChanged):  # the pod and its claim are gone
            await self._claims.allocate(claim, allocation, again)
            because = f"claim {rival.key} took a device in the moment in which it came free"
            tell(logger, logging.WARNING, "claim parked", claim=claim.key, because=because)

    def _users(self, claim: ResourceClaim) -> Keys:
        """Return the keys to wake: the claim, pods that use it, and its pod, for which a new claim is made."""
        waiting = [Key("placement", pod.key) for pod in self._cluster.awaiting(claim)]
        owner = owning_pod(claim)
        made = [Key("templates", f"{claim.metadata.namespace}/{owner.name}")] if owner is not None else []
        return (Key("release", claim.key), *made, *waiting)


def _devices(allocation: AllocationResult) -> Sequence[DeviceId]:
    return [DeviceId.of(result) for result in allocation.results if not result.admin_access]
