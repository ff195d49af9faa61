"""Which node a pod goes to: filters, devices, score, and the explanation when there is none. Pure."""

from .binding import BINDING_TIMEOUT, Binding, BindingState, binding_state
from .claims import NotReady, PodClaim, ready_claims, unservable
from .elsewhere import Allocations
from .filters import NodeFilter
from .node import NodeState
from .nodes import Nodes
from .plan import NoPlace, Plan, Planning, plan
from .requests import POD_SLOTS, Amounts, add, pod_requests, subtract

__all__ = [
    "BINDING_TIMEOUT",
    "POD_SLOTS",
    "Allocations",
    "Amounts",
    "Binding",
    "BindingState",
    "NoPlace",
    "NodeFilter",
    "NodeState",
    "Nodes",
    "NotReady",
    "Plan",
    "Planning",
    "PodClaim",
    "add",
    "binding_state",
    "plan",
    "pod_requests",
    "ready_claims",
    "subtract",
    "unservable",
]
