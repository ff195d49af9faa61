"""The last write of a binding cycle, once the pod has its claims: it binds the pod, or removes its gate.

::

    BindStep
    ├── Bind                 a pod of our scheduler gets its node
    ├── RemoveGate           a pod of another scheduler goes there, among the nodes that reach its devices
    └── AllocateImmediate    a claim that no pod uses yet has its devices: nothing more is to be written

``RemoveGate`` removes the scheduling gate and narrows the nodes of the pod in one write, after the claims are allocated
and reserved, so there is nothing to lose between the two:

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
from typing import NamedTuple, Protocol

from dra_api.core import Pod
from dra_api.meta import Object
from dra_api.resource import ResourceClaim
from dra_kube import Conflict, NotFound
from dra_kube.spans import span

from dra_operator.cache import Cluster
from dra_operator.controllers.claims.generate import check_recorded
from dra_operator.controllers.errors import BindingFailed, BoundElsewhere, PodVanished
from dra_operator.controllers.workers import tell
from dra_operator.kube import EventReason, PodChanged, PodWriter
from dra_operator.scheduling.state import GATE, claim_behind, reach


class BindEvent(NamedTuple):
    """The event about it."""

    about: Object
    reason: EventReason
    message: str


class BindStep(Protocol):
    """The last write for a pod."""

    def action(self, node: str) -> str:
        """Return the attempted action, as it follows ``cannot``."""
        ...

    async def write(self, pod: Pod, node: str, claims: Sequence[ResourceClaim]) -> None:
        """Write, unless it is already done. Raises BindingFailed if it is no longer possible, and KubeError."""
        ...

    def news(self, pod: Pod, node: str) -> BindEvent | None:
        """Return the event when it is done."""
        ...


logger = logging.getLogger(__name__)

BIND_ATTEMPTS = 3


class Bind:
    """Binds pods of our scheduler name."""

    def __init__(self, cluster: Cluster, pods: PodWriter) -> None:
        self._cluster, self._pods = cluster, pods

    def action(self, node: str) -> str:
        """See ``BindStep``."""
        return f"bind the pod to node {node}"

    def news(self, pod: Pod, node: str) -> BindEvent:
        """See ``BindStep``."""
        return BindEvent(pod, EventReason.SCHEDULED, f"Successfully assigned {pod.key} to {node}")

    async def write(self, pod: Pod, node: str, claims: Sequence[ResourceClaim]) -> None:
        """See ``BindStep``. Raises BoundElsewhere, PodVanished and ClaimChanged."""
        # The newest version: its record of the claims is what the kubelet will read.
        bound = self._cluster.pods.get(pod.key, pod.metadata.uid) or pod
        with span("bind", pod=pod.key, node=node):
            for attempt in range(1, BIND_ATTEMPTS + 1):
                try:
                    await self._pods.bind(bound, node)
                except NotFound as error:
                    raise PodVanished(str(error)) from error
                except Conflict as conflict:
                    # Any write to the pod makes a binding of an older version conflict, a condition of ours as well.
                    current = await self._unless_bound(bound, node, conflict)
                    if current is None:
                        break
                    if attempt == BIND_ATTEMPTS:
                        raise
                    check_recorded(current, claims)
                    bound = current
                else:
                    break
        self._cluster.assume_bound(bound)
        tell(logger, logging.INFO, "pod bound", pod=pod.key, node=node)

    async def _unless_bound(self, pod: Pod, node: str, conflict: Conflict) -> Pod | None:
        """Return the newer version of the pod; None if it is assigned to the node already.

        That may be by a binding of ours whose answer was lost. Another writer may have assigned it elsewhere.
        """
        try:
            current = await self._pods.read(pod.metadata.namespace, pod.metadata.name)
        except NotFound as error:
            raise PodVanished(str(error)) from error
        # The name says nothing: the pod that was planned is gone.
        if current.metadata.uid != pod.metadata.uid:
            raise PodVanished(f"pod {pod.key} was replaced by another one of the same name")
        if current.spec.node_name == node:
            return None
        if current.spec.node_name:
            elsewhere = f"another writer bound pod {pod.key} to node {current.spec.node_name}, not {node}"
            raise BoundElsewhere(elsewhere) from conflict
        if current.metadata.deletion_timestamp is not None:
            raise PodVanished(f"pod {pod.key} is being deleted") from conflict
        # There is no newer version that could be bound instead.
        if current.metadata.resource_version == pod.metadata.resource_version:
            raise conflict
        return current


class RemoveGate:
    """Lets pods of other schedulers go."""

    def __init__(self, cluster: Cluster, pods: PodWriter) -> None:
        self._cluster, self._pods = cluster, pods

    def action(self, node: str) -> str:
        """See ``BindStep``."""
        return f"remove the scheduling gate {GATE}"

    def news(self, pod: Pod, node: str) -> BindEvent:
        """See ``BindStep``."""
        return BindEvent(
            pod, EventReason.GATE_REMOVED, f"Scheduling gate {GATE} removed: claims allocated for node {node}"
        )

    async def write(self, pod: Pod, node: str, claims: Sequence[ResourceClaim]) -> None:
        """See ``BindStep``. A pod with changed node requirements or gates is planned again."""
        allocations = [claim.status.allocation for claim in claims]
        selectors = [allocation.node_selector for allocation in allocations if allocation is not None]
        # Its scheduler may choose any node that reaches the devices, and must not choose another one.
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


class AllocateImmediate:
    """Allocates claims that no pod uses yet; the pod is a placeholder pod."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def action(self, node: str) -> str:
        """See ``BindStep``."""
        return f"allocate devices of node {node}"

    async def write(self, pod: Pod, node: str, claims: Sequence[ResourceClaim]) -> None:
        """See ``BindStep``."""

    def news(self, pod: Pod, node: str) -> BindEvent | None:
        """See ``BindStep``."""
        claim = self._cluster.claims.get(claim_behind(pod))
        return BindEvent(claim, EventReason.CLAIM_ALLOCATED, f"Devices of node {node} allocated") if claim else None
