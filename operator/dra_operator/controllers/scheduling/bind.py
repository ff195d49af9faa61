"""Binds a pod to its node."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from dra_api.core import Pod
from dra_api.resource import ResourceClaim
from dra_kube import Conflict, NotFound
from dra_kube.spans import span

from dra_operator.cache import Cluster
from dra_operator.controllers.claims.recorded_names import check_recorded
from dra_operator.controllers.errors import BoundElsewhere, PodVanished
from dra_operator.controllers.logbook import tell
from dra_operator.kube import EventReason, PodWriter

from .bind_step import News

logger = logging.getLogger(__name__)

BIND_ATTEMPTS = 3


class Bind:
    """Binds pods of our scheduler name."""

    def __init__(self, cluster: Cluster, pods: PodWriter) -> None:
        self._cluster, self._pods = cluster, pods

    def action(self, node: str) -> str:
        """See ``BindStep``."""
        return f"bind the pod to node {node}"

    def news(self, pod: Pod, node: str) -> News:
        """See ``BindStep``."""
        return News(pod, EventReason.SCHEDULED, f"Successfully assigned {pod.key} to {node}")

    async def write(self, pod: Pod, node: str, claims: Sequence[ResourceClaim]) -> None:
        """See ``BindStep``. Raises BoundElsewhere, PodVanished and ClaimChanged."""
        pod = self._cluster.pods.get(pod.key, pod.metadata.uid) or pod
        with span("bind", pod=pod.key, node=node):
            await self._bind(pod, node, claims)
        self._cluster.assume_bound(pod)
        tell(logger, logging.INFO, "pod bound", pod=pod.key, node=node)

    async def _bind(self, pod: Pod, node: str, claims: Sequence[ResourceClaim]) -> None:
        """Bind this version of the pod, or the newer one that the server has, if that records its claims as well."""
        for attempt in range(1, BIND_ATTEMPTS + 1):
            try:
                await self._pods.bind(pod, node)
            except NotFound as error:
                raise PodVanished(str(error)) from error
            except Conflict as conflict:
                current = await self._unless_bound(pod, node, conflict)
                if current is None:
                    return
                if attempt == BIND_ATTEMPTS:
                    raise
                check_recorded(current, claims)
                pod = current
            else:
                return

    async def _unless_bound(self, pod: Pod, node: str, conflict: Conflict) -> Pod | None:
        """The newer version of the pod; None if it is assigned to the node already.

        That may be by a binding of ours whose answer was lost. Another writer may have assigned it elsewhere.
        """
        try:
            current = await self._pods.read(pod.metadata.namespace, pod.metadata.name)
        except NotFound as error:
            raise PodVanished(str(error)) from error
        if current.metadata.uid != pod.metadata.uid:
            raise PodVanished(f"pod {pod.key} was replaced by another one of the same name")
        if current.spec.node_name == node:
            return None
        if current.spec.node_name:
            elsewhere = f"another writer bound pod {pod.key} to node {current.spec.node_name}, not {node}"
            raise BoundElsewhere(elsewhere) from conflict
        if current.metadata.deletion_timestamp is not None:
            raise PodVanished(f"pod {pod.key} is being deleted") from conflict
        if current.metadata.resource_version == pod.metadata.resource_version:
            raise conflict
        return current
