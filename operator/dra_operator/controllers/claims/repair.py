"""Records the allocated claim in a pod whose status records another one; see ``cache.duplicates``.

The cache is only the occasion: the repair reads the pod and the claims again before it changes anything. It records
first and deletes then, so that the recorded claim always exists.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from dra_api.core import Pod

from dra_operator.cache import Cluster, duplicates
from dra_operator.controllers.logbook import tell
from dra_operator.kube import ClaimWriter, PodWriter

logger = logging.getLogger(__name__)


class ClaimRepair:
    """``handle`` one pod. Raises KubeError.

    ``pod_seen`` is called with a pod and what a read says of it, which the watch then does not bring any more.
    """

    def __init__(self, cluster: Cluster, claims: ClaimWriter, pods: PodWriter) -> None:
        self._cluster, self._claims, self._pods = cluster, claims, pods
        self.pod_seen: Callable[[Pod | None, Pod], None] = lambda _, __: None

    async def handle(self, pod: Pod) -> Pod:
        """The pod, with the claims recorded that count; the superfluous ones are deleted."""
        if not list(duplicates(pod, self._cluster.claims_owned_by(pod))):
            return pod
        uid = pod.metadata.uid
        for claim in list(self._cluster.claims_owned_by(pod)):
            await self._claims.read(claim)
        known, pod = pod, await self._pods.read(pod.metadata.namespace, pod.metadata.name)
        self.pod_seen(known, pod)
        if pod.metadata.uid != uid or pod.metadata.deletion_timestamp is not None:
            return pod
        found = list(duplicates(pod, self._cluster.claims_owned_by(pod)))
        right = {item.entry: item.keep.metadata.name for item in found if not item.is_recorded}
        if right:
            tell(logger, logging.INFO, "pod did not record its claims", pod=pod.key, claims=list(right.values()))
            pod = await self._pods.record_claims(pod, right)
        for item in found:
            for claim in item.superfluous:
                tell(logger, logging.INFO, "superfluous claim", claim=claim.key, pod=pod.key, entry=item.entry)
                await self._claims.delete(claim)
        return pod
