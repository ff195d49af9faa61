"""The pods on nodes, including pods whose binding is under way, as rules between pods ask about them.

Three questions are answered by counts that are kept up to date pod by pod: on which nodes the pods of a selection are,
on which nodes pods keep a given pod away, and where pods prefer to have it near or not. A selection is counted from its
first use on; the one that was asked for least recently is forgotten first. Without selections in use, a pod that comes
or goes costs one look-up or two. A pod is known by its UID, so that a pod and its successor of the same name do not get
mixed up. The rules of a pod that has too many of them do not count.

A pod that comes has to know, for each topology key, where the pods are that carry a term about it. Thousands of pods of
one workload carry the same term, and thousands that come have the same labels. So ``Carriers`` keeps the answer for
each namespace and labels that were asked for, as sums that are kept up to date. The first question takes a look at
every term that may be about such a pod, which are as many as tenants make them, so it is answered in pieces. To find
these terms without a look at all others, ``Anchors`` files each under one label.

Rules between pods are the terms of affinity and anti-affinity, required or preferred, and topology spread constraints.
Each of them is compared with all pods of its namespaces. People write a few; an object of the size that the API server
admits has room for thousands, which would take seconds. So a pod with more than ``MOST_RULES``, or whose rules ask for
more than ``MOST_LABELS`` in sum, is not placed (``unsupported``), and keeps no other pod away. A spread constraint also
asks for the labels that select the nodes that count: each node is compared with them for each constraint.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Generator, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Generic, NamedTuple, TypeVar

from dra_api.core import Pod, PodAffinityTerm, TopologySpreadConstraint
from dra_api.meta import LabelSelector
from dra_api.selectors import Labels

from dra_operator.scheduling.pieces import decided
from dra_operator.scheduling.state.node import requirements
from dra_operator.scheduling.state.topology import (
    ANY_NODE,
    AffinityTerm,
    Anchor,
    DomainCounts,
    DomainsByNode,
    Labelled,
    Namespaces,
    NodeScope,
    Place,
    Population,
    Selection,
    Topologies,
    affinity,
    anti_affinity,
    preferred,
)

K = TypeVar("K", bound=Hashable)
MOST_RULES: Final = 100
MOST_LABELS: Final = 500
KEPT_ANSWERS: Final = 64
"""Answers that are kept up to date; each change of a pod with terms is compared with all of them."""
KEPT_ANSWERS_OF_NAMESPACE: Final = 16
"""Of them, those of one namespace: its pods drive out no others' answers."""
CARRIER_PART_LABELS: Final = 10_000
"""What is looked at in a row, in labels that are compared in the same time: a millisecond or two."""
_LABELS_PER_TERM: Final = 30
"""Labels that are compared in the time in which a term is."""
_LABELS_PER_NODE: Final = 8
"""Labels that are compared in the time in which the carriers on a node are added."""

Kind = tuple[str, frozenset[tuple[str, str]]]
"""The namespace and the labels of pods."""


class Anchors(Generic[K]):
    """Keys under their anchors, in the order in which they came."""

    def __init__(self) -> None:
        self._keys: dict[Anchor, dict[K, None]] = {}

    def add(self, anchor: Anchor, key: K) -> None:
        self._keys.setdefault(anchor, {})[key] = None

    def discard(self, anchor: Anchor, key: K) -> None:
        """Remove a key; an unknown one is ignored."""
        # Anchors come from selectors of tenants, so an empty one must not stay behind.
        keys = self._keys.get(anchor, {})
        keys.pop(key, None)
        if not keys:
            self._keys.pop(anchor, None)

    def number(self, anchor: Anchor) -> int:
        """How many keys are filed under the anchor."""
        return len(self._keys.get(anchor, ()))

    def all_near(self, labels: Mapping[str, str] | None) -> dict[K, None]:
        """As ``near``, at one moment: without a look at any of the keys, so fast also if they are many."""
        # Keys without an anchor may concern any pod.
        found = dict(self._keys.get(None, ()))
        for label in (labels or {}).items():
            found.update(self._keys.get(label, ()))
        return found

    def near(self, labels: Mapping[str, str] | None) -> Iterator[K]:
        """The keys that may concern a pod with these labels. No key must be added or removed during the iteration."""
        if not self._keys:
            return
        yield from self._keys.get(None, ())
        for label in (labels or {}).items():
            yield from self._keys.get(label, ())


