"""Which of the nodes that fit is best: the one that gets the preferred alternatives, then the emptiest.

Deterministic, so that the same cluster always gives the same answer.
"""

from __future__ import annotations

from .node import NodeState
from .requests import POD_SLOTS, Amounts

_WEIGHED = ("cpu", "memory", POD_SLOTS)


def rank(state: NodeState, wanted: Amounts, alternatives: int) -> tuple[int, float, str]:
    """A sort key, the smallest is best. ``alternatives`` is the raw score of the chosen sub-requests (4.4)."""
    return (-alternatives, -emptiness(state, wanted), state.name)


def emptiness(state: NodeState, wanted: Amounts) -> float:
    """The share of the node that stays free with the pod on it, from 0 to 1: the mean of cpu, memory and pod slots."""
    offered = state.allocatable
    free = [
        1 - (state.used.get(name, 0) + wanted.get(name, 0)) / offered[name]
        for name in _WEIGHED
        if offered.get(name, 0) > 0
    ]
    return sum(free) / len(free) if free else 0.0


def enough(nodes: int) -> int:
    """After how many nodes that fit the search stops; all of them in clusters of up to 100 nodes."""
    return max(100, nodes * max(5, 50 - nodes // 125) // 100)
