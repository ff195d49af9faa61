"""Decides which devices of a node claims get, from a snapshot. Pure.

In this package, a section without a page is a section of allocator.md.
"""

from dra_ledger import node_selectors
from dra_ledger.basics import DeviceId, PoolId
from dra_ledger.columns import Values, lookup
from dra_ledger.errors import (
    AllocationError,
    ClaimError,
    NodeSelectionError,
    PoolError,
)
from dra_ledger.features import GATES, Features, Semantics
from dra_ledger.inventory import Inventory, NodeView
from dra_ledger.predicates import Compiled, Weighed
from dra_ledger.taints import (
    LeftAlone,
    Territory,
    blocking,
    enters,
    scheduler_of,
    schedulers_of,
    territory_taint,
    tolerates,
)
from dra_ledger.usage import Usage

from dra_operator.allocator.claim_program import extended_requests
from dra_operator.allocator.device_counts import ValueSupply
from dra_operator.allocator.node_index import Candidates

from .allocator import DEFAULT_BUDGET_STEPS, Allocator
from .claim_program import AttributeValue, ClaimProgram, CompiledRequests, RequestSelector
from .ordering.mix import WEIGHT_SUM as WEIGHT_OF_ALL
from .ordering.mix import Mix, MixClass, Totals, wasted_with
from .ordering.orders import DEVICE_ORDERS
from .outcome import (
    Allocated,
    Failed,
    GaveUp,
    NodeFailure,
    Outcome,
    Refusal,
    Refused,
    RefusedClaim,
    Rule,
)

__all__ = [
    "DEFAULT_BUDGET_STEPS",
    "DEVICE_ORDERS",
    "GATES",
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
    "DeviceId",
    "Failed",
    "Features",
    "GaveUp",
    "Inventory",
    "LeftAlone",
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
    "Semantics",
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