def has_too_many_rules(pod: Pod) -> bool:
    """Whether the pod has more rules between pods than are looked at."""
    rules = labels = 0
    for compared in _between_pods(pod):
        rules, labels = rules + 1, labels + compared
    return rules > MOST_RULES or labels > MOST_LABELS


def _between_pods(pod: Pod) -> Iterator[int]:
    """For each rule, the labels that it asks for."""
    for constraint in pod.spec.topology_spread_constraints or ():
        yield _labels(constraint.label_selector) + len(constraint.match_label_keys or ()) + _of_nodes(pod, constraint)
    affinity = pod.spec.affinity
    for kind in (affinity.pod_affinity, affinity.pod_anti_affinity) if affinity is not None else ():
        if kind is None:
            continue
        for term in kind.required_during_scheduling_ignored_during_execution or ():
            yield _of_term(term)
        for weighted in kind.preferred_during_scheduling_ignored_during_execution or ():
            yield _of_term(weighted.pod_affinity_term)


def _of_nodes(pod: Pod, constraint: TopologySpreadConstraint) -> int:
    # The labels and taints of each node are compared as well, for each constraint.
    tolerations = len(pod.spec.tolerations or ()) if constraint.node_taints_policy == "Honor" else 0
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity is not None else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity is not None else None
    if required is None or constraint.node_affinity_policy == "Ignore":
        return tolerations
    return tolerations + requirements(required)


def _of_term(term: PodAffinityTerm) -> int:
    keys = len(term.match_label_keys or ()) + len(term.mismatch_label_keys or ())
    return _labels(term.label_selector) + _labels(term.namespace_selector) + keys


def _labels(selector: LabelSelector | None) -> int:
    return 0 if selector is None else len(selector.match_labels or {}) + len(selector.match_expressions or ())


class Carried:
    """The carriers of all terms about pods of one kind, or the sums of their weights, by topology key."""

    def __init__(self, pod: Pod, namespaces: Namespaces, keys: Collection[str]) -> None:
        self.keys = frozenset(keys)
        """The topology keys that count: a tenant may name thousands of others."""
        self.namespace, self._labels = pod.metadata.namespace, pod.metadata.labels or {}
        self.there: Labels = namespaces.get(self.namespace, {})
        """The labels of the namespace for which it is true."""
        self.by_key: dict[str, Population] = {}
        self.minds_namespaces = False
        """Whether one of the terms depends, or did depend, on labels of namespaces."""

    def concerns(self, term: AffinityTerm) -> bool:
        """Whether the term is about such pods, and its topology key counts."""
        return term.key in self.keys and term.concerns(self.namespace, self.there, self._labels)

    def add(self, term: AffinityTerm, by_node: Mapping[str, int]) -> None:
        """So many pods more carry a term about such pods."""
        # Never taken back: that a term is gone says nothing about how the answer came about.
        self.minds_namespaces = self.minds_namespaces or term.minds_namespaces
        population = self.by_key.setdefault(term.key, Population())
        for node, number in by_node.items():
            population.add(node, number)
        # Topology keys come from tenants: one of which no carrier is left would stay for ever.
        if not population.by_node:
            population.close()
            del self.by_key[term.key]


NOBODY: Final = Carried(Pod(), {}, ())
"""What is found where no pod carries a term."""


