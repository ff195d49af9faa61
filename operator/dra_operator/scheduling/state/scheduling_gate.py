"""Pods of other schedulers that get their devices from us: held back by our scheduling gate, and then let go.

A pod at the gate has no node, and its scheduler does not look at it. It is examined and planned like a pod of ours,
and its claims are allocated and reserved. Then the gate is removed, and with the same write the pod's choice of nodes
is narrowed to where its devices can be reached. Its scheduler chooses among these nodes.
"""

from __future__ import annotations

from collections.abc import Iterable

from dra_api.core import Node, NodeSelector, NodeSelectorTerm, Pod

from dra_operator.allocator import node_selectors

GATE = "dra.kopf.dev/allocate"
"""The name in ``spec.schedulingGates``."""
OPENED_LAST = frozenset({"scheduling.volcano.sh/queue-allocation-gate"})
"""Gates whose owners wait until no other gate is left, so that ours has to go before: Volcano's.

Volcano removes its gate when its queue has room for the pod, and says no more about nodes by that.
"""
GATED = "SchedulingGated"
"""The reason that the API server gives to a gated pod; people and autoscalers know it.

The pod keeps it after the gate until its scheduler has decided.
"""


def has_gate(pod: Pod) -> bool:
    """Whether the pod is, or comes, to our gate."""
    # Nearly no pod has gates, and this is asked at each change of each pod.
    return GATE in [gate.name for gate in pod.spec.scheduling_gates] if pod.spec.scheduling_gates else False


def is_at_gate(pod: Pod) -> bool:
    """Whether our gate is the one that has to go next.

    While others hold the pod back, it is not its turn: a queue such as Kueue has not admitted the pod, and may still
    say where it has to run.
    """
    gates = pod.spec.scheduling_gates
    if not gates:
        return False
    return {gate.name for gate in gates} - OPENED_LAST == {GATE}


def reach(selectors: Iterable[NodeSelector | None], node: Node | None) -> NodeSelectorTerm | None:
    """What a node must have to reach the devices of all these allocations, in one term; None if ``node`` lacks it.

    Each allocation adds the requirements of its first term that ``node`` matches: of alternatives the one that was
    chosen. Devices without a selector can be reached from anywhere. Raises NodeSelectionError.
    """
    # Only allocations with a selector bind the pod to nodes.
    wanted = [node_selectors.parse(selector) for selector in selectors if selector is not None]
    matched = [node_selectors.first_match(terms, node) for terms in wanted] if node is not None else []
    terms = [term.source for term in matched if term is not None]
    # Some device cannot be reached from there: narrowing the pod to the node would strand it.
    if len(terms) < len(wanted):
        return None
    return NodeSelectorTerm(
        # Each requirement once: the API server limits how long a term may be.
        match_expressions=tuple(dict.fromkeys(item for term in terms for item in term.match_expressions or ())),
        match_fields=tuple(dict.fromkeys(item for term in terms for item in term.match_fields or ())),
    )
