"""Topology spread with ``whenUnsatisfiable: DoNotSchedule`` (kube-scheduler's PodTopologySpread; NR-11 to NR-14).

A constraint counts the residents that it selects in each domain of its topology key, and compares them with the domain
that has the fewest. With ``maxSkew: 1`` and 2, 1 and 1 such pods in three zones, a fourth pod may go to the second or
the third zone: there it makes 2, which is one more than the fewest.
"""

from __future__ import annotations

from dataclasses import dataclass

from dra_api.core import Pod, TopologySpreadConstraint
from dra_api.label_selectors import NOTHING, Labels, Selector

from .hints import Elsewhere, Hint, PodsChange, Turn
from .obstacle import Obstacle, ObstacleKind
from .residents import Residents
from .selection import PodSet, Selection
from .terms import equal_labels
from .topology import DomainCounts, NodeScope, Topologies

DO_NOT_SCHEDULE, SCHEDULE_ANYWAY = "DoNotSchedule", "ScheduleAnyway"


@dataclass(frozen=True, slots=True)
class Constraint:
    """One constraint, and the pods that it counts."""

    key: str
    max_skew: int
    min_domains: int
    itself: int
    """1 if it selects the pod itself."""
    selection: Selection
    counts: DomainCounts

    def is_kept(self, domain: str) -> bool:
        """Whether the pod may be in the domain."""
        fewest = self.counts.fewest if len(self.counts.topology.size) >= self.min_domains else 0
        return self.counts.by_domain.get(domain, 0) + self.itself - fewest <= self.max_skew


class Spread:
    """All constraints of a pod that are rules."""

    def __init__(self, pod: Pod, residents: Residents, topologies: Topologies) -> None:
        self._constraints = constraints(pod, DO_NOT_SCHEDULE, residents, topologies)

    def __bool__(self) -> bool:
        return bool(self._constraints)

    def obstacle(self, labels: Labels) -> Obstacle | None:
        """Why the pod cannot go to a node with these labels."""
        for it in self._constraints:
            if it.key not in labels:
                return Obstacle(ObstacleKind.SPREAD_LABEL, it.key)
            if not it.is_kept(labels[it.key]):
                return Obstacle(ObstacleKind.SPREAD, it.key)
        return None

    def hints(self, kinds: frozenset[ObstacleKind]) -> set[Hint]:
        """What can remove obstacles of these kinds."""
        if ObstacleKind.SPREAD not in kinds:
            return set()
        return {Elsewhere.NODE_GONE, *(PodsChange(it.selection, Turn.ANY) for it in self._constraints)}

    def counts(self, obstacle: Obstacle) -> dict[str, int] | None:
        """The pods that count, by domain, if the obstacle is of this rule."""
        if obstacle.kind is not ObstacleKind.SPREAD:
            return None
        counts = next(it.counts for it in self._constraints if it.key == obstacle.subject)
        return {domain: counts.by_domain.get(domain, 0) for domain in counts.topology.size}


def constraints(pod: Pod, when: str, residents: Residents, topologies: Topologies) -> list[Constraint]:
    """The pod's constraints of one kind. A node that lacks the label of one of them counts for none."""
    listed = [it for it in pod.spec.topology_spread_constraints or () if it.when_unsatisfiable == when]
    keys = frozenset(it.topology_key for it in listed)
    return [_constraint(it, pod, keys, residents, topologies) for it in listed]


def _constraint(
    it: TopologySpreadConstraint, pod: Pod, keys: frozenset[str], residents: Residents, topologies: Topologies
) -> Constraint:
    selector = Selector.of(it.label_selector).also(equal_labels(pod, it.match_label_keys))
    counted = NOTHING if selector.is_empty else selector
    selection = Selection((PodSet(counted, frozenset((pod.metadata.namespace,))),), leaving=False)
    topology = topologies.get(it.topology_key, _nodes(it, pod, keys))
    return Constraint(
        key=it.topology_key,
        max_skew=it.max_skew,
        min_domains=1 if it.min_domains is None else it.min_domains,
        itself=int(selector.matches(pod.metadata.labels or {})),
        selection=selection,
        counts=residents.count(selection).within(topology),
    )


def _nodes(it: TopologySpreadConstraint, pod: Pod, keys: frozenset[str]) -> NodeScope:
    """The nodes whose pods and domains count."""
    spec = pod.spec
    tolerations = (spec.tolerations or ()) if it.node_taints_policy == "Honor" else None
    if it.node_affinity_policy == "Ignore":
        return NodeScope(keys, tolerations=tolerations)
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity is not None else None
    return NodeScope(keys, frozenset((spec.node_selector or {}).items()), required, tolerations)
