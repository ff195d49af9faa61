"""All nodes in the two orders that placement needs, by name and by room; and all rules of a pod together.

Both orders are kept up to date one node at a time, so that an attempt can start with the best node instead of looking
at all. Rules are in the order of their cost. The first obstacle is reported, as kube-scheduler reports its first failed
filter.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from dra_api.core import Node, Pod
from dra_ledger.basics import Journal

from dra_operator.scheduling.rules.volumes import NO_VOLUMES, PodVolumes
from dra_operator.scheduling.scores import OF_NODES_SCORES, SCORES, PodScores, ScoredCluster
from dra_operator.scheduling.state.node import LoadedNode
from dra_operator.scheduling.state.obstacle import Obstacle, Reason
from dra_operator.scheduling.state.pods_by_node import DomainQuery, PodsByNode
from dra_operator.scheduling.state.topology import Topologies

from .rules.inter_pod_affinity import Affinity, AntiAffinity, ExistingAntiAffinity
from .rules.node_rules import (
    NodeAffinity,
    NodeDeclaredFeatures,
    NodeName,
    NodePorts,
    NodeResources,
    NodeVolumes,
    PodOS,
    TaintToleration,
)
from .rules.pod_topology_spread import PodTopologySpread
from .rules.rule import Hint, NodeRule, RuleSurroundings, few, is_of_fewer_pods

OF_NODES: Final[tuple[type[NodeRule], ...]] = (
    NodeName,
    TaintToleration,
    NodeAffinity,
    PodOS,
    NodeDeclaredFeatures,
    NodePorts,
    NodeResources,
    NodeVolumes,
)
BETWEEN_PODS: Final[tuple[type[NodeRule], ...]] = (PodTopologySpread, Affinity, AntiAffinity, ExistingAntiAffinity)
RULES: Final = (*OF_NODES, *BETWEEN_PODS)


class PodRules:
    """The rules of one pod, made once per attempt; false if there are none."""

    def __init__(self, pod: Pod, around: RuleSurroundings, rules: Sequence[type[NodeRule]]) -> None:
        self._rules = [rule for kind in rules if (rule := kind.of(pod, around)) is not None]

    def __bool__(self) -> bool:
        return bool(self._rules)

    def obstacle(self, state: LoadedNode, served: Collection[str] = ()) -> Obstacle | None:
        """Return the first obstacle on the node, or None if the pod can run there. See ``NodeRule.obstacle``."""
        # The cheapest first, and the first obstacle is the answer: kube-scheduler reports its first failed filter as
        # well.
        for rule in self._rules:
            obstacle = rule.obstacle(state, served)
            if obstacle is not None:
                return obstacle
        return None

    def obstacles(self, state: LoadedNode, served: Collection[str] = ()) -> list[Obstacle]:
        """Return the obstacles of all rules, for people. The first one decides."""
        return [it for rule in self._rules for it in rule.obstacles(state, served)]

    def hints(self, reasons: Collection[Reason] | None = None) -> frozenset[Hint]:
        """Return the changes that can remove obstacles with these reasons, or with any reason if None."""
        # Most pods have no rules about other pods.
        return few(hint for rule in self._rules for hint in rule.hints(reasons)) if self._rules else frozenset()

    def may_end_with_pods(self, obstacle: Obstacle) -> bool:
        """Return whether deleting other pods, on this node or elsewhere, can remove the obstacle."""
        return obstacle.reason.ends_with_any_pod or any(map(is_of_fewer_pods, self.hints({obstacle.reason})))

    def counts(self, obstacle: Obstacle) -> Mapping[str, int] | None:
        """Return the number of pods behind the obstacle by topology domain, or None if it is not about pods."""
        return next((found for rule in self._rules if (found := rule.counts(obstacle)) is not None), None)


LEAST_ALLOCATED, MOST_ALLOCATED = "LeastAllocated", "MostAllocated"
LABELS_PER_SET: Final = 20
"""Labels that are compared in the time in which a set of pods is looked up."""
STRATEGIES: Final = (LEAST_ALLOCATED, MOST_ALLOCATED)


class Nodes:
    """Loaded nodes by name; iterating goes by name. ``strategy``: whether the emptiest node is best, or the fullest."""

    def __init__(self, states: Iterable[LoadedNode] = (), *, strategy: str = LEAST_ALLOCATED) -> None:
        self.strategy = strategy
        self._is_packed = strategy == MOST_ALLOCATED
        self._softly_tainted: set[str] = set()
        self._states: dict[str, LoadedNode] = {}
        self._names: list[str] = []
        self._order: list[tuple[float, str]] = []
        self._counting: dict[str, set[str]] = {}
        self._sizes: dict[int, int] = {}
        """How many nodes have so much cpu in all: few sizes, so that the largest is found at once."""
        self.changes: Journal[str] = Journal()
        """The names of nodes that came, went or changed."""
        self.pods_by_node = PodsByNode()
        """The pods on the nodes."""
        self._topologies = Topologies(self._after, self.pods_by_node.forget)
        for state in states:
            self.put(state)

    def put(self, state: LoadedNode) -> None:
        """The node is new, changed, or has another load."""
        old = self._states.get(state.name)
        if old is None:
            insort(self._names, state.name)
        else:
            self._take_out(old)
        self._states[state.name] = state
        self.changes.add(state.name)
        before, now = None if old is None else old.node, state.node
        # What a kubelet says every minute leaves labels and taints alone, and with them the domains of the node.
        if before is None or (
            before is not now and (before.metadata.labels, before.spec.taints) != (now.metadata.labels, now.spec.taints)
        ):
            self._topologies.put(now, before)
        # One place in a sorted list changes: an attempt need not sort ten thousand nodes.
        insort(self._order, (-self.room(state), state.name))
        cpu = state.offered.get("cpu", 0)
        self._sizes[cpu] = self._sizes.get(cpu, 0) + 1
        if state.soft_taints:
            self._softly_tainted.add(state.name)
        for resource in state.counted:
            self._counting.setdefault(resource, set()).add(state.name)

    def remove(self, name: str) -> None:
        """The node is gone; an unknown one is ignored."""
        old = self._states.pop(name, None)
        if old is not None:
            self._take_out(old)
            self._topologies.remove(old.node)
            del self._names[bisect_left(self._names, name)]
            self.changes.add(name)

    @property
    def largest_cpu(self) -> int:
        """The cpu of the node that has the most in all, in billionths; 0 without nodes."""
        return max(self._sizes, default=0)

    def get(self, name: str) -> LoadedNode | None:
        return self._states.get(name)

    def counting(self, resource: str) -> frozenset[str]:
        """The nodes that count an extended resource themselves."""
        return frozenset(self._counting.get(resource, ()))

    def minds_pods(self, pod: Pod) -> bool:
        """Whether other pods may matter to where the pod fits: few pods have rules or preferences about others."""
        spec = pod.spec
        # Pods on nodes count as well: their anti-affinity keeps others away that have no rule themselves.
        return bool(spec.affinity or spec.topology_spread_constraints or self.pods_by_node.has_terms)

    def rules_of(self, pod: Pod, volumes: PodVolumes = NO_VOLUMES) -> PodRules:
        """What the pod asks of any node."""
        # Rules between pods cost a look at all of them, and nearly no pod has any.
        around = RuleSurroundings(self.pods_by_node, self._topologies, volumes)
        return PodRules(pod, around, RULES if self.minds_pods(pod) else OF_NODES)

    def rules_without_pods(self, pod: Pod, volumes: PodVolumes) -> PodRules:
        """What the pod asks of any node, whatever pods there are."""
        return PodRules(pod, RuleSurroundings(self.pods_by_node, self._topologies, volumes), OF_NODES)

    def rules_between(self, pod: Pod) -> PodRules:
        """The rules between the pod and those on the nodes alone."""
        around = RuleSurroundings(self.pods_by_node, self._topologies)
        return PodRules(pod, around, BETWEEN_PODS if self.minds_pods(pod) else ())

    def scores_of(self, pod: Pod) -> PodScores | None:
        """Return which nodes the pod prefers, or None if it surely prefers none, as nearly every pod."""
        # Any preference needs one of these: a soft taint, affinity, a spread, or terms of pods on nodes.
        if not (self._softly_tainted or self.minds_pods(pod)):
            return None
        around = ScoredCluster(self.pods_by_node, self._topologies, len(self), bool(self._softly_tainted))
        return PodScores(pod, around, SCORES if self.minds_pods(pod) else OF_NODES_SCORES)

    def prepare(self, query: DomainQuery) -> Iterator[int]:
        """Have the answer ready, in pieces: says after each how many labels it has compared, or what takes as long."""
        # First the parts of the query, in pieces; then the answer is one sum.
        yield from self._topologies.making(query.key, query.scope)
        yield from self.pods_by_node.counting(query.selection)
        query.counts(self.pods_by_node, self._topologies)
        yield len(self) + LABELS_PER_SET * len(query.selection.sets)

    def prepare_others(self, pod: Pod) -> Iterator[int]:
        """As ``prepare``, for what pods on nodes ask about the pod."""
        for carried in (yield from self.pods_by_node.finding(pod, self._topologies.label_keys)):
            # A copy: pods that come at a pause may bring further keys.
            for key in list(carried.by_key):
                yield from self._topologies.making(key)

    def spread(self, count: int) -> list[str]:
        """So many names, evenly taken from all of them in order; the same as long as no node comes or goes."""
        total = len(self._names)
        return [self._names[number * total // count] for number in range(count)] if total > count else self.names()

    def names(self) -> list[str]:
        """All names in order."""
        return list(self._names)

    def room(self, state: LoadedNode) -> float:
        """How good the node is by the room on it, from 0 to 1."""
        return 1 - state.emptiness if self._is_packed else state.emptiness

    def best_first(self) -> Iterator[str]:
        """All names, the best node by its room first, equals by name. Nodes may come, go and change meanwhile."""
        # A copy: an attempt in pieces goes through it while nodes change.
        order = self._order.copy()
        return (name for _, name in order)

    def _after(self, name: str, most: int) -> list[Node]:
        # By name and not by position: nodes come and go between two parts.
        start = bisect_right(self._names, name)
        return [self._states[it].node for it in self._names[start : start + most]]

    def __iter__(self) -> Iterator[LoadedNode]:
        return (self._states[name] for name in self._names)

    def __len__(self) -> int:
        return len(self._states)

    def __contains__(self, name: object) -> bool:
        return name in self._states

    def _take_out(self, state: LoadedNode) -> None:
        # Found by the room that it had, so the old state is needed.
        del self._order[bisect_left(self._order, (-self.room(state), state.name))]
        cpu = state.offered.get("cpu", 0)
        self._sizes[cpu] -= 1
        if not self._sizes[cpu]:
            del self._sizes[cpu]
        self._softly_tainted.discard(state.name)
        for resource in state.counted:
            self._counting[resource].discard(state.name)
