"""Which nodes a pod may run on at all, before any device is looked at.

The order is from cheap to costly, and the first obstacle is the one reported.
"""

from __future__ import annotations

from dra_api.core import Pod

from dra_operator.allocator.nodes import matches

from .node import NodeState
from .requests import POD_SLOTS, Amounts
from .tolerations import UNSCHEDULABLE, untolerated

TOO_MANY_PODS = "too many pods on the node"
_INSUFFICIENT = "Insufficient "


def obstacle(pod: Pod, wanted: Amounts, state: NodeState) -> str | None:
    """Why the pod cannot run on the node, as a text that reads well behind a count of nodes; None if it can."""
    return _not_named(pod, state) or _kept_away(pod, state) or _not_selected(pod, state) or _too_small(wanted, state)


def is_shortage(text: str) -> bool:
    """Whether the obstacle goes away when another pod ends."""
    return text == TOO_MANY_PODS or text.startswith(_INSUFFICIENT)


def _not_named(pod: Pod, state: NodeState) -> str | None:
    if pod.spec.node_name and pod.spec.node_name != state.name:
        return "node(s) not named by the pod"
    return None


def _kept_away(pod: Pod, state: NodeState) -> str | None:
    tolerations = pod.spec.tolerations or ()
    if state.node.spec.unschedulable and untolerated((UNSCHEDULABLE,), tolerations):
        return "node(s) were unschedulable"
    taint = untolerated(state.node.spec.taints or (), tolerations)
    return f"node(s) had untolerated taint {{{taint.key}: {taint.value}}}" if taint else None


def _not_selected(pod: Pod, state: NodeState) -> str | None:
    labels = state.node.metadata.labels or {}
    wanted = (pod.spec.node_selector or {}).items()
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity else None
    if any(labels.get(key) != value for key, value in wanted) or (
        required is not None and not matches(required, state.node)
    ):
        return "node(s) didn't match the pod's node selector or affinity"
    return None


def _too_small(wanted: Amounts, state: NodeState) -> str | None:
    offered = state.allocatable
    for name in sorted(wanted):
        if name not in offered and name == POD_SLOTS:
            continue  # a node that does not say how many pods it takes takes any number
        if wanted[name] > offered.get(name, 0) - state.used.get(name, 0):
            return TOO_MANY_PODS if name == POD_SLOTS else f"{_INSUFFICIENT}{name}"
    return None
