"""One line that says why no node takes the pod: equal reasons counted together, the most frequent first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

SHOWN = 4


def explain(reasons: Iterable[str], nodes: int) -> str:
    """``0/3 nodes are available: 2 Insufficient cpu; 1 ...``; rare reasons beyond the first few are only counted."""
    if not nodes:
        return "0/0 nodes are available: the cluster has no nodes"
    counts = sorted(Counter(reasons).items(), key=lambda item: (-item[1], item[0]))
    parts = [f"{count} {reason}" for reason, count in counts[:SHOWN]]
    hidden = sum(count for _, count in counts[SHOWN:])
    if hidden:
        parts.append(f"{hidden} for other reasons")
    return f"0/{nodes} nodes are available: {'; '.join(parts)}"
