"""Topology spread with ``whenUnsatisfiable: DoNotSchedule`` (kube-scheduler's PodTopologySpread; NR-11 to NR-14).

A constraint counts the selected pods in each domain of its topology key, and compares each domain with the one that has
the fewest. With ``maxSkew: 1`` and 2, 1 and 1 pods in three zones, a fifth pod may go to the second or third zone:
there it makes 2, one more than the fewest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from dra_api.core import Pod, TopologySpreadConstraint
from dra_api.selectors import NOTHING, Selector

from dra_operator.scheduling.state.applicants import is_placeholder
from dra_operator.scheduling.state.node import LoadedNode, tolerations_of
from dra_operator.scheduling.state.obstacle import Obstacle, Reason
from dra_operator.scheduling.state.pods_by_node import DomainQuery, PodsByNode
from dra_operator.scheduling.state.topology import (
    DomainCounts,
    Namespaces,
    NodeScope,
    PodSet,
    Selection,
    Topologies,
    equal_labels,
)

from .rule import (
    ClusterEvent,
    Direction,
    Hint,
    NodeRule,
    PodsChange,
    RuleSurroundings,
)

SPREAD: Final = Reason("spread", "node(s) didn't match pod topology spread constraints (topology key {subject})")
SPREAD_LABEL: Final = Reason(
    "spread-label", "node(s) didn't match pod topology spread constraints (missing required label {subject})"
)

DO_NOT_SCHEDULE, SCHEDULE_ANYWAY = "DoNotSchedule", "ScheduleAnyway"


@dataclass(frozen=True, slots=True)
class SpreadConstraint:
    """One constraint, and the pods that it counts."""

    key: str
    max_skew: int
    min_domains: int
    itself: int
    """1 if it selects the pod itself."""
    selection: Selection
    counts: DomainCounts

    def is_kept(self, domain: str) -> bool:
        # With fewer domains than minDomains the missing ones count as empty, so that an autoscaler adds some.
        fewest = self.counts.fewest if len(self.counts.topology.size) >= self.min_domains else 0
        return self.counts.by_domain.get(domain, 0) + self.itself - fewest <= self.max_skew


class PodTopologySpread(NodeRule):
    """All constraints of a pod that are rules."""

    def __init__(self, constraints: Sequence[SpreadConstraint]) -> None:
        self._constraints = constraints

    @classmethod
    def of(cls, pod: Pod, around: RuleSurroundings) -> PodTopologySpread | None:
        """Only for a pod with such constraints."""
        if not pod.spec.topology_spread_constraints or is_placeholder(pod):
            return None
        found = constraints(pod, DO_NOT_SCHEDULE, around.pods_by_node, around.topologies)
        return cls(found) if found else None

    @classmethod
    def queries(cls, pod: Pod, namespaces: Namespaces) -> Iterable[DomainQuery]:
        """The pods of each constraint."""
        return (query for _, query in queries_of_constraints(pod, DO_NOT_SCHEDULE))

    def obstacle(self, state: LoadedNode, _: Collection[str]) -> Obstacle | None:
        """Return the first constraint that the node does not meet, or whose label it lacks; or None."""
        labels = state.node.metadata.labels or {}
        for it in self._constraints:
            # Without the label the node is in no domain, and its pods would not be counted.
            if it.key not in labels:
                return Obstacle(SPREAD_LABEL, it.key)
            if not it.is_kept(labels[it.key]):
                return Obstacle(SPREAD, it.key)
        return None

    def hints(self, reasons: Collection[Reason] | None) -> Iterable[Hint]:
        if reasons is not None and SPREAD not in reasons:
            return set()
        return {ClusterEvent.NODE_GONE, *(PodsChange(it.selection, Direction.ANY) for it in self._constraints)}

    def counts(self, obstacle: Obstacle) -> dict[str, int] | None:
        """The pods that count, by domain, if the obstacle is of this rule."""
        if obstacle.reason is not SPREAD:
            return None
        # Domains without pods are shown as well: they are where the pod might go.
        counts = next(it.counts for it in self._constraints if it.key == obstacle.subject)
        return {domain: counts.by_domain.get(domain, 0) for domain in counts.topology.size}


def constraints(pod: Pod, when: str, pods_by_node: PodsByNode, topologies: Topologies) -> list[SpreadConstraint]:
    """The pod's constraints of one kind. A node that lacks the label of one of them counts for none."""
    return [
        SpreadConstraint(
            key=it.topology_key,
            max_skew=it.max_skew,
            min_domains=1 if it.min_domains is None else it.min_domains,
            itself=int(_selector(it, pod).matches(pod.metadata.labels or {})),
            selection=query.selection,
            counts=query.counts(pods_by_node, topologies),
        )
        for it, query in queries_of_constraints(pod, when)
    ]


def queries_of_constraints(pod: Pod, when: str) -> Iterator[tuple[TopologySpreadConstraint, DomainQuery]]:
    """The pod's constraints of one kind, and which pods they count in which domains."""
    listed = [it for it in pod.spec.topology_spread_constraints or () if it.when_unsatisfiable == when]
    # As in kube-scheduler: nodes that lack the label of any constraint count for none.
    keys = frozenset(it.topology_key for it in listed)
    for it in listed:
        selector = _selector(it, pod)
        # An empty selector selects no pod here, as in kube-scheduler, though it matches all labels. Terminating pods
        # are not counted: they are about to leave the domain.
        counted = NOTHING if selector.is_empty else selector
        selection = Selection((PodSet(counted, frozenset((pod.metadata.namespace,))),), leaving=False)
        yield it, DomainQuery(selection, it.topology_key, _nodes(it, pod, keys))


def _selector(it: TopologySpreadConstraint, pod: Pod) -> Selector:
    # The labels that the author lists are added with the pod's own values, as the API server merges them.
    return Selector.of(it.label_selector).also(equal_labels(pod, it.match_label_keys))


def _nodes(it: TopologySpreadConstraint, pod: Pod, keys: frozenset[str]) -> NodeScope:
    """Return the nodes whose pods and domains count.

    By default only nodes that the pod selects count. Otherwise domains without a suitable node would stay at zero pods,
    and the skew would forbid all others.
    """
    spec = pod.spec
    # By default taints are ignored, as in kube-scheduler.
    tolerations = tolerations_of(pod) if it.node_taints_policy == "Honor" else None
    if it.node_affinity_policy == "Ignore":
        return NodeScope(keys, tolerations=tolerations)
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity is not None else None
    return NodeScope(keys, frozenset((spec.node_selector or {}).items()), required, tolerations)
