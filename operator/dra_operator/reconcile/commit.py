"""Carrying out a plan: take its devices, write, bind; take back what failed (scheduling.md 4.5 to 4.7).

The ledger holds each allocation until its write is over. A write that was refused is over; a write that ended in
silence (timeout, broken connection, a server error) may have happened, so its devices stay taken until the server
has been asked.

The claim for extended resources is made last: created, allocated and reserved, recorded in the pod's status. It has
no name before it exists, so nobody can ask what became of a creation that ended in silence. What is half made when a
commit ends, for whatever reason, is found by its owner and its annotation: by the next attempt, which deletes it; by
the claim reconciler when the pod got its node with another one, or is done.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from dra_api.core import Pod, PodExtendedResourceClaimStatus
from dra_api.references import consumer_of, is_reserved_for, pod_as_consumer
from dra_api.resource import AllocationResult, ResourceClaim, ResourceClaimConsumerReference
from dra_kube import ApiError, Conflict, KubeError, ServerError

from dra_operator.cluster import Cluster, DeviceTaken, Key, Keys
from dra_operator.kube import ClaimChanged, ClaimWriter, PodWriter
from dra_operator.placement import ExtendedClaim, Plan, PodClaim

from .claim_body import claim_for_extended_resources
from .errors import ClaimRefused, CommitFailed
from .metrics import PlacementMetrics

logger = logging.getLogger(__name__)


class Writing(NamedTuple):
    """What commits write with, and where they count it."""

    claims: ClaimWriter
    pods: PodWriter
    metrics: PlacementMetrics


class Commit:
    """One plan on its way to the server. Making it takes the devices and the room; ``write`` does the rest.

    ``wake`` gets the keys of those who may use what a failed commit gives back.
    """

    def __init__(self, cluster: Cluster, writing: Writing, wake: Callable[[Keys], None]) -> None:
        self._cluster, self._wake = cluster, wake
        self._claims, self._pods, self._metrics = writing
        self._reserved: list[ResourceClaim] = []
        self._extended: ResourceClaim | None = None
        self._unknown: set[str] = set()

    def take(self, pod: Pod, pod_claims: Sequence[PodClaim], plan: Plan) -> None:
        """Take everything or nothing. Raises DeviceTaken when the plan gives away what is not free."""
        self._pod, self._pod_claims, self._plan = pod, pod_claims, plan
        self._extended = next((claim for entry, claim in pod_claims if entry is None), None)
        claims = [claim for _, claim in pod_claims]
        if plan.extended is not None:
            claims.append(plan.extended.claim)
        try:
            for claim in claims:
                allocation = plan.allocations.get(claim.metadata.uid)
                if allocation is not None:
                    self._cluster.ledger.take(claim, allocation, pod.key)
        except DeviceTaken:
            self._give_back_devices()
            raise
        self._cluster.assume_bound(pod, plan.node, plan.served)

    async def write(self, may_bind: Callable[[Sequence[ResourceClaim]], bool]) -> bool:
        """Allocations, reservations, binding; False if the claims as written are not ready for the binding.

        Raises CommitFailed, after everything was given back that can be.
        """
        try:
            claims = [await self._reserve(entry, claim) for entry, claim in self._pod_claims]
            claims += await self._serve_extended_resources()
            if not may_bind(claims):
                self._wake(self._cluster.forget_bound(self._pod.key))
                return False
            await self._bind()
            return True
        except ClaimRefused:
            await self._unreserve()
            raise
        except (KubeError, ClaimChanged) as error:
            if isinstance(error, ClaimChanged) or is_answer(error):
                await self._unreserve()
            else:
                self._give_back()
            raise CommitFailed(f"pod {self._pod.key} to node {self._plan.node}: {error}") from error

    async def _reserve(self, entry: str | None, claim: ResourceClaim) -> ResourceClaim:
        allocation = self._plan.allocations.get(claim.metadata.uid)
        if allocation is None and is_reserved_for(self._pod, claim):
            return claim
        pod_entry = next(item for item in self._pod.spec.resource_claims or () if item.name == entry)
        written = await self._allocate(claim, allocation, consumer_of(self._pod, None, pod_entry))
        self._reserved.append(written)
        return written

    async def _allocate(
        self, claim: ResourceClaim, allocation: AllocationResult | None, consumer: ResourceClaimConsumerReference
    ) -> ResourceClaim:
        try:
            written = await self._claims.commit(claim, allocation, consumer)
        except KubeError as error:
            if not is_answer(error):
                self._unknown.add(claim.metadata.uid)
            raise
        self._wake(self._cluster.settle(claim.metadata.uid))
        return written

    async def _serve_extended_resources(self) -> list[ResourceClaim]:
        """The claim that the plan asks for, if it does, and the status that tells the kubelet about it (7.3)."""
        plan = self._plan
        if plan.extended is None:
            if self._extended is None and self._pod.status.extended_resource_claim_status is not None:
                await self._pods.record_extended(self._pod, None)  # of an attempt for a node where devices served
            return []
        self._extended = made = await self._create(plan.extended)
        allocation = plan.allocations[plan.extended.claim.metadata.uid]
        written = await self._allocate(made, allocation, pod_as_consumer(self._pod))
        status = PodExtendedResourceClaimStatus(
            resource_claim_name=made.metadata.name, request_mappings=plan.extended.mappings
        )
        await self._pods.record_extended(self._pod, status)
        return [written]

    async def _create(self, extended: ExtendedClaim) -> ResourceClaim:
        """The claim now exists and stands in the ledger for the one that was thought up.

        Raises ClaimRefused; when the answer is lost the devices are free again, since nobody has allocated them.
        """
        try:
            made = await self._claims.create(claim_for_extended_resources(self._pod, extended.claim.spec))
        except KubeError as error:
            self._metrics.created(success=False)
            if not is_answer(error):
                raise
            raise ClaimRefused(f"create claim for extended resources of pod {self._pod.key}: {error}") from error
        self._metrics.created(success=True)
        self._cluster.ledger.follow(extended.claim.metadata.uid, made)
        return made

    async def _bind(self) -> None:
        try:
            await self._pods.bind(self._pod, self._plan.node)
        except Conflict:
            # Assigned already: by a binding of ours whose answer was lost, or by somebody else.
            pod = await self._pods.read(self._pod.metadata.namespace, self._pod.metadata.name)
            if pod.metadata.uid != self._pod.metadata.uid or not pod.spec.node_name:
                raise

    async def _unreserve(self) -> None:
        """The reverse of everything done (4.6), unless the pod may be bound: then it would need its claims."""
        self._give_back()
        uid = self._pod.metadata.uid
        for claim in self._reserved:
            await self._try_to_undo(claim, self._claims.release(claim, {uid}, deallocate=False))
        if self._extended is not None:
            await self._try_to_undo(self._extended, self._claims.discard(self._extended, uid))

    async def _try_to_undo(self, claim: ResourceClaim, undoing: Awaitable[object]) -> None:
        try:
            await undoing
        except (KubeError, ClaimChanged) as failure:
            logger.warning("claim %s stays with pod %s until it is tried again: %s", claim.key, self._pod.key, failure)

    def _give_back(self) -> None:
        others = (*self._give_back_devices(), *self._cluster.forget_bound(self._pod.key))
        self._wake(tuple(key for key in others if key.object != self._pod.key))  # this pod waits for its back-off

    def _give_back_devices(self) -> Keys:
        others: list[Key] = []
        for entry in self._cluster.ledger.in_flight_for(self._pod.key):
            if entry.claim.metadata.uid not in self._unknown:
                others += self._cluster.settle(entry.claim.metadata.uid)
        return (*others, *self._cluster.wanting_devices())


def is_answer(error: KubeError) -> bool:
    """Whether the server said no. Otherwise (timeout, broken connection, 5xx) it may have done what was asked."""
    return isinstance(error, ApiError) and not isinstance(error, ServerError)
