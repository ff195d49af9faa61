"""Which reservations for PodGroups are still needed, and keeps pods from relying on one that is being taken off.

A claim stays reserved for a group while a pod of the group is active, known here or on the server: the pods of a group
may come one after the other. Up to Kubernetes 1.36 it stays until the group is gone (claim-controller.md 6.1,
K37-WL-10). DEVIATE: after the end of its group a claim stays reserved for the pods that still run with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dra_api.codec import DecodeError
from dra_api.releases.release import Release
from dra_api.resource import ResourceClaim, ResourceClaimConsumerReference
from dra_kube import NotFound

from dra_operator.cache import Cluster, Key, Keys
from dra_operator.controllers.errors import ReleaseFailed
from dra_operator.kube import PodGroupWriter


class GroupReservations:
    """``wake`` has keys looked at."""

    def __init__(self, cluster: Cluster, groups: PodGroupWriter, wake: Callable[[Keys], None]) -> None:
        self._cluster, self._groups, self.wake = cluster, groups, wake

    async def stays(self, claim: ResourceClaim, group: ResourceClaimConsumerReference) -> bool:
        """Whether a pod may still need the reservation. Raises ReleaseFailed."""
        features = self._cluster.features
        if not features.workload_resource_claims or self._cluster.groups.needs(claim, group):
            return True
        if not await self._exists(claim.metadata.namespace, group):
            return False
        if features.release < Release.V1_37:
            return True
        return await self._groups.has_active_pods(claim.metadata.namespace, group.name)

    async def _exists(self, namespace: str, group: ResourceClaimConsumerReference) -> bool:
        groups = self._cluster.groups.store
        if group.uid in groups.deleted:
            return False
        if groups.get(f"{namespace}/{group.name}", group.uid) is not None:
            return True
        try:
            return (await self._groups.read(namespace, group.name)).metadata.uid == group.uid
        except NotFound:
            return False
        except DecodeError as error:
            text = f"its consumer PodGroup {group.name} is malformed; correct or delete that group: {error}"
            raise ReleaseFailed(text) from error


@contextmanager
def releasing(cluster: Cluster, claim: ResourceClaim, wake: Callable[[Keys], None]) -> Iterator[None]:
    """Inside the block, in which the claim's reservation for a PodGroup ends, no pod is placed with it."""
    cluster.groups.releasing.add(claim.metadata.uid)
    try:
        yield
    finally:
        cluster.groups.releasing.discard(claim.metadata.uid)
        users = cluster.pods_by_claim.keys(claim.key)
        wake(tuple(Key("placement", pod) for pod in users if pod in cluster.waiting))
