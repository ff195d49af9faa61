"""``PreferNoSchedule`` taints that a pod does not tolerate: fewer are better (kube-scheduler's TaintToleration)."""

from __future__ import annotations

from collections.abc import Sequence

from dra_api.core import Pod, Toleration

from dra_operator.scheduling.state.node import LoadedNode, intolerable

from .score import BEST_SCORE, Cluster, Score


class PreferNoScheduleScore(Score):
    """The number of such taints on a node, negative."""

    name, weight, best = "taints", 3, 0.0

    def __init__(self, tolerations: Sequence[Toleration]) -> None:
        self._tolerations = tolerations

    @classmethod
    def of(cls, pod: Pod, cluster: Cluster) -> PreferNoScheduleScore | None:
        """Only where a node has such a taint."""
        return cls(pod.spec.tolerations or ()) if cluster.has_soft_taints else None

    def raw(self, state: LoadedNode) -> float:
        """How many there are, negative."""
        return -float(intolerable(state.soft_taints, self._tolerations)) if state.soft_taints else 0.0

    def normalized(self, raws: Sequence[float]) -> list[int]:
        """None is best, the most is worst."""
        worst = min(raws)
        return [BEST_SCORE - int(BEST_SCORE * raw / worst) if worst else BEST_SCORE for raw in raws]
