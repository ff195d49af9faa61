"""What a pod that has its node and its devices still waits for before it may be bound.

Devices may name conditions that their driver, or a controller that attaches them, sets in the claim's status when the
device is ready, and others for a failure. The scheduler that allocated the device waits for them, up to a limit
(scheduling.md 4.7, binding conditions).

Claims to volumes have to be bound on the node. The operator has reserved volumes, or selected the node for claims
without; the PV controller and provisioners do the rest. A provisioner that fails removes the annotation; a claim that
was made anew never had it. Then, or when the time is over, the pod releases its devices and is rescheduled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import NamedTuple

from dra_api.core import Pod
from dra_api.meta import Condition
from dra_api.references import volume_uses
from dra_api.resource import DeviceRequestAllocationResult, ResourceClaim
from dra_api.storage import SELECTED_NODE, PersistentVolumeClaim
from dra_api.values import parse_time

from dra_operator.allocator import DeviceId
from dra_operator.scheduling.nodes import Nodes
from dra_operator.scheduling.rules.volumes import Storage, VolumeWait

BINDING_TIMEOUT_SECONDS = 600.0
"""Seconds from the allocation until a device that is not ready counts as failed."""


class Readiness(Enum):
    """How far a claim's devices are."""

    READY = "ready"
    PENDING = "pending"
    FAILED = "failed"
    TIMED_OUT = "timed out"


class ClaimReadiness(NamedTuple):
    """``text`` says what failed; ``seconds`` how long a pending claim may still take."""

    state: Readiness
    text: str = ""
    seconds: float = 0.0

    @property
    def is_lost(self) -> bool:
        """The devices will not get ready."""
        return self.state in (Readiness.FAILED, Readiness.TIMED_OUT)


def claim_readiness(claim: ResourceClaim, now: datetime, timeout: float = BINDING_TIMEOUT_SECONDS) -> ClaimReadiness:
    """Whether a pod may be bound to the claim's devices."""
    for result in claim.results:
        conditions = _conditions(claim, result)
        for name in result.binding_failure_conditions or ():
            failure = conditions.get(name)
            if failure is not None and failure.status == "True":
                detail = f"claim={claim.metadata.name}, reason={failure.reason}, message={failure.message}"
                return ClaimReadiness(Readiness.FAILED, f"device binding failed: {detail}")
    if not any(unready(claim)):
        return ClaimReadiness(Readiness.READY)
    left = timeout - age_of_allocation(claim, now)
    if left < 0:
        return ClaimReadiness(Readiness.TIMED_OUT, f"device binding timeout: claim={claim.metadata.name}")
    return ClaimReadiness(Readiness.PENDING, seconds=left)


def unready(claim: ResourceClaim) -> Iterator[tuple[DeviceId, list[str]]]:
    """The devices of an allocated claim that are not ready yet, each with the conditions that are awaited."""
    for result in claim.results:
        conditions = _conditions(claim, result)
        awaited = [
            name
            for name in result.binding_conditions or ()
            if name not in conditions or conditions[name].status != "True"
        ]
        if awaited:
            yield DeviceId.of(result), awaited


def _conditions(claim: ResourceClaim, result: DeviceRequestAllocationResult) -> dict[str, Condition]:
    wanted = (result.driver, result.pool, result.device, result.share_id)
    for status in claim.status.devices or ():
        if (status.driver, status.pool, status.device, status.share_id) == wanted:
            return {condition.type: condition for condition in status.conditions or ()}
    return {}


def age_of_allocation(claim: ResourceClaim, now: datetime) -> float:
    """Seconds since the allocation; 0 if the claim does not say when that was."""
    allocation = claim.status.allocation
    allocated = parse_time(allocation.allocation_timestamp) if allocation is not None else None
    return (now - allocated).total_seconds() if allocated is not None else 0.0


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
