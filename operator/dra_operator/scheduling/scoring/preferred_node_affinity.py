"""Preferred node affinity: the sum of the weights of the terms that a node meets (kube-scheduler's NodeAffinity)."""

from __future__ import annotations

from collections.abc import Sequence

from dra_api.core import Pod, PreferredSchedulingTerm

from dra_operator.allocator import NodeSelectionError, node_selectors
from dra_operator.scheduling.state.node import LoadedNode

from .score import BEST_SCORE, Cluster, Score


class PreferredNodeAffinityScore(Score):
    """A term that cannot be understood counts for no node: a preference is no reason to refuse a pod."""

    name, weight = "node affinity", 2

    def __init__(self, preferred: Sequence[PreferredSchedulingTerm]) -> None:
        self._terms = [(it.weight, term) for it in preferred if (term := _parsed(it)) is not None]
        self.best = float(sum(weight for weight, _ in self._terms))

    @classmethod
    def of(cls, pod: Pod, _: Cluster) -> PreferredNodeAffinityScore | None:
        """Only for a pod with such terms."""
        affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
        preferred = affinity.preferred_during_scheduling_ignored_during_execution if affinity is not None else None
        return cls(preferred) if preferred else None

    def raw(self, state: LoadedNode) -> float:
        """The sum on the node."""
        labels, fields = state.node.metadata.labels or {}, {"metadata.name": state.name}
        return float(sum(weight for weight, term in self._terms if term.matches(labels, fields)))

    def normalized(self, raws: Sequence[float]) -> list[int]:
        """In proportion to the best node."""
        most = max(raws)
        return [int(BEST_SCORE * raw / most) if most else 0 for raw in raws]


def _parsed(preferred: PreferredSchedulingTerm) -> node_selectors.NodeTerm | None:
    try:
        return node_selectors.NodeTerm(preferred.preference)
    except NodeSelectionError:
        return None
