"""Binds a pod to its node."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from dra_api.core import Pod
from dra_api.resource import ResourceClaim
from dra_kube import Conflict, NotFound

from dra_operator.cluster import Cluster
from dra_operator.kube import EventReason, PodWriter

from .ending import News
from .errors import BoundElsewhere, PodVanished
from .logbook import tell

logger = logging.getLogger(__name__)


class Bind:
    """Binds pods of our scheduler name."""

    def __init__(self, cluster: Cluster, pods: PodWriter) -> None:
        self._cluster, self._pods = cluster, pods

    def step(self, node: str) -> str:
        """See ``Ending``."""
        return f"bind the pod to node {node}"

    def news(self, pod: Pod, node: str) -> News:
        """See ``Ending``."""
        return News(pod, EventReason.SCHEDULED, f"Successfully assigned {pod.key} to {node}")

    async def write(self, pod: Pod, node: str, claims: Sequence[ResourceClaim]) -> None:
        """See ``Ending``. Raises BoundElsewhere and PodVanished."""
        try:
            await self._pods.bind(pod, node)
        except NotFound as error:
            raise PodVanished(str(error)) from error
        except Conflict as conflict:
            await self._check_bound_to(pod, node, conflict)
        self._cluster.assume_bound(pod)
        tell(logger, logging.INFO, "pod bound", pod=pod.key, node=node)

    async def _check_bound_to(self, pod: Pod, node: str, conflict: Conflict) -> None:
        """The pod may be assigned already: by a binding of ours whose answer was lost, or by another writer."""
        try:
            current = await self._pods.read(pod.metadata.namespace, pod.metadata.name)
        except NotFound as error:
            raise PodVanished(str(error)) from error
        if current.metadata.uid != pod.metadata.uid:
            raise PodVanished(f"pod {pod.key} was replaced by another one of the same name")
        if not current.spec.node_name:
            if current.metadata.deletion_timestamp is not None:
                raise PodVanished(f"pod {pod.key} is being deleted") from conflict
            raise conflict
        if current.spec.node_name != node:
            elsewhere = f"another writer bound pod {pod.key} to node {current.spec.node_name}, not {node}"
            raise BoundElsewhere(elsewhere) from conflict
