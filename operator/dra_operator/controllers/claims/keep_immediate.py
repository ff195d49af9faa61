"""Immediate claims keep their devices, and give them back when they are deleted or not immediate any more.

=============================================  ==================================================================
The claim is                                   What is done
=============================================  ==================================================================
immediate, without devices                     it is asked for a decision (``place``)
immediate, with devices                        our finalizer takes the place of the built-in one, in one write
deleted, or not immediate, without consumers   its devices are given back, then our finalizer is removed
not immediate any more, with consumers         the built-in finalizer takes the place of ours
deleted, with consumers                        nothing: it waits for them
=============================================  ==================================================================

The built-in finalizer comes with an allocation that a scheduler made for a pod. Each step decides on the claim as the
server has it, and can be repeated. What is wrong with the annotation goes into an event, once per claim and fault.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from dra_api.resource import FINALIZER, ResourceClaim

from dra_operator.cache import Key
from dra_operator.controllers.logbook import devices_in, tell
from dra_operator.controllers.memory import Announced
from dra_operator.kube import ClaimWriter, EventReason, EventRecorder
from dra_operator.scheduling.state import HOLD, annotation_fault, is_immediate, placeholder_key

logger = logging.getLogger(__name__)


class ClaimHold:
    """``handle`` one claim. ``wake`` gets the key for a decision."""

    def __init__(self, claims: ClaimWriter, events: EventRecorder, wake: Callable[[Sequence[Key]], None]) -> None:
        self._claims, self._events, self._wake = claims, events, wake
        self._announced = Announced()

    async def handle(self, claim: ResourceClaim) -> ResourceClaim:
        """The claim as it is afterwards. Raises NotFound and ClaimChanged when it is not there any more."""
        self._tell_of_annotation(claim)
        finalizers = claim.metadata.finalizers or ()
        if is_immediate(claim):
            if claim.status.allocation is None:
                self._wake([Key("placement", placeholder_key(claim))])
            elif FINALIZER in finalizers or HOLD not in finalizers:
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
            self._events.post(claim, EventReason.FAILED_ALLOCATION, fault)
