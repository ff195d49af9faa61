"""Which devices a node can give to claims: a snapshot in, a decision out (design section 3). Pure."""

from .allocator import Allocator, Decision
from .candidates import Candidates
from .errors import AllocationError, ClaimError, NodeSelectionError, PoolError, SelectorError
from .features import GATES, Features
from .ids import DeviceId, PoolId, ShareId
from .inventory import Inventory
from .nodes import matches as node_matches
from .outcome import Allocated, Failed, GaveUp, NodeFailure, Outcome, Refused
from .plan import Plan
from .refusal import Refusal, Rule, Tally
from .rules import Rules
from .usage import Usage

__all__ = [
    "GATES",
    "Allocated",
    "AllocationError",
    "Allocator",
    "Candidates",
    "ClaimError",
    "Decision",
    "DeviceId",
    "Failed",
    "Features",
    "GaveUp",
    "Inventory",
    "NodeFailure",
    "NodeSelectionError",
    "Outcome",
    "Plan",
    "PoolError",
    "PoolId",
    "Refusal",
    "Refused",
    "Rule",
    "Rules",
    "SelectorError",
    "ShareId",
    "Tally",
    "Usage",
    "node_matches",
]
