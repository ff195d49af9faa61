"""Lets a pod of another scheduler go once it has its devices: removes its gate and narrows its nodes.

Both are one write, after the claims are allocated and reserved, so there is nothing to lose between the two:

* Before it, the pod is gated. The next attempt finds what its claims have, whatever happened to earlier writes.
* After it, the pod is its scheduler's. Its claims are reserved for it, so that kubelets accept the pod even if its
  scheduler knows nothing of claims, and the controller that releases claims takes the devices back when it ends.

The choice of nodes is narrowed for schedulers that do not know claims; kube-scheduler would find the nodes by itself.
There the narrowing prevents something: kube-scheduler gives devices back when a pod fits only nodes that cannot reach
them, and it never sees such nodes.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from dra_api.core import Pod
from dra_api.resource import ResourceClaim
from dra_kube import NotFound

from dra_operator.cache import Cluster
from dra_operator.controllers.errors import BindingFailed, PodVanished
from dra_operator.controllers.logbook import tell
from dra_operator.kube import EventReason, PodChanged, PodWriter
from dra_operator.scheduling.state import GATE, reach

from .bind_step import News

logger = logging.getLogger(__name__)


class RemoveGate:
    """Lets pods of other schedulers go."""

    def __init__(self, cluster: Cluster, pods: PodWriter) -> None:
        self._cluster, self._pods = cluster, pods

    def action(self, node: str) -> str:
        """See ``BindStep``."""
        return f"remove the scheduling gate {GATE}"

    def news(self, pod: Pod, node: str) -> News:
        """See ``BindStep``."""
        return News(pod, EventReason.GATE_REMOVED, f"Scheduling gate {GATE} removed: claims allocated for node {node}")

    async def write(self, pod: Pod, node: str, claims: Sequence[ResourceClaim]) -> None:
        """See ``BindStep``. A pod with changed node requirements or gates is planned again."""
        allocations = [claim.status.allocation for claim in claims]
        selectors = [allocation.node_selector for allocation in allocations if allocation is not None]
        where = reach(selectors, self._cluster.nodes.get(node))
        if where is None:
            raise BindingFailed(f"node {node} no longer reaches the devices of pod {pod.key}")
        try:
            await self._pods.open_gate(pod, GATE, where)
        except NotFound as error:
            raise PodVanished(str(error)) from error
        except PodChanged as error:
            raise BindingFailed(str(error)) from error
        tell(logger, logging.INFO, "gate removed", pod=pod.key, node=node)
