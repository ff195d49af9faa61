"""Scores: how much a pod prefers one node to another, each in one respect (NR-21 to NR-26).

A score gives each node a raw score. Over all nodes that fit, raw scores are normalized to 0 to 100, and count with the
weight of the score, as in kube-scheduler. A score is made once per attempt, and only if the pod uses it, so a pod
without any is placed on the first node that fits. A new one is a class beside the others and a line in ``SCORES``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Self

from dra_api.core import Pod, PreferredSchedulingTerm, Toleration

from dra_operator.allocator import NodeSelectionError, node_selectors
from dra_operator.scheduling.rules.pod_topology_spread import (
    SCHEDULE_ANYWAY,
    SpreadConstraint,
    constraints,
    queries_of_constraints,
)
from dra_operator.scheduling.state.applicants import is_placeholder
from dra_operator.scheduling.state.node import LoadedNode, intolerable
from dra_operator.scheduling.state.pods_by_node import DomainQuery, PodsByNode, one_by_one
from dra_operator.scheduling.state.topology import DomainCounts, Namespaces, Topologies, preferred

BEST_SCORE = 100
"""The normalized score of the best node."""


@dataclass(frozen=True, slots=True)
class ScoredCluster:
    """The input of scores beside the pod and the node."""

    pods_by_node: PodsByNode
    topologies: Topologies
    nodes: int
    """Number of nodes."""
    has_soft_taints: bool
    """Whether a node has a ``PreferNoSchedule`` taint."""


class Score(ABC):
    """One respect in which a pod prefers nodes."""

    name: str
    """For people: ``kubectl dra why`` shows it beside the score."""
    weight: int
    best: float
    """An upper bound of raw scores. A node that reaches it in all scores ends the search for a better one."""

    @classmethod
    @abstractmethod
    def of(cls, pod: Pod, cluster: ScoredCluster) -> Self | None:
        """Return the score for the pod, or None if the pod prefers no node in this respect."""

    @classmethod
    def queries(cls, pod: Pod, namespaces: Namespaces) -> Iterable[DomainQuery]:
        """Return the counts that the score needs. They are made before the score, in pieces."""
        return ()

    @abstractmethod
    def raw(self, state: LoadedNode) -> float:
        """Return the raw score of a node; more is better."""

    @abstractmethod
    def normalized(self, raws: Sequence[float]) -> list[int]:
        """Return the scores of all nodes that fit, from 0 to 100, by their raw scores."""


class PreferNoScheduleScore(Score):
    """``PreferNoSchedule`` taints that a pod does not tolerate: fewer are better (kube-scheduler's TaintToleration)."""

    name, weight, best = "taints", 3, 0.0

    def __init__(self, tolerations: Sequence[Toleration]) -> None:
        self._tolerations = tolerations

    @classmethod
    def of(cls, pod: Pod, cluster: ScoredCluster) -> PreferNoScheduleScore | None:
        """Only where a node has such a taint."""
        # All nodes are equal if none has one, and the first that fits may be taken.
        return cls(pod.spec.tolerations or ()) if cluster.has_soft_taints else None

    def raw(self, state: LoadedNode) -> float:
        """Return the number of such taints, negated."""
        return -float(intolerable(state.soft_taints, self._tolerations)) if state.soft_taints else 0.0

    def normalized(self, raws: Sequence[float]) -> list[int]:
        """Return 100 for a node without such taints, 0 for the most."""
        # Relative to the worst node that fits, and not to a fixed number, as kube-scheduler does it (NR-22).
        worst = min(raws)
        return [BEST_SCORE - int(BEST_SCORE * raw / worst) if worst else BEST_SCORE for raw in raws]


class PreferredAffinityScore(Score):
    """Preferred affinity and anti-affinity between pods: of the pod that comes, and of placed pods to it.

    A node gains the weight of a preferred term for each placed pod in its domain that the term is about, and loses the
    weight of a term of anti-affinity. A placed pod that prefers, or must have, the pod near it counts in the same way;
    a required term weighs 1. ``nodes`` is the number of nodes.
    """

    name, weight = "pod affinity", 2

    def __init__(self, pod: Pod, pods_by_node: PodsByNode, topologies: Topologies, nodes: int) -> None:
        self._by_key: dict[str, Counter[str]] = {}
        self.best = 0.0
        # Summed by domain once, so that a node costs a look-up for each topology key.
        found = list(_counts(pod, pods_by_node, topologies))
        for counts, weight in found:
            sums = self._by_key.setdefault(counts.topology.key, Counter())
            for domain, count in counts.by_domain.items():
                sums[domain] += weight * count
        # A node outside every counted domain gains nothing. So the bound is at least 0, unless every node is in a
        # domain that has gained or lost something.
        for key, sums in self._by_key.items():
            topology = topologies.get(key)
            gained_by_all = len(sums) == len(topology.size) and len(topology.domain_of) == nodes
            self.best += max((*sums.values(), *(() if gained_by_all else (0,))), default=0)

    @classmethod
    def of(cls, pod: Pod, cluster: ScoredCluster) -> PreferredAffinityScore | None:
        """Only for a pod with such terms, or that placed pods have terms about, if that tells any domains apart."""
        if is_placeholder(pod):
            return None
        # Placed pods may prefer to have this one near, though it prefers nothing itself.
        others = cluster.pods_by_node.existing_preferences(pod, cluster.topologies.label_keys)
        if pod.spec.affinity is None and not others.by_key:
            return None
        # Terms that count no pod give every node the same score: then the first node that fits will do.
        score = cls(pod, cluster.pods_by_node, cluster.topologies, cluster.nodes)
        return score if any(map(bool, score._by_key.values())) else None

    @classmethod
    def queries(cls, pod: Pod, namespaces: Namespaces) -> Iterable[DomainQuery]:
        """The pods of each term."""
        return one_by_one((term for term, _ in preferred(pod)), namespaces)

    def raw(self, state: LoadedNode) -> float:
        """Return the sum over the node's domains."""
        labels = state.node.metadata.labels or {}
        # A node without the label is in no domain: nothing counts for it.
        return float(sum(sums[labels[key]] for key, sums in self._by_key.items() if key in labels))

    def normalized(self, raws: Sequence[float]) -> list[int]:
        """Return 0 for the worst node, 100 for the best, and the others in proportion."""
        least, most = min(raws), max(raws)
        # If all nodes are equal nothing is preferred, and 0 for each says so.
        return [int(BEST_SCORE * (raw - least) / (most - least)) if most > least else 0 for raw in raws]


def _counts(pod: Pod, pods_by_node: PodsByNode, topologies: Topologies) -> Iterator[tuple[DomainCounts, int]]:
    terms = list(preferred(pod))
    queries = one_by_one((term for term, _ in terms), pods_by_node.namespaces)
    for it, (_, weight) in zip(queries, terms, strict=True):
        yield it.counts(pods_by_node, topologies), weight
    for key, carriers in pods_by_node.existing_preferences(pod, topologies.label_keys).by_key.items():
        yield carriers.within(topologies.get(key)), 1


class PreferredNodeAffinityScore(Score):
    """Preferred node affinity (kube-scheduler's NodeAffinity).

    A malformed term counts for no node: a preference is no reason to refuse a pod.
    """

    name, weight = "node affinity", 2

    def __init__(self, preferred: Sequence[PreferredSchedulingTerm]) -> None:
        # Parsed once for the pod, not once for each node.
        self._terms = [(it.weight, term) for it in preferred if (term := _parsed(it)) is not None]
        # Reached by a node that matches every term. Negative weights are refused by the API server.
        self.best = float(sum(weight for weight, _ in self._terms))

    @classmethod
    def of(cls, pod: Pod, _: ScoredCluster) -> PreferredNodeAffinityScore | None:
        """Only for a pod with such terms."""
        affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
        preferred = affinity.preferred_during_scheduling_ignored_during_execution if affinity is not None else None
        return cls(preferred) if preferred else None

    def raw(self, state: LoadedNode) -> float:
        """Return the sum of the weights of terms that the node matches."""
        labels, fields = state.node.metadata.labels or {}, {"metadata.name": state.name}
        return float(sum(weight for weight, term in self._terms if term.matches(labels, fields)))

    def normalized(self, raws: Sequence[float]) -> list[int]:
        """Return the scores in proportion to the best node."""
        most = max(raws)
        return [int(BEST_SCORE * raw / most) if most else 0 for raw in raws]


def _parsed(preferred: PreferredSchedulingTerm) -> node_selectors.NodeTerm | None:
    try:
        return node_selectors.NodeTerm(preferred.preference)
    except NodeSelectionError:
        return None


class ScheduleAnywayScore(Score):
    """Topology spread with ``ScheduleAnyway`` (kube-scheduler's PodTopologySpread): fewer pods in a domain are better.

    A node that lacks the label of a constraint scores 0.
    """

    name, weight = "topology spread", 2

    def __init__(self, constraints: Sequence[SpreadConstraint]) -> None:
        self._constraints = constraints
        # Many domains make each count small: the logarithm weighs zones and nodes alike.
        self._weights = [math.log(len(it.counts.topology.size) + 2) for it in self._constraints]
        self.best = -_rounded(self._cost(it, it.counts.fewest, weight) for it, weight in self._weighted())

    @classmethod
    def of(cls, pod: Pod, cluster: ScoredCluster) -> ScheduleAnywayScore | None:
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
        """Return the weighted number of counted pods, negated."""
        labels = state.node.metadata.labels or {}
        # As in kube-scheduler such a node is left out of the comparison, and scores 0.
        if not all(it.key in labels for it in self._constraints):
            return -math.inf
        counts = ((it, it.counts.by_domain.get(labels[it.key], 0), weight) for it, weight in self._weighted())
        return -_rounded(self._cost(*each) for each in counts)

    def normalized(self, raws: Sequence[float]) -> list[int]:
        """Return 100 for the node with the fewest pods, and for all nodes if no pod counts."""
        costs = [-raw for raw in raws if raw != -math.inf]
        # Nodes without the labels are not compared: their infinite cost would make all others equal.
        most, fewest = max(costs, default=0.0), min(costs, default=0.0)
        if not most:
            return [0 if raw == -math.inf else BEST_SCORE for raw in raws]
        return [0 if raw == -math.inf else int(BEST_SCORE * (most + fewest + raw) / most) for raw in raws]

    def _weighted(self) -> list[tuple[SpreadConstraint, float]]:
        return list(zip(self._constraints, self._weights, strict=True))

    @staticmethod
    def _cost(constraint: SpreadConstraint, count: int, weight: float) -> float:
        # A larger skew makes the difference of a few pods matter less, as in kube-scheduler.
        return count * weight + constraint.max_skew - 1


def _rounded(costs: Iterable[float]) -> float:
    # Half away from zero for the positive sums here, as Go rounds; Python's round() goes to the even number.
    return float(math.floor(sum(costs) + 0.5))


OF_NODES_SCORES: Final[tuple[type[Score], ...]] = (PreferNoScheduleScore, PreferredNodeAffinityScore)
SCORES: Final[tuple[type[Score], ...]] = (*OF_NODES_SCORES, ScheduleAnywayScore, PreferredAffinityScore)

Raw = tuple[float, ...]
"""The raw scores of one node."""
WeightedScores = tuple[tuple[str, int], ...]
"""The name and weighted score of each score for one node."""


class PodScores:
    """The scores of one pod; false if it prefers no node."""

    def __init__(self, pod: Pod, cluster: ScoredCluster, scores: Sequence[type[Score]]) -> None:
        self._scores = tuple(score for kind in scores if (score := kind.of(pod, cluster)) is not None)
        self._best = tuple(it.best for it in self._scores)

    def __bool__(self) -> bool:
        return bool(self._scores)

    def raw(self, state: LoadedNode) -> Raw:
        return tuple(it.raw(state) for it in self._scores)

    def is_ideal(self, raw: Raw) -> bool:
        """Return whether no node can be better."""
        return all(value >= best for value, best in zip(raw, self._best, strict=True))

    def weighted(self, raws: Sequence[Raw]) -> list[WeightedScores]:
        """Return the weighted scores of all nodes that fit, in their order."""
        # Only now: a score is relative to the other nodes that fit, and these are known at the end.
        columns = [it.normalized([raw[number] for raw in raws]) for number, it in enumerate(self._scores)]
        rows = zip(*columns, strict=True) if columns else ((),) * len(raws)
        return [
            tuple((it.name, it.weight * value) for it, value in zip(self._scores, row, strict=True)) for row in rows
        ]