class Carriers:
    """Pods by the terms that they carry. One answer at a time is being found, by all who ask in turn."""

    def __init__(self) -> None:
        self._pods: dict[AffinityTerm, dict[str, int]] = {}
        self._terms: Anchors[AffinityTerm] = Anchors()
        self._kept: OrderedDict[Kind, Carried] = OrderedDict()
        self._unfinished: tuple[Kind, Carried, dict[AffinityTerm, None]] | None = None
        """With the terms that have not been looked at yet."""

    def add(self, term: AffinityTerm, node: str, number: int) -> None:
        """So many pods more on the node carry the term."""
        growing = [carried for carried in self._kept.values() if carried.concerns(term)]
        if self._unfinished is not None:
            _, carried, rest = self._unfinished
            # Terms that are still to be looked at bring their pods with them, this one included.
            if term not in rest and carried.concerns(term):
                growing.append(carried)
        for carried in growing:
            carried.add(term, {node: number})
        # Pods of one Deployment carry equal terms: they are counted together.
        by_node = self._pods.get(term)
        if by_node is None:
            by_node = self._pods[term] = {}
            self._terms.add(term.selector.anchor, term)
        total = by_node.pop(node, 0) + number
        if total:
            by_node[node] = total
        if not by_node:
            del self._pods[term]
            self._terms.discard(term.selector.anchor, term)
            if self._unfinished is not None:
                self._unfinished[2].pop(term, None)

    def finding(self, pod: Pod, namespaces: Namespaces, keys: Collection[str]) -> Generator[int, None, Carried]:
        """The carriers of terms about the pod with one of these topology keys, which are labels of nodes.

        Says after each piece of work how many labels it has compared.
        """
        if not self._pods:
            return NOBODY
        # Pods of one kind get the same answer, which is found once for all of them.
        kind = pod.metadata.namespace, frozenset((pod.metadata.labels or {}).items())
        there = namespaces.get(pod.metadata.namespace, {})
        while True:
            found = self._kept.get(kind)
            # An answer that was found by other labels of the namespace, or for fewer topologies, is none.
            if found is not None and found.there == there and found.keys.issuperset(keys):
                self._kept.move_to_end(kind)
                return found
            # Another pod's answer may be half found: it is brought to its end first, by whoever asks, so none begins
            # anew.
            if self._unfinished is None:
                self._unfinished = kind, Carried(pod, namespaces, keys), self._terms.all_near(pod.metadata.labels)
            yield self._look()

    def _look(self) -> int:
        assert self._unfinished is not None
        kind, carried, rest = self._unfinished
        cost = 0
        while rest and cost < CARRIER_PART_LABELS:
            term, _ = rest.popitem()
            cost += _LABELS_PER_TERM
            if carried.concerns(term):
                by_node = self._pods[term]
                carried.add(term, by_node)
                cost += _LABELS_PER_NODE * len(by_node)
        if not rest:
            self._unfinished = None
            self._keep(kind, carried)
        return cost

    def _keep(self, kind: Kind, carried: Carried) -> None:
        self._drop(kind)
        self._kept[kind] = carried
        # A tenant with pods of many kinds drives out its own answers.
        own = [each for each in self._kept if each[0] == carried.namespace]
        if len(own) > KEPT_ANSWERS_OF_NAMESPACE:
            self._drop(own[0])
        elif len(self._kept) > KEPT_ANSWERS:
            self._drop(next(iter(self._kept)))

    def _drop(self, kind: Kind) -> None:
        dropped = self._kept.pop(kind, None)
        # Closed, since topologies would go on updating counts that nobody reads.
        for population in dropped.by_key.values() if dropped is not None else ():
            population.close()

    def __bool__(self) -> bool:
        return bool(self._pods)

    def populations(self) -> Iterator[Population]:
        """All carriers that are counted by topology domain."""
        return (population for carried in self._kept.values() for population in carried.by_key.values())

    def miscounted(self) -> bool:
        """Whether a sum is not what its terms come to; never, unless there is a bug."""
        for carried in self._kept.values():
            sums: dict[str, Counter[str]] = {}
            for term, by_node in self._pods.items():
                if carried.concerns(term):
                    found = sums.setdefault(term.key, Counter())
                    for node, number in by_node.items():
                        found[node] += number
            due = {key: {node: it for node, it in found.items() if it} for key, found in sums.items()}
            if {key: it.by_node for key, it in carried.by_key.items()} != {key: it for key, it in due.items() if it}:
                return True
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Carriers) and self._pods == other._pods

    __hash__ = None  # type: ignore[assignment]


KEPT_SELECTIONS = 512  # selections that are counted
KEPT_SELECTIONS_WITHOUT_ANCHOR = 128  # of them, those that each change of any pod is compared with
REQUIRED_WEIGHT = 1  # of a placed pod's required affinity, where preferences are compared

