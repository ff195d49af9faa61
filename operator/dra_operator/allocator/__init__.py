"""Decides which devices of a node claims get, from a snapshot. Pure.

In this package, a section without a page is a section of allocator.md.
"""

from .allocator import DEFAULT_BUDGET_STEPS, Allocator, Decision
from .basics.errors import AllocationError, ClaimError, NodeSelectionError, PoolError, SelectorError
from .basics.features import GATES, Features
from .basics.ids import DeviceId, PoolId, ShareId
from .basics.semantics import Semantics
from .nodes.candidates import Candidates
from .nodes.value_supplies import ValueSupply
from .ordering.choices import DEVICE_ORDERS
from .ordering.mix import WEIGHT_SUM as WEIGHT_OF_ALL
from .ordering.mix import Mix, MixClass
from .ordering.totals import Totals, wasted_with
from .outcome import Allocated, Failed, GaveUp, NodeFailure, Outcome, Refused
from .published import node_selectors
from .published.columns import Values, lookup
from .published.inventory import Inventory
from .published.node_view import NodeView
from .published.predicates import Compiled, Weighed
from .published.taints import LEFT, blocking, tolerates
from .published.territory import Left, Territory, enters, scheduler_of, schedulers_of, territory_taint
from .refusal import Refusal, RefusedClaim, Rule, Tally
from .request.claim_program import AttributeValue, ClaimProgram, CompiledRequests
from .request.extended import extended_requests
from .request.selectors import RequestSelector
from .usage import Usage

__all__ = [
    "DEFAULT_BUDGET_STEPS",
    "DEVICE_ORDERS",
    "GATES",
    "LEFT",
    "WEIGHT_OF_ALL",
    "Allocated",
    "AllocationError",
    "Allocator",
    "AttributeValue",
    "Candidates",
    "ClaimError",
    "ClaimProgram",
    "Compiled",
    "CompiledRequests",
    "Decision",
    "DeviceId",
    "Failed",
    "Features",
    "GaveUp",
    "Inventory",
    "Left",
    "Mix",
    "MixClass",
    "NodeFailure",
    "NodeSelectionError",
    "NodeView",
    "Outcome",
    "PoolError",
    "PoolId",
    "Refusal",
    "Refused",
    "RefusedClaim",
    "RequestSelector",
    "Rule",
    "SelectorError",
    "Semantics",
    "ShareId",
    "Tally",
    "Territory",
    "Totals",
    "Usage",
    "ValueSupply",
    "Values",
    "Weighed",
    "blocking",
    "enters",
    "extended_requests",
    "lookup",
    "node_selectors",
    "scheduler_of",
    "schedulers_of",
    "territory_taint",
    "tolerates",
    "wasted_with",
]
