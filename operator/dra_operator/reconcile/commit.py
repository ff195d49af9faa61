"""Carrying out a plan: take its devices, write, bind; take back what failed (scheduling.md 4.5 to 4.7).

The ledger holds each allocation until its write is over. A write that was refused is over; a write that ended in
silence (timeout, broken connection, a server error) may have happened, so its devices stay taken until the server
has been asked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from dra_api.core import Pod
from dra_api.references import consumer_of, is_reserved_for
from dra_api.resource import ResourceClaim
from dra_kube import ApiError, Conflict, KubeError, ServerError

from dra_operator.cluster import Cluster, DeviceTaken, Keys
from dra_operator.kube import ClaimChanged, ClaimWriter, PodWriter
from dra_operator.placement import Plan, PodClaim

from .errors import CommitFailed

logger = logging.getLogger(__name__)


class Commit:
    """One plan on its way to the server. Making it takes the devices and the room; ``write`` does the rest.

    ``wake`` gets the keys of those who may use what a failed commit gives back.
    """

    def __init__(self, cluster: Cluster, claims: ClaimWriter, pods: PodWriter, wake: Callable[[Keys], None]) -> None:
        self._cluster, self._claims, self._pods, self._wake = cluster, claims, pods, wake
        self._reserved: list[ResourceClaim] = []
        self._unknown: set[str] = set()

    def take(self, pod: Pod, pod_claims: Sequence[PodClaim], plan: Plan) -> None:
        """Take everything or nothing. Raises DeviceTaken when the plan gives away what is not free."""
        self._pod, self._pod_claims, self._plan = pod, pod_claims, plan
        try:
            for _, claim in pod_claims:
                allocation = plan.allocations.get(claim.metadata.uid)
                if allocation is not None:
                    self._cluster.ledger.take(claim, allocation, pod.key)
        except DeviceTaken:
            self._give_back_devices()
            raise
        self._cluster.assume_bound(pod, plan.node)

    async def write(self, may_bind: Callable[[Sequence[ResourceClaim]], bool]) -> bool:
        """Allocations, reservations, binding; False if the claims as written are not ready for the binding.

        Raises CommitFailed, after everything was given back that can be.
        """
        try:
            claims = [await self._reserve(entry, claim) for entry, claim in self._pod_claims]
            if not may_bind(claims):
                self._wake(self._cluster.forget_bound(self._pod.key))
                return False
            await self._bind()
            return True
        except (KubeError, ClaimChanged) as error:
            await self._unreserve(error)
            raise CommitFailed(f"pod {self._pod.key} to node {self._plan.node}: {error}") from error

    async def _reserve(self, entry: str, claim: ResourceClaim) -> ResourceClaim:
        uid = claim.metadata.uid
        allocation = self._plan.allocations.get(uid)
        if allocation is None and is_reserved_for(self._pod, claim):
            return claim
        pod_entry = next(item for item in self._pod.spec.resource_claims or () if item.name == entry)
        try:
            written = await self._claims.commit(claim, allocation, consumer_of(self._pod, None, pod_entry))
        except KubeError as error:
            if not is_answer(error):
                self._unknown.add(uid)
            raise
        self._cluster.ledger.settle(uid)
        self._reserved.append(written)
        return written

    async def _bind(self) -> None:
        try:
            await self._pods.bind(self._pod, self._plan.node)
        except Conflict:
            # Assigned already: by a binding of ours whose answer was lost, or by somebody else.
            pod = await self._pods.read(self._pod.metadata.namespace, self._pod.metadata.name)
            if pod.metadata.uid != self._pod.metadata.uid or not pod.spec.node_name:
                raise

    async def _unreserve(self, error: Exception) -> None:
        """The reverse of everything done (4.6). Reservations stay if the pod may be bound: it would need them."""
        others = (*self._give_back_devices(), *self._cluster.forget_bound(self._pod.key))
        self._wake(tuple(key for key in others if key.object != self._pod.key))  # this pod waits for its back-off
        if isinstance(error, KubeError) and not is_answer(error):
            return
        for claim in self._reserved:
            try:
                await self._claims.release(claim, {self._pod.metadata.uid}, deallocate=False)
            except (KubeError, ClaimChanged) as failure:
                logger.warning(
                    "claim %s stays reserved for pod %s until it is tried again: %s", claim.key, self._pod.key, failure
                )

    def _give_back_devices(self) -> Keys:
        for entry in self._cluster.ledger.in_flight_for(self._pod.key):
            if entry.claim.metadata.uid not in self._unknown:
                self._cluster.ledger.settle(entry.claim.metadata.uid)
        return self._cluster.wanting_devices()


def is_answer(error: KubeError) -> bool:
    """Whether the server said no. Otherwise (timeout, broken connection, 5xx) it may have done what was asked."""
    return isinstance(error, ApiError) and not isinstance(error, ServerError)
