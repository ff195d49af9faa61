"""Which node a pod goes to: filters, devices, score, and the explanation when there is none. Pure."""

from .claims import NotReady, PodClaim, missing_class, ready_claims
from .node import NodeState
from .plan import NoPlace, Plan, Planning, plan
from .requests import POD_SLOTS, Amounts, add, pod_requests, subtract

__all__ = [
    "POD_SLOTS",
    "Amounts",
    "NoPlace",
    "NodeState",
    "NotReady",
    "Plan",
    "Planning",
    "PodClaim",
    "add",
    "missing_class",
    "plan",
    "pod_requests",
    "ready_claims",
    "subtract",
]
