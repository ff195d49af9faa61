"""An immediate claim has its devices: nothing more is to be written."""

from __future__ import annotations

from collections.abc import Sequence

from dra_api.core import Pod
from dra_api.resource import ResourceClaim

from dra_operator.cache import Cluster
from dra_operator.kube import EventReason
from dra_operator.scheduling.state import claim_behind

from .bind_step import News


class AllocateImmediate:
    """Allocates claims that no pod uses yet; the pod is a placeholder pod."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def action(self, node: str) -> str:
        """See ``BindStep``."""
        return f"allocate devices of node {node}"

    async def write(self, pod: Pod, node: str, claims: Sequence[ResourceClaim]) -> None:
        """See ``BindStep``."""

    def news(self, pod: Pod, node: str) -> News | None:
        """See ``BindStep``."""
        claim = self._cluster.claims.get(claim_behind(pod))
        return News(claim, EventReason.CLAIM_ALLOCATED, f"Devices of node {node} allocated") if claim else None
