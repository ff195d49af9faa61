"""What must hold for a pod's claims before any node is looked at (SC-01, scheduling.md 4.1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from dra_api.core import Pod
from dra_api.relations.references import (
    ClaimNotCreatedYet,
    ClaimNotOwned,
    ClaimReferenceError,
    check_owned_by,
    claim_names,
    is_for_extended_resources,
    is_reserved_for,
)
from dra_api.resource import MOST_CONSUMERS, ResourceClaim

from dra_operator.scheduling.state.large_claim import bytes_of_large, size_refusal
from dra_operator.scheduling.state.obstacle import Obstacle, Reason
from dra_operator.scheduling.state.parked import is_parked
from dra_operator.scheduling.state.requests import extended_resources

CLAIM_REFERENCE: Final = Reason("claim-reference", "{detail}")
CLAIM_UNMADE: Final = Reason("claim-unmade", "{detail}")
CLAIM_MISSING: Final = Reason(
    "claim-missing", 'resourceclaim "{subject}" not found: create it, or correct resourceClaimName'
)
CLAIM_DELETED: Final = Reason("claim-deleted", 'resourceclaim "{subject}" is being deleted')
CLAIM_FULL: Final = Reason(
    "claim-full",
    f"claim {{subject}} is used by {MOST_CONSUMERS} pods, the most that can share one claim: "
    "wait until one of them ends, or use another claim",
)
CLAIM_PARKED: Final = Reason(
    "claim-parked",
    "claim {subject} keeps {detail}, which another scheduler gave to another claim at the same time, until that claim "
    "is released and no pod of another scheduler waits for such devices; use another claim, or wait",
)
CLAIM_TOO_LARGE: Final = Reason("claim-too-large", "claim {subject} {detail}")
CLASS_MISSING: Final = Reason(
    "class-missing", "{subject}: device class {detail} does not exist: create it, or correct deviceClassName"
)
ALTERNATIVES_OFF: Final = Reason(
    "alternatives-off", "resource {subject}: has subrequests, but the DRAPrioritizedList feature is disabled"
)


class NotReady(Exception):
    """The pod is not tried at all until its claims are in order."""

    def __init__(self, obstacle: Obstacle) -> None:
        super().__init__(obstacle.text)
        self.obstacle = obstacle


class PodClaim(NamedTuple):
    """A claim of the pod and the first entry that leads to it; none leads to the claim for extended resources."""

    entry: str | None
    claim: ResourceClaim


class ExtendedClaims(NamedTuple):
    """What earlier attempts made for a pod's extended resources."""

    made: ResourceClaim | None
    """The complete one: allocated, reserved and recorded, so that only the binding is missing."""
    leftovers: tuple[ResourceClaim, ...]
    """All others: they may hold devices, but perhaps no longer the right ones."""


def extended_claims(pod: Pod, owned: Iterable[ResourceClaim]) -> ExtendedClaims:
    """Find the claims for extended resources among those that a pod without node owns (7.2).

    Only pods that ask for a resource that devices might serve have some. A claim to which an entry of the pod leads is
    none, whatever its annotations: a person made it, or its template decides on them.

    A complete claim is no leftover: its pod may wait for its devices to become ready, or the answer to the binding may
    have been lost. Like any other allocated claim it decides where the pod can run.
    """
    if not extended_resources(pod):
        return ExtendedClaims(None, ())
    recorded = pod.status.extended_resource_claim_status
    name = recorded.resource_claim_name if recorded is not None else ""
    named = {entry.resource_claim_name for entry in pod.spec.resource_claims or ()}
    found = [
        it for it in owned if is_for_extended_resources(it) and it.metadata.name not in named and not is_parked(it)
    ]
    made = next((claim for claim in found if claim.metadata.name == name and _is_complete(pod, claim)), None)
    return ExtendedClaims(made, tuple(claim for claim in found if claim is not made))


def _is_complete(pod: Pod, claim: ResourceClaim) -> bool:
    is_allocated = claim.status.allocation is not None and claim.metadata.deletion_timestamp is None
    return is_allocated and is_reserved_for(pod, claim)


def ready_claims(pod: Pod, find: Callable[[str], ResourceClaim | None]) -> list[PodClaim]:
    """The claims of the pod, each once, however many entries name it (PRJ-009). Raises NotReady.

    ``find`` looks a claim up by ``namespace/name``.
    """
    claims: dict[str, PodClaim] = {}
    name_of = claim_names(pod)
    for entry in pod.spec.resource_claims or ():
        try:
            name, must_check_owner = name_of(entry)
        except ClaimReferenceError as error:
            reason = CLAIM_UNMADE if isinstance(error, ClaimNotCreatedYet) else CLAIM_REFERENCE
            raise NotReady(Obstacle(reason, entry.name, str(error))) from error
        if name is None:
            continue
        claim = find(f"{pod.metadata.namespace}/{name}")
        if claim is None:
            # A deleted generated claim is made again, so there is nothing to report.
            gone = Obstacle(CLAIM_UNMADE, name, f'resourceclaim "{name}" not found; it is being recreated')
            raise NotReady(gone if must_check_owner else Obstacle(CLAIM_MISSING, name))
        if claim.metadata.deletion_timestamp is not None:
            raise NotReady(Obstacle(CLAIM_DELETED, name))
        if must_check_owner:
            try:
                check_owned_by(pod, claim)
            except ClaimNotOwned as error:
                raise NotReady(Obstacle(CLAIM_REFERENCE, name, str(error))) from error
        claims.setdefault(claim.metadata.uid, PodClaim(entry.name, claim))
    return list(claims.values())


def crowded(pod: Pod, claims: Sequence[ResourceClaim]) -> Obstacle | None:
    """The first claim that takes no further consumer; None if all can take the pod."""
    for claim in claims:
        if len(claim.status.reserved_for or ()) >= MOST_CONSUMERS and not is_reserved_for(pod, claim):
            return Obstacle(CLAIM_FULL, claim.key)
    return None


def too_large(claims: Sequence[ResourceClaim]) -> Obstacle | None:
    """The first claim of which too little is kept to allocate it; None if there is none."""
    for claim in claims:
        size = bytes_of_large(claim.spec)
        if size is not None:
            return Obstacle(CLAIM_TOO_LARGE, claim.key, size_refusal(size))
    return None


def unservable(
    claims: Sequence[ResourceClaim], has_class: Callable[[str], bool], *, prioritized_list: bool
) -> Obstacle | None:
    """The first request that no node can serve for now; None if there is none (4.1)."""
    for claim in claims:
        for request in claim.spec.devices.requests or ():
            if request.first_available and not prioritized_list:
                return Obstacle(ALTERNATIVES_OFF, f"claim {claim.key}, request {request.name}")
            named = [(request.name, request.exactly.device_class_name)] if request.exactly else []
            named += [(f"{request.name}/{sub.name}", sub.device_class_name) for sub in request.first_available or ()]
            for reference, name in named:
                if name and not has_class(name):
                    return Obstacle(CLASS_MISSING, f"claim {claim.key}, request {reference}", name)
    return None
