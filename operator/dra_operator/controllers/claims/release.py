"""Releases a claim: drops stale reservations, deallocates it, removes the finalizer, deletes generated claims.

The controller ``release``; claim-controller.md sections 6 and 7. Each step decides on the claim as the server has it,
and can be repeated.

A claim in use that lost its finalizer gets it back (``_protect``): without it the claim could be deleted while
its pods run, and its devices would look free. A writer that takes it off again and again meets growing pauses.

Immediate claims keep their devices (``_keep_immediate``), and give them back when they are deleted or not immediate:

=============================================  ==================================================================
The claim is                                   What is done
=============================================  ==================================================================
immediate, without devices                     it is asked for a decision (``place``)
immediate, with devices                        our finalizer takes the place of the built-in one, in one write
deleted, or not immediate, without consumers   its devices are given back, then our finalizer is removed
not immediate any more, with consumers         the built-in finalizer takes the place of ours
deleted, with consumers                        nothing: it waits for them
=============================================  ==================================================================

The built-in finalizer comes with an allocation that a scheduler made for a pod. A fault of the annotation is reported
by an event, once per claim and fault.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext, suppress

from dra_api.codec import DecodeError
from dra_api.core import Pod
from dra_api.references import (
    claims_of_pod,
    is_for_extended_resources,
    is_pod_group,
    owning_pod,
    pod_is_done,
)
from dra_api.resource import FINALIZER, AllocationResult, ResourceClaim, ResourceClaimConsumerReference
from dra_kube import Conflict, NotFound

from dra_operator.cache import Key, is_in_use, is_unprotected
from dra_operator.controllers.claims.delayed_deletion import DelayedDeletion
from dra_operator.controllers.claims.group import keeps_reservation, releasing
from dra_operator.controllers.claims.parked_claims import ParkedClaims
from dra_operator.controllers.context import ControllerContext
from dra_operator.controllers.errors import ReleaseFailed
from dra_operator.controllers.logbook import devices_in, tell
from dra_operator.controllers.memory import Announced
from dra_operator.kube import ClaimChanged, ClaimWriter, EventReason
from dra_operator.scheduling.state import HOLD, annotation_fault, is_immediate, placeholder_key


async def discard(claims: ClaimWriter, claim: ResourceClaim, consumer: str) -> None:
    """One step after the other; a repetition continues where the last one stopped.

    Raises ClaimChanged if another consumer reserved the claim.
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
        """Keep the devices of an immediate claim, or have it get some. Return the claim as it is afterwards.

        Raises NotFound and ClaimChanged when it is not there any more.
        """
        self._tell_of_annotation(claim)
        finalizers = claim.metadata.finalizers or ()
        if is_immediate(claim):
            if claim.status.allocation is None:
                self._context.wake([Key("placement", placeholder_key(claim))])
            elif FINALIZER in finalizers or HOLD not in finalizers:
                # The built-in finalizer came with a scheduler's allocation; kube-controller-manager would take it off
                # with the last consumer, devices and all.
                return await self._claims.swap_finalizers(claim, FINALIZER, HOLD)
            return claim
        if HOLD not in finalizers:
            return claim
        if claim.status.reserved_for:
            is_deleted = claim.metadata.deletion_timestamp is not None
            return claim if is_deleted else await self._claims.swap_finalizers(claim, HOLD, FINALIZER)
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
        """Put the finalizer back on a claim in use that lost it. Return the claim as it is afterwards.

        Raises NotFound and ClaimChanged when it is not there any more.
        """
        what, pauses = f"finalizer {claim.metadata.uid}", self._context.pauses
        if not is_unprotected(self._cluster, claim) or pauses.puts_off(what, Key("release", claim.key)):
            return claim
        pauses.did(what)
        after = await self._claims.swap_finalizers(claim, "", FINALIZER)
        if is_unprotected(self._cluster, after):
            lost = "a webhook or admission policy removes it: exempt ResourceClaims in use from it"
            tell(logger, logging.WARNING, "claim in use has no finalizer", claim=claim.key, because=lost)
        else:
            tell(logger, logging.WARNING, "finalizer restored on claim in use", claim=claim.key, finalizer=FINALIZER)
        return after

    async def _release(self, claim: ResourceClaim) -> ResourceClaim | None:
        """Drop consumers that no longer need the claim. Devices are freed only when the last consumer is removed
        (CC-05).

        None: the claim ended, or the garbage collector has a moment to delete it.
        """
        consumers = claim.status.reserved_for or ()
        gone = [consumer.uid for consumer in consumers if not await self._stays(claim, consumer)]
        if len(gone) == len(consumers) and self._ends_with_its_pod(claim):
            if claim.metadata.deletion_timestamp is None and self._delayed_deletion.has_time(claim):
                return None
            with suppress(Conflict):  # changed meanwhile: the patches below mind only what they rely on
                await self._end(claim, gone)
                self._delayed_deletion.ended(claim.key)
                self._tell(claim, [consumer.name for consumer in consumers], claim.status.allocation)
                return None
        if gone:
            claim, frees = await self._unreserve(claim, gone), True
        else:
            frees = not consumers and claim.metadata.deletion_timestamp is not None
            if frees and claim.status.allocation is not None and FINALIZER in (claim.metadata.finalizers or ()):
                claim = self._released(claim, await self._claims.deallocate(claim))
        if frees and claim.status.allocation is None and FINALIZER in (claim.metadata.finalizers or ()):
            if claim.metadata.deletion_timestamp is None and any(self._cluster.awaiting(claim)):
                return claim  # its next allocation needs the finalizer, and would conflict with the removal
            claim = await self._claims.release(claim)
        return claim

    async def _unreserve(self, claim: ResourceClaim, gone: list[str]) -> ResourceClaim:
        """Take consumers off, but no PodGroup that got a pod while others were asked for."""
        groups = [it for it in claim.status.reserved_for or () if it.uid in gone and is_pod_group(it)]
        late = {it.uid for it in groups if self._cluster.groups.needs(claim, it)}
        gone = [uid for uid in gone if uid not in late]
        if not gone:
            return claim
        with releasing(self._cluster, claim, self._context.wake) if groups else nullcontext():
            return self._released(claim, await self._claims.unreserve(claim, gone, are_gone=True))

    async def _end(self, claim: ResourceClaim, gone: list[str]) -> None:
        """Have the claim end with its devices, by one write after its deletion. Raises Conflict if it has changed."""
        if claim.metadata.deletion_timestamp is None:
            held = await self._deleted(claim)
        else:
            held = claim
            self._delayed_deletion.was_collected(claim)
        if held is not None:
            await self._claims.release(held, gone=gone)

    async def _deleted(self, claim: ResourceClaim) -> ResourceClaim | None:
        """Return the claim as its finalizer holds it, deleted here or by the collector; None if gone. May raise
        Conflict."""
        try:
            held = await self._claims.delete(claim, unchanged=True)
        except Conflict:
            held = self._cluster.claims.get(claim.key, claim.metadata.uid)
            if held is None or held.metadata.deletion_timestamp is None:
                raise
            self._delayed_deletion.was_too_early(claim)
        else:
            self._delayed_deletion.was_needed(claim)
        return held

    def _released(self, before: ResourceClaim, after: ResourceClaim) -> ResourceClaim:
        kept = {consumer.uid for consumer in after.status.reserved_for or ()}
        gone = [consumer.name for consumer in before.status.reserved_for or () if consumer.uid not in kept]
        self._tell(after, gone, before.status.allocation if after.status.allocation is None else None)
        return after

    def _tell(self, claim: ResourceClaim, gone: list[str], freed: AllocationResult | None) -> None:
        devices = devices_in(freed) if freed is not None else []
        tell(logger, logging.INFO, "claim released", claim=claim.key, consumers=gone, freed=devices)

    def _ends_with_its_pod(self, claim: ResourceClaim) -> bool:
        """Return whether it is to be deleted whole: it was made for a pod that is gone, and has no other owner.

        Its devices stay taken until then. Another scheduler that waits for them would tell its pod that there are none.
        """
        owner = owning_pod(claim)
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
        """Return whether it was made for a pod that is done with it; the garbage collector handles unknown pods."""
        owner = owning_pod(claim)
        if owner is None:
            return False
        pod = self._cluster.pods.get(f"{claim.metadata.namespace}/{owner.name}")
        return pod is not None and (pod.metadata.uid != owner.uid or pod_is_done(pod) or _made_in_vain(pod, claim))

    def _is_made_in_vain(self, claim: ResourceClaim) -> bool:
        """Return whether placement made it for a pod of ours that then got its node without it."""
        pod = self._cluster.owner_of(claim)
        is_ours = pod is not None and pod.spec.scheduler_name == self._cluster.scheduler_name
        return pod is not None and is_ours and _made_in_vain(pod, claim)


def _made_in_vain(pod: Pod, claim: ResourceClaim) -> bool:
    """Return whether the pod got its node with another claim for its extended resources, or without any.

    That happens after a lost answer to the creation, because the next attempt makes another one.
    """
    if not pod.spec.node_name or not is_for_extended_resources(claim):
        return False
    return all(use.name != claim.metadata.name for use in claims_of_pod(pod))
