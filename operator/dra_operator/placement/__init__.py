"""Which node a pod goes to: filters, devices, score, and the explanation when there is none. Pure."""

from .answer import NoPlace, Plan
from .attempt import Pause
from .binding import Binding, binding_state
from .claims import NotReady, PodClaim, crowded, extended_claims, ready_claims, unservable
from .demand import Demand, Demands
from .elsewhere import Allocations
from .extended import ExtendedClaim, ExtendedResources
from .filters import NodeFilter
from .node import NodeState
from .nodes import Nodes
from .plan import Planning, decided, plan
from .requests import POD_SLOTS, Amounts, add, node_requests, pod_requests, served_resources, subtract
from .unsupported import unsupported

__all__ = [
    "POD_SLOTS",
    "Allocations",
    "Amounts",
    "Binding",
    "Demand",
    "Demands",
    "ExtendedClaim",
    "ExtendedResources",
    "NoPlace",
    "NodeFilter",
    "NodeState",
    "Nodes",
    "NotReady",
    "Pause",
    "Plan",
    "Planning",
    "PodClaim",
    "add",
    "binding_state",
    "crowded",
    "decided",
    "extended_claims",
    "node_requests",
    "plan",
    "pod_requests",
    "ready_claims",
    "served_resources",
    "subtract",
    "unservable",
    "unsupported",
]
