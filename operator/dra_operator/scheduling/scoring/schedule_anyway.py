"""Topology spread with ``whenUnsatisfiable: ScheduleAnyway``: best are the domains with the fewest pods that count."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from dra_api.core import Pod

from dra_operator.scheduling.rules.pod_topology_spread import (
    SCHEDULE_ANYWAY,
    Constraint,
    constraints,
    queries_of_constraints,
)
from dra_operator.scheduling.state.node import LoadedNode
from dra_operator.scheduling.state.pods_by_node import DomainQuery
from dra_operator.scheduling.state.selection import Namespaces

from .score import BEST_SCORE, Cluster, Score


class ScheduleAnywayScore(Score):
    """A node that lacks the label of one of the constraints is as bad as can be."""

    name, weight = "topology spread", 2

    def __init__(self, constraints: Sequence[Constraint]) -> None:
        self._constraints = constraints
        # Many domains make each count small: the logarithm weighs zones and nodes alike.
        self._weights = [math.log(len(it.counts.topology.size) + 2) for it in self._constraints]
        self.best = -_rounded(self._cost(it, it.counts.fewest, weight) for it, weight in self._weighted())

    @classmethod
    def of(cls, pod: Pod, cluster: Cluster) -> ScheduleAnywayScore | None:
        """Only for a pod with such constraints."""
        if not pod.spec.topology_spread_constraints:
            return None
        found = constraints(pod, SCHEDULE_ANYWAY, cluster.pods_by_node, cluster.topologies)
        return cls(found) if found else None

    @classmethod
    def queries(cls, pod: Pod, namespaces: Namespaces) -> Iterable[DomainQuery]:
        """The pods of each constraint."""
        return (query for _, query in queries_of_constraints(pod, SCHEDULE_ANYWAY))

    def raw(self, state: LoadedNode) -> float:
        """The pods that count, weighed and summed, negative."""
        labels = state.node.metadata.labels or {}
        if not all(it.key in labels for it in self._constraints):
            return -math.inf
        counts = ((it, it.counts.by_domain.get(labels[it.key], 0), weight) for it, weight in self._weighted())
        return -_rounded(self._cost(*each) for each in counts)

    def normalized(self, raws: Sequence[float]) -> list[int]:
        """The node with the fewest is best; without any that count, all are."""
        costs = [-raw for raw in raws if raw != -math.inf]
        most, fewest = max(costs, default=0.0), min(costs, default=0.0)
        if not most:
            return [0 if raw == -math.inf else BEST_SCORE for raw in raws]
        return [0 if raw == -math.inf else int(BEST_SCORE * (most + fewest + raw) / most) for raw in raws]

    def _weighted(self) -> list[tuple[Constraint, float]]:
        return list(zip(self._constraints, self._weights, strict=True))

    @staticmethod
    def _cost(constraint: Constraint, count: int, weight: float) -> float:
        return count * weight + constraint.max_skew - 1


def _rounded(costs: Iterable[float]) -> float:
    return float(math.floor(sum(costs) + 0.5))
