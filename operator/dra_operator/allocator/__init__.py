"""Decides which devices of a node claims get, from a snapshot. Pure.

In this package, a section without a page is a section of allocator.md.
"""

from .allocator import DEFAULT_BUDGET, Allocator, Decision
from .basics.errors import AllocationError, ClaimError, NodeSelectionError, PoolError, SelectorError
from .basics.features import GATES, Features
from .basics.ids import DeviceId, PoolId, ShareId
from .basics.semantics import Semantics
from .nodes.candidates import Candidates
from .outcome import Allocated, Failed, GaveUp, NodeFailure, Outcome, Refused
from .published.inventory import Inventory
from .published.node_selectors import matches as node_matches
from .refusal import Refusal, RefusedClaim, Rule, Tally
from .request.claim_program import ClaimProgram
from .usage import Usage

__all__ = [
    "DEFAULT_BUDGET",
    "GATES",
    "Allocated",
    "AllocationError",
    "Allocator",
    "Candidates",
    "ClaimError",
    "ClaimProgram",
    "Decision",
    "DeviceId",
    "Failed",
    "Features",
    "GaveUp",
    "Inventory",
    "NodeFailure",
    "NodeSelectionError",
    "Outcome",
    "PoolError",
    "PoolId",
    "Refusal",
    "Refused",
    "RefusedClaim",
    "Rule",
    "SelectorError",
    "Semantics",
    "ShareId",
    "Tally",
    "Usage",
    "node_matches",
]
