"""Required affinity and anti-affinity between pods (kube-scheduler's InterPodAffinity).

A pod may have to be near pods (**affinity**: one pod that all terms select, in the same domain of each term's topology
key), must stay away from pods (**anti-affinity**), and is kept away by pods on nodes whose anti-affinity is about it
(**existing pods' anti-affinity**). The first pod of a group with affinity to its own kind may go anywhere: while no
such pod is in any domain, a pod that its own terms select needs only the topology labels (NR-02 to NR-05).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from dra_api.core import Pod
from dra_api.selectors import Labels

from dra_operator.scheduling.state.applicants import is_placeholder
from dra_operator.scheduling.state.node import LoadedNode
from dra_operator.scheduling.state.obstacle import Obstacle, Reason
from dra_operator.scheduling.state.pods_by_node import Carried, DomainQuery, PodsByNode, one_by_one, together
from dra_operator.scheduling.state.topology import (
    AffinityTerm,
    Namespaces,
    Topologies,
    affinity,
    anti_affinity,
)

from .rule import (
    ClusterEvent,
    Direction,
    Hint,
    NodeRule,
    PodsChange,
    RepellerGone,
    RuleSurroundings,
)

POD_AFFINITY: Final = Reason("pod-affinity", "node(s) didn't match pod affinity rules (topology key {subject})")
POD_ANTI_AFFINITY: Final = Reason(
    "pod-anti-affinity", "node(s) didn't match pod anti-affinity rules (topology key {subject})"
)
REPELLED: Final = Reason(
    "repelled", "node(s) didn't satisfy existing pods anti-affinity rules (topology key {subject})"
)

Counts = Mapping[str, int]
"""Pods by topology domain."""


class Affinity(NodeRule):
    """The pods that the pod must be near."""

    def __init__(
        self, pod: Pod, terms: Sequence[AffinityTerm], pods_by_node: PodsByNode, topologies: Topologies
    ) -> None:
        self._terms = terms
        self._selection = together(terms, pods_by_node.namespaces)
        # Pods that all terms select, not each term alone: so kube-scheduler reads required affinity (NR-02).
        near = pods_by_node.count(self._selection)
        self._counts = {term.key: near.within(topologies.get(term.key)).by_domain for term in terms}
        self._is_of_group = self._selection.matches(pod)

    @classmethod
    def of(cls, pod: Pod, around: RuleSurroundings) -> Affinity | None:
        """Only for a pod with required affinity."""
        terms = affinity(pod) if pod.spec.affinity is not None and not is_placeholder(pod) else ()
        return cls(pod, terms, around.pods_by_node, around.topologies) if terms else None

    @classmethod
    def queries(cls, pod: Pod, namespaces: Namespaces) -> Iterable[DomainQuery]:
        """The pods that all terms are about, once for each topology key."""
        if not (terms := affinity(pod)):
            return ()
        selection = together(terms, namespaces)
        return [DomainQuery(selection, key) for key in dict.fromkeys(term.key for term in terms)]

    def obstacle(self, state: LoadedNode, _: Collection[str]) -> Obstacle | None:
        """Return a topology key in whose domain no such pod is, or which the node lacks; or None."""
        labels = state.node.metadata.labels or {}
        # A node without the label is in no domain, so not even the first pod of a group may go there.
        missing = next((key for key in self._counts if key not in labels), None)
        if missing is None:
            missing = next((key for key, counts in self._counts.items() if labels[key] not in counts), None)
            # The first pod of a group with affinity to itself would wait for itself for ever (NR-05).
            if missing is not None and self._is_of_group and not any(self._counts.values()):
                return None
        return Obstacle(POD_AFFINITY, missing) if missing is not None else None

    def hints(self, reasons: Collection[Reason] | None) -> Iterable[Hint]:
        if reasons is not None and POD_AFFINITY not in reasons:
            return set()
        # Only more such pods help; one that leaves never does, except for the first of a group.
        found = {PodsChange(self._selection, Direction.MORE), *_of_namespaces(self._terms)}
        # It can also become the first of its group: when the last other one leaves, or the node with it.
        if self._is_of_group:
            found |= {PodsChange(self._selection, Direction.NONE_LEFT), ClusterEvent.NODE_GONE}
        return found

    def counts(self, obstacle: Obstacle) -> Counts | None:
        """The pods to be near, by domain, if the obstacle is of this rule."""
        return self._counts[obstacle.subject] if obstacle.reason is POD_AFFINITY else None


class AntiAffinity(NodeRule):
    """The pods that the pod must not be near."""

    def __init__(self, terms: Sequence[AffinityTerm], pods_by_node: PodsByNode, topologies: Topologies) -> None:
        self._terms = terms
        queries = list(one_by_one(terms, pods_by_node.namespaces))
        self._selections = [it.selection for it in queries]
        self._counts = [(it.key, it.counts(pods_by_node, topologies).by_domain) for it in queries]

    @classmethod
    def of(cls, pod: Pod, around: RuleSurroundings) -> AntiAffinity | None:
        """Only for a pod with required anti-affinity."""
        terms = anti_affinity(pod) if pod.spec.affinity is not None and not is_placeholder(pod) else ()
        return cls(terms, around.pods_by_node, around.topologies) if terms else None

    @classmethod
    def queries(cls, pod: Pod, namespaces: Namespaces) -> Iterable[DomainQuery]:
        """The pods of each term."""
        return one_by_one(anti_affinity(pod), namespaces)

    def obstacle(self, state: LoadedNode, _: Collection[str]) -> Obstacle | None:
        """Return the first topology key whose domain excludes the node, or None."""
        key = _hit(self._counts, state.node.metadata.labels or {})
        return Obstacle(POD_ANTI_AFFINITY, key) if key is not None else None

    def hints(self, reasons: Collection[Reason] | None) -> Iterable[Hint]:
        if reasons is not None and POD_ANTI_AFFINITY not in reasons:
            return set()
        # Each term by itself: one pod of any of them is enough to keep the pod away.
        fewer = {PodsChange(selection, Direction.FEWER) for selection in self._selections}
        return {*fewer, ClusterEvent.NODE_GONE, *_of_namespaces(self._terms)}

    def counts(self, obstacle: Obstacle) -> Counts | None:
        """The pods to stay away from, by domain, if the obstacle is of this rule."""
        return _of_key(self._counts, obstacle) if obstacle.reason is POD_ANTI_AFFINITY else None


class ExistingAntiAffinity(NodeRule):
    """The pods on nodes whose anti-affinity is about the pod."""

    def __init__(self, pod: Pod, found: Carried, topologies: Topologies) -> None:
        self._pod = pod
        self._minds_namespaces = found.minds_namespaces
        self._counts = [(key, carriers.within(topologies.get(key)).by_domain) for key, carriers in found.by_key.items()]

    @classmethod
    def of(cls, pod: Pod, around: RuleSurroundings) -> ExistingAntiAffinity | None:
        """Only for a pod that others keep away. No pod keeps the claim of a placeholder pod away."""
        if is_placeholder(pod):
            return None
        # Asked of every pod that comes: the rule is in other pods, and nothing in this one tells of it.
        found = around.pods_by_node.existing_anti_affinity(pod, around.topologies.label_keys)
        return cls(pod, found, around.topologies) if found.by_key else None

    def obstacle(self, state: LoadedNode, _: Collection[str]) -> Obstacle | None:
        """Return the first topology key whose domain excludes the node, or None."""
        key = _hit(self._counts, state.node.metadata.labels or {})
        return Obstacle(REPELLED, key) if key is not None else None

    def hints(self, reasons: Collection[Reason] | None) -> Iterable[Hint]:
        if reasons is not None and REPELLED not in reasons:
            return set()
        namespaces = {ClusterEvent.NAMESPACE} if self._minds_namespaces else set()
        # A domain can lose its repellers with a node as well: their pods are deleted only later.
        return {RepellerGone.of(self._pod), ClusterEvent.NODE_GONE, *namespaces}

    def counts(self, obstacle: Obstacle) -> Counts | None:
        """The pods that keep this one away, by domain, if the obstacle is of this rule."""
        return _of_key(self._counts, obstacle) if obstacle.reason is REPELLED else None


def _of_key(counts: Sequence[tuple[str, Counts]], obstacle: Obstacle) -> Counts:
    found: Counter[str] = Counter()
    for key, domains in counts:
        if key == obstacle.subject:
            found.update(domains)
    return found


def _hit(counts: Sequence[tuple[str, Counts]], labels: Labels) -> str | None:
    """The first topology key whose domain excludes the node."""
    # A node without the label is in no domain, and nothing keeps the pod away from it.
    return next((key for key, domains in counts if key in labels and labels[key] in domains), None)


def _of_namespaces(terms: Sequence[AffinityTerm]) -> set[Hint]:
    return {ClusterEvent.NAMESPACE} if any(term.minds_namespaces for term in terms) else set()
