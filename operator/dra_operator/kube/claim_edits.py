"""What writes expect of a claim, and what they change in it: on the raw object, so that unknown fields are preserved.

Pure. Everything raises ClaimChanged when the claim is not what the plan was made for.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from dra_api.codec import convert
from dra_api.resource import MOST_CONSUMERS, AllocationResult, ResourceClaim, ResourceClaimConsumerReference
from dra_kube import Object

from .changed import ClaimChanged, ClaimFull


def this_very(raw: Object, claim: ResourceClaim) -> Object:
    """The claim, and not another one of its name."""
    if raw["metadata"].get("uid", "") != claim.metadata.uid:
        raise ClaimChanged(f"claim {claim.key} was replaced by another one of the same name in the meantime")
    return raw


def expect(raw: Object, claim: ResourceClaim, wanted: Object | None = None) -> Object:
    """The claim, if it is allocated, or, with ``wanted``, if it is not allocated yet or exactly so."""
    if this_very(raw, claim)["metadata"].get("deletionTimestamp"):
        raise ClaimChanged(f"claim {claim.key} got deleted in the meantime")
    allocation = raw.get("status", {}).get("allocation")
    if wanted is None and allocation is None:
        raise ClaimChanged(f"claim {claim.key} got deallocated elsewhere in the meantime")
    if wanted is not None and allocation is not None and not _is_same_allocation(allocation, wanted):
        raise ClaimChanged(f"claim {claim.key} got allocated elsewhere in the meantime")
    return raw


def _is_same_allocation(one: Object, other: Object) -> bool:
    """Whether both give the same devices on the same nodes, whenever each was written."""
    first, second = (
        msgspec.structs.replace(convert(AllocationResult, each), allocation_timestamp=None) for each in (one, other)
    )
    return first == second


def add_finalizer(raw: Object, finalizer: str) -> bool:
    """Add the finalizer; whether it was missing."""
    finalizers = raw["metadata"].get("finalizers") or []
    if finalizer in finalizers:
        return False
    raw["metadata"]["finalizers"] = [*finalizers, finalizer]
    return True


def add_consumers(status: Object, consumers: Sequence[Object]) -> bool:
    """Add the missing consumers, as many as fit; whether any was added."""
    before = status.get("reservedFor") or []
    known = {entry.get("uid") for entry in before}
    missing = {consumer["uid"]: consumer for consumer in consumers if consumer["uid"] not in known}
    status["reservedFor"] = [*before, *missing.values()][: max(MOST_CONSUMERS, len(before))]
    return len(status["reservedFor"]) > len(before)


def with_consumer(claim: ResourceClaim, consumer: ResourceClaimConsumerReference) -> ResourceClaim:
    """The claim, if it took the consumer."""
    if any(entry.uid == consumer.uid for entry in claim.status.reserved_for or ()):
        return claim
    raise ClaimFull(
        f"claim {claim.key} already has {MOST_CONSUMERS} consumers, the most possible: wait until one ends, "
        "or use another claim"
    )
