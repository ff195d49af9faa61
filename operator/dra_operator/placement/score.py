"""Which of the fitting nodes is best: first by preferred alternatives, then the emptiest.

Deterministic, so that the same cluster always gives the same answer (scheduling.md 4.4).
"""

from __future__ import annotations

from dra_operator.allocator import ClaimProgram

from .node import NodeState


def rank(state: NodeState, alternatives: int) -> tuple[int, float, str]:
    """A sort key, the smallest is best. ``alternatives`` is the raw score of the chosen sub-requests (4.4)."""
    return (-alternatives, -state.emptiness, state.name)


def ideal(program: ClaimProgram) -> int:
    """The raw score when every request with alternatives gets its first one (4.4)."""
    return 8 * sum(stage.prioritized for stage in program.stages)


def enough(nodes: int) -> int:
    """After how many fitting nodes the search for better alternatives stops; all in clusters of up to 100 nodes."""
    return max(100, nodes * max(5, 50 - nodes // 125) // 100)
