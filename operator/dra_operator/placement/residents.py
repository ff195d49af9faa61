"""The pods on nodes, those whose binding is under way included, as rules between pods ask about them.

Three questions are answered by counts that are kept up to date pod by pod: how many pods of a selection are where, how
many pods are where that keep a given pod away, and where pods are that prefer to have it near or not. A selection is
counted from its first use on; the one that was asked for least recently is forgotten first. Without selections in use,
a pod that comes or goes costs one look-up or two.

The rules of a pod that has too many of them do not count (``rule_count``).

A pod is known by its UID, so that one and its successor of the same name do not get mixed up.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from dra_api.core import Pod

from .anchors import Anchors
from .population import Population
from .rule_count import has_too_many_rules
from .selection import Selection
from .terms import AffinityTerm, Namespaces, affinity, anti_affinity, preferred
from .topology import Topology

KEPT = 512  # selections that are counted
REQUIRED_WEIGHT = 1  # of a resident's required affinity, where preferences are compared

Place = tuple[Pod, str]
"""A pod, and the node where it is."""
Carried = tuple[AffinityTerm, Population]
"""A term, and the pods that carry it, or the sums of their weights."""


class Residents:
    """``namespaces`` has the labels of each namespace; the view of the cluster fills it."""

    def __init__(self) -> None:
        self._pods: dict[str, Place] = {}
        self._by_namespace: dict[str, dict[str, Place]] = {}
        self._counted: OrderedDict[Selection, Population] = OrderedDict()
        self._selections: Anchors[Selection] = Anchors()
        self._repelling = Carriers()
        self._leaning = Carriers()
        self.namespaces: dict[str, dict[str, str]] = {}

    def put(self, pod: Pod, node: str) -> None:
        """The pod is on the node or on its way to it, or has changed there."""
        uid = pod.metadata.uid
        old = self._pods.get(uid)
        if old is None or old[1] != node or not counts_alike(old[0], pod):
            self.remove(uid)
            self._count(pod, node, 1)
        self._pods[uid] = self._by_namespace.setdefault(pod.metadata.namespace, {})[uid] = (pod, node)

    def remove(self, uid: str) -> None:
        """The pod is gone; an unknown one is ignored."""
        old = self._pods.pop(uid, None)
        if old is not None:
            namespace = self._by_namespace[old[0].metadata.namespace]
            del namespace[uid]
            if not namespace:
                del self._by_namespace[old[0].metadata.namespace]
            self._count(*old, -1)

    def at(self, uid: str) -> Place | None:
        """The pod as it counts, and where; None if it is on no node."""
        return self._pods.get(uid)

    def count(self, selection: Selection) -> Population:
        """The pods of a selection."""
        found = self._counted.get(selection)
        if found is None:
            found = self._counted[selection] = Population()
            self._selections.add(selection.anchor, selection)
            for pod, node in self._among(selection):
                if selection.matches(pod):
                    found.add(node, 1)
            if len(self._counted) > KEPT:
                oldest, population = self._counted.popitem(last=False)
                self._selections.discard(oldest.anchor, oldest)
                population.close()
        self._counted.move_to_end(selection)
        return found

    def _among(self, selection: Selection) -> Iterator[Place]:
        """All pods that can be in the selection: what a tenant asks about its own namespace costs by its own pods."""
        names = selection.namespaces
        if names is None:
            return iter(self._pods.values())
        return (place for name in names for place in self._by_namespace.get(name, {}).values())

    def repelling(self, pod: Pod) -> list[Carried]:
        """What keeps the pod away: required anti-affinity, with the pods that have it."""
        return list(self._repelling.about(pod, self.namespaces))

    def leaning(self, pod: Pod) -> list[Carried]:
        """What prefers to have the pod near (or not, with negative weights): terms, with the weights of their pods."""
        return list(self._leaning.about(pod, self.namespaces))

    def forget(self, topology: Topology) -> None:
        """The topology is not kept up to date any more."""
        for population in (
            *self._counted.values(),
            *self._repelling.populations(),
            *self._leaning.populations(),
        ):
            population.forget(topology)

    def miscounted(self) -> Iterator[str]:
        """What is kept step by step and differs from a count made afresh; nothing, unless there is a bug."""
        fresh = Residents()
        for pod, node in self._pods.values():
            fresh.put(pod, node)
        for selection, population in self._counted.items():
            if population.by_node != fresh.count(selection).by_node:
                yield f"the pods of {selection} are miscounted"
        if (self._repelling, self._leaning) != (fresh._repelling, fresh._leaning):
            yield "the pods with affinity or anti-affinity to others are miscounted"

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """The UID of each pod, and its node."""
        return ((uid, node) for uid, (_, node) in self._pods.items())

    def _count(self, pod: Pod, node: str, number: int) -> None:
        for selection in self._selections.near(pod.metadata.labels):
            if selection.matches(pod):
                self._counted[selection].add(node, number)
        if pod.spec.affinity is None or has_too_many_rules(pod):
            return
        for term in anti_affinity(pod):
            self._repelling.add(term, node, number)
        for term in affinity(pod):
            self._leaning.add(term, node, number * REQUIRED_WEIGHT)
        for term, weight in preferred(pod):
            self._leaning.add(term, node, number * weight)


class Carriers:
    """Pods by the terms that they carry: thousands of pods of one workload carry the same one."""

    def __init__(self) -> None:
        self._pods: dict[AffinityTerm, Population] = {}
        self._terms: Anchors[AffinityTerm] = Anchors()

    def add(self, term: AffinityTerm, node: str, number: int) -> None:
        """So many pods more on the node carry the term."""
        population = self._pods.get(term)
        if population is None:
            population = self._pods[term] = Population()
            self._terms.add(term.selector.anchor, term)
        population.add(node, number)
        if not population.by_node:
            population.close()
            del self._pods[term]
            self._terms.discard(term.selector.anchor, term)

    def about(self, pod: Pod, namespaces: Namespaces) -> Iterator[Carried]:
        """The terms that select the pod, each with its carriers."""
        if not self._pods:
            return
        for term in self._terms.near(pod.metadata.labels):
            if term.is_about(pod, namespaces):
                yield term, self._pods[term]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Carriers):
            return NotImplemented
        mine, theirs = ({term: it.by_node for term, it in one._pods.items()} for one in (self, other))
        return mine == theirs

    __hash__ = None  # type: ignore[assignment]

    def populations(self) -> Iterator[Population]:
        """All carriers."""
        return iter(self._pods.values())


def counts_alike(one: Pod, other: Pod) -> bool:
    """Whether rules between pods see no difference between two versions of a pod on the same node."""
    return (
        one.metadata.labels == other.metadata.labels
        and (one.metadata.deletion_timestamp is None) == (other.metadata.deletion_timestamp is None)
        and one.spec.affinity == other.spec.affinity
    )