T = TypeVar("T")


class PodsByNode:
    """``namespaces`` has the labels of each namespace; the cache fills it."""

    def __init__(self) -> None:
        self._pods: dict[str, Labelled] = {}
        self._by_namespace: dict[str, dict[str, Labelled]] = {}
        self._changes = 0
        self._counted: OrderedDict[Selection, Population] = OrderedDict()
        self._selections: Anchors[Selection] = Anchors()
        self._anti_affinity = Carriers()
        self._preferences = Carriers()
        self.namespaces: dict[str, dict[str, str]] = {}

    def put(self, pod: Pod, node: str) -> None:
        """The pod is on the node or on its way to it, or has changed there."""
        uid = pod.metadata.uid
        self._changes += 1
        old = self.at(uid)
        # A new version that no rule can tell from the old one costs one comparison.
        if old is None or old[1] != node or not counts_alike(old[0], pod):
            self.remove(uid)
            self._count(pod, node, 1)
        there = self._by_namespace.setdefault(pod.metadata.namespace, {})
        self._pods[uid] = there[uid] = (pod.metadata.labels or {}, (pod, node))

    def remove(self, uid: str) -> None:
        """The pod is gone; an unknown one is ignored."""
        old = self._pods.pop(uid, None)
        if old is not None:
            self._changes += 1
            pod, node = old[1]
            namespace = self._by_namespace[pod.metadata.namespace]
            del namespace[uid]
            if not namespace:
                del self._by_namespace[pod.metadata.namespace]
            self._count(pod, node, -1)

    @contextmanager
    def without(self, pods: Collection[Pod]) -> Iterator[None]:
        """Inside the block these pods are on no node: what would be, once they have ended."""
        places = [place for pod in pods if (place := self.at(pod.metadata.uid)) is not None]
        # All of them before anything is asked: a gang of victims goes at once.
        for pod, _ in places:
            self.remove(pod.metadata.uid)
        try:
            yield
        finally:
            for place in places:
                self.put(*place)

    def at(self, uid: str) -> Place | None:
        """The pod as it counts, and where; None if it is on no node."""
        found = self._pods.get(uid)
        return found[1] if found is not None else None

    def count(self, selection: Selection) -> Population:
        return decided(self.counting(selection))

    def counting(self, selection: Selection) -> Generator[int, None, Population]:
        """As ``count``, in pieces: says after each how many pods it has looked at. They may come and go meanwhile."""
        if selection not in self._counted:
            # A copy of the places as they are now: pods come and go at the pauses.
            changes, seen = self._changes, self._near(selection)
            yield len(seen)
            selected = yield from selection.among(seen)
            # Only what came or went meanwhile is looked at again.
            if self._changes != changes:
                selected = self._brought_up_to_date(selection, seen, selected)
            if selection not in self._counted:
                self._counted[selection] = Population([node for _, (_, node) in selected])
                self._selections.add(selection.anchor, selection)
                self._forget_the_oldest(selection)
        self._counted.move_to_end(selection)
        return self._counted[selection]

    def _brought_up_to_date(
        self, selection: Selection, seen: list[Labelled], selected: list[Labelled]
    ) -> list[Labelled]:
        now = self._near(selection)
        old, there = {id(it) for it in seen}, {id(it) for it in now}
        more = decided(selection.among([it for it in now if id(it) not in old]))
        return [it for it in selected if id(it) in there] + more

    def _forget_the_oldest(self, new: Selection) -> None:
        # Each change of any pod is compared with all selections that name no label, so few of them are kept.
        if new.anchor is None and self._selections.number(None) > KEPT_SELECTIONS_WITHOUT_ANCHOR:
            oldest = next(it for it in self._counted if it.anchor is None)
        elif len(self._counted) > KEPT_SELECTIONS:
            oldest = next(iter(self._counted))
        else:
            return
        self._selections.discard(oldest.anchor, oldest)
        self._counted.pop(oldest).close()

    def _near(self, selection: Selection) -> list[Labelled]:
        """All pods that can be in the selection: what a tenant asks about its own namespace costs by its own pods."""
        names = selection.namespaces
        if names is None:
            return list(self._pods.values())
        return [place for name in names for place in self._by_namespace.get(name, {}).values()]

    @property
    def has_terms(self) -> bool:
        """Whether any pod carries a term about pods that come."""
        return bool(self._anti_affinity or self._preferences)

    def existing_anti_affinity(self, pod: Pod, keys: Collection[str]) -> Carried:
        """What keeps the pod away: the pods that have required anti-affinity to it. ``keys``: labels of nodes."""
        return decided(self._anti_affinity.finding(pod, self.namespaces, keys))

    def existing_preferences(self, pod: Pod, keys: Collection[str]) -> Carried:
        """What prefers to have the pod near, or not: the pods that have such terms, with their weights."""
        return decided(self._preferences.finding(pod, self.namespaces, keys))

    def finding(self, pod: Pod, keys: Collection[str]) -> Generator[int, None, tuple[Carried, Carried]]:
        """What the two above say, in pieces: after each, how many labels were compared."""
        anti_affinity_to_it = yield from self._anti_affinity.finding(pod, self.namespaces, keys)
        preferences = yield from self._preferences.finding(pod, self.namespaces, keys)
        return anti_affinity_to_it, preferences

    def forget(self, topology: DomainsByNode) -> None:
        """The topology is not kept up to date any more."""
        for population in (
            *self._counted.values(),
            *self._anti_affinity.populations(),
            *self._preferences.populations(),
        ):
            population.forget(topology)

    def miscounted(self) -> Iterator[str]:
        """What is kept step by step and differs from a count made afresh; nothing, unless there is a bug."""
        fresh = PodsByNode()
        for _, (pod, node) in self._pods.values():
            fresh.put(pod, node)
        for selection, population in self._counted.items():
            if population.by_node != fresh.count(selection).by_node:
                yield f"the pods of {selection} are miscounted"
        if (self._anti_affinity, self._preferences) != (fresh._anti_affinity, fresh._preferences) or any(
            carriers.miscounted() for carriers in (self._anti_affinity, self._preferences)
        ):
            yield "the pods with affinity or anti-affinity to others are miscounted"

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """The UID of each pod, and its node."""
        return ((uid, node) for uid, (_, (_, node)) in self._pods.items())

    def _count(self, pod: Pod, node: str, number: int) -> None:
        for selection in self._selections.near(pod.metadata.labels):
            if selection.matches(pod):
                self._counted[selection].add(node, number)
        # A pod with thousands of terms is not placed, and must not cost others anything either.
        if pod.spec.affinity is None or has_too_many_rules(pod):
            return
        for term in anti_affinity(pod):
            self._anti_affinity.add(term, node, number)
        for term in affinity(pod):
            self._preferences.add(term, node, number * REQUIRED_WEIGHT)
        for term, weight in preferred(pod):
            self._preferences.add(term, node, number * weight)


def counts_alike(one: Pod, other: Pod) -> bool:
    """Whether rules between pods see no difference between two versions of a pod on the same node."""
    return (
        one.metadata.labels == other.metadata.labels
        and (one.metadata.deletion_timestamp is None) == (other.metadata.deletion_timestamp is None)
        and one.spec.affinity == other.spec.affinity
    )


class DomainQuery(NamedTuple):
    """The pods, the topology key, and the nodes that count."""

    selection: Selection
    key: str
    scope: NodeScope = ANY_NODE

    def counts(self, pods_by_node: PodsByNode, topologies: Topologies) -> DomainCounts:
        return pods_by_node.count(self.selection).within(topologies.get(self.key, self.scope))


def together(terms: Iterable[AffinityTerm], namespaces: Namespaces) -> Selection:
    """The pods that all terms are about: required affinity."""
    return Selection(tuple(term.pods(namespaces) for term in terms))


def one_by_one(terms: Iterable[AffinityTerm], namespaces: Namespaces) -> Iterator[DomainQuery]:
    """The pods of each term: anti-affinity, and whatever is preferred."""
    return (DomainQuery(Selection((term.pods(namespaces),)), term.key) for term in terms)
