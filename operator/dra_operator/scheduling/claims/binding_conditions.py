"""Devices that have to be made ready before a pod may be bound to them (scheduling.md 4.7, binding conditions).

A device may name conditions that its driver, or a controller that attaches it, sets in the claim's status when the
device is ready, and others for a failure. The scheduler that allocated it waits for them, up to a limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from enum import Enum
from typing import NamedTuple

from dra_api.meta import Condition
from dra_api.resource import DeviceRequestAllocationResult, ResourceClaim
from dra_api.values.times import parse_time

from dra_operator.allocator import DeviceId

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
