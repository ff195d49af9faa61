"""What the claims of a pod ask of a node, and whether they can be used."""

from .demand import Demand, ExtendedClaim, ExtendedResources
from .node_allocatable import shortage
from .readiness import (
    BINDING_TIMEOUT_SECONDS,
    CLAIM_DELETED,
    CLAIM_MISSING,
    CLAIM_PARKED,
    CLAIM_UNMADE,
    CLASS_MISSING,
    SET_ASIDE,
    ClaimReadiness,
    PodClaim,
    Readiness,
    age_of_allocation,
    claim_readiness,
)

__all__ = [
    "BINDING_TIMEOUT_SECONDS",
    "CLAIM_DELETED",
    "CLAIM_MISSING",
    "CLAIM_PARKED",
    "CLAIM_UNMADE",
    "CLASS_MISSING",
    "SET_ASIDE",
    "ClaimReadiness",
    "Demand",
    "ExtendedClaim",
    "ExtendedResources",
    "PodClaim",
    "Readiness",
    "age_of_allocation",
    "claim_readiness",
    "shortage",
]
