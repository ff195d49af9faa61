"""A pod that has its node and devices and waits for its claims of volumes to be bound there.

The operator has reserved volumes, or selected the node for claims without; the PV controller and provisioners do the
rest. A provisioner that fails removes the annotation; a claim that was made anew never had it. Then, or when the time
is over, the pod releases its devices and is rescheduled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from dra_api.core import Pod
from dra_api.relations.volumes import volume_uses
from dra_api.resource import ResourceClaim
from dra_api.storage import SELECTED_NODE, PersistentVolumeClaim

from dra_operator.scheduling.nodes import Nodes
from dra_operator.scheduling.rules.volumes import Storage, VolumeWait


@dataclass(frozen=True, slots=True)
class VolumesPending:
    """Claims are being bound; ``seconds`` is the longest that this may still take."""

    claims: tuple[str, ...]
    node: str
    seconds: float

    @property
    def text(self) -> str:
        """A clause about the pod."""
        return f"waits up to {self.seconds:.0f} s for {self._awaited}"

    @property
    def lasting(self) -> str:
        """The same without the seconds, which differ at each look."""
        return f"waits for {self._awaited}"

    @property
    def _awaited(self) -> str:
        return f"{', '.join(self.claims)} to be bound on node {self.node}"


@dataclass(frozen=True, slots=True)
class VolumesFailed:
    """Claims were not bound. The pod gives up the ``held`` claims of devices, and is rescheduled."""

    reason: str
    held: tuple[ResourceClaim, ...]

    @property
    def text(self) -> str:
        """A clause about the pod."""
        return f"is rescheduled: {self.reason}"


class _Failed(Exception):
    pass


def wait_for_volumes(
    pod: Pod, held: Sequence[ResourceClaim], wait: VolumeWait, storage: Storage, nodes: Nodes, now: datetime
) -> VolumesPending | VolumesFailed | None:
    """How the binding is getting on; None when every claim is bound."""
    try:
        pending = tuple(claim.metadata.name for claim in _pending(pod, wait.node, storage))
    except _Failed as failure:
        return VolumesFailed(str(failure), tuple(held))
    if not pending:
        return None
    seconds = (wait.deadline - now).total_seconds()
    if wait.node not in nodes:
        return VolumesFailed(f"node {wait.node} is gone", tuple(held))
    if seconds <= 0:
        late = f"timed out waiting for PersistentVolumeClaim {', '.join(pending)} to be bound"
        return VolumesFailed(late, tuple(held))
    return VolumesPending(pending, wait.node, seconds)


def _pending(pod: Pod, node: str, storage: Storage) -> Iterator[PersistentVolumeClaim]:
    for use in volume_uses(pod):
        claim = storage.claim(use.key)
        if claim is None or claim.metadata.deletion_timestamp is not None:
            raise _Failed(f"PersistentVolumeClaim {use.name} is {'gone' if claim is None else 'being deleted'}")
        if claim.is_bound:
            continue
        selected = (claim.metadata.annotations or {}).get(SELECTED_NODE)
        reserved = (it for it in storage.volumes_of_class(claim.storage_class) if it.is_reserved_for(claim))
        if selected != node and not any(reserved):
            lost = f"PersistentVolumeClaim {use.name} is no longer meant for node {node}"
            raise _Failed(f"{lost}: provisioning failed, or it was changed or recreated")
        yield claim
