"""Rules between pods: which pods a term is about, and how many of them run in each topology domain.

A term of a waiting pod becomes a ``PodSet``, by the namespaces as they are at that moment. A term that a pod on a node
carries is asked the other way round: whether it is about a waiting pod. Most selectors name one value of one label,
such as ``app: web``. That is then the *anchor*, by which they are found. All other selectors concern every pod.

A topology domain is the nodes with the same value of one label. A topology is updated as nodes come, go and change, and
so are its counts of pods by domain. So a rule finds the count of a domain by one look-up, for any number of nodes and
pods.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeVar

from dra_api.core import (
    Node,
    NodeSelector,
    Pod,
    PodAffinityTerm,
    Toleration,
)
from dra_api.selectors import NOTHING, Labels, Requirement, Selector

from dra_operator.allocator import NodeSelectionError, node_selectors
from dra_operator.scheduling.state.node import repelling, requirements, untolerated

K = TypeVar("K", bound=Hashable)
Anchor = tuple[str, str] | None


Place = tuple[Pod, str]
"""A pod, and the node where it is."""
Labelled = tuple[Labels, Place]
"""With the labels of the pod, by which most questions are answered."""


@dataclass(frozen=True, slots=True)
class PodSet:
    """Pods with certain labels in these namespaces; None stands for all."""

    selector: Selector
    namespaces: frozenset[str] | None

    def matches(self, pod: Pod) -> bool:
        """Whether the pod is one of them."""
        meta = pod.metadata
        # The namespace first: it is one look-up, and rules out most pods.
        is_there = self.namespaces is None or meta.namespace in self.namespaces
        return is_there and self.selector.matches(meta.labels or {})


@dataclass(frozen=True, slots=True)
class Selection:
    """Pods that are in all of these sets. ``leaving``: those being deleted count as well."""

    sets: tuple[PodSet, ...]
    leaving: bool = True

    @property
    def anchor(self) -> Anchor:
        """A label that all of these pods have, if the selectors name one."""
        # One label is enough: all of these pods have it, so a pod without it need not be compared.
        return next((anchor for pods in self.sets if (anchor := pods.selector.anchor) is not None), None)

    @property
    def namespaces(self) -> frozenset[str] | None:
        """All of these pods are in one of them; None stands for all."""
        # The fewest of them: a pod has to be in each of the sets.
        return min((it.namespaces for it in self.sets if it.namespaces is not None), key=len, default=None)

    def matches(self, pod: Pod) -> bool:
        """Whether the pod is one of them."""
        if not self.leaving and pod.metadata.deletion_timestamp is not None:
            return False
        return all(pods.matches(pod) for pods in self.sets)

    def among(self, places: list[Labelled]) -> Generator[int, None, list[Labelled]]:
        """Those of the pods in ``namespaces`` that are some of them: as ``matches``, but fast for many.

        Says after each piece of work how many pods it has looked at.
        """
        # One requirement after the other over all pods, instead of calls for each pod.
        for pods in self.sets:
            names = pods.namespaces
            if names is not None and names != self.namespaces:
                yield len(places)
                places = [it for it in places if it[1][0].metadata.namespace in names]
            # The selector matches nothing, and so do all of the sets together.
            if pods.selector.requirements is None:
                return []
            for requirement in pods.selector.requirements:
                yield len(places)
                places = requirement.among(places)
        return places if self.leaving else [it for it in places if it[1][0].metadata.deletion_timestamp is None]


Namespaces = Mapping[str, Labels]
"""The labels of each namespace."""


@dataclass(frozen=True, slots=True)
class AffinityTerm:
    """An affinity term: pods of these namespaces, and of those that ``others`` selects, in one domain of ``key``."""

    selector: Selector
    namespaces: frozenset[str]
    others: Selector
    key: str

    @classmethod
    def of(cls, pod: Pod, term: PodAffinityTerm) -> AffinityTerm:
        """A term of the pod. Without namespaces and their selector it is about the pod's own namespace."""
        named = frozenset(term.namespaces or ())
        # An empty selector is not none: it means all namespaces.
        if not named and term.namespace_selector is None:
            named = frozenset((pod.metadata.namespace,))
        return cls(_with_label_keys(pod, term), named, Selector.of(term.namespace_selector), term.topology_key)

    @property
    def minds_namespaces(self) -> bool:
        """Whether it depends on labels of namespaces."""
        return bool(self.others.requirements)

    def pods(self, known: Namespaces) -> PodSet:
        """The pods that it is about, by the namespaces as they are now."""
        # All namespaces, also those that come later: no list of names would stay right.
        if self.others.is_empty:
            return PodSet(self.selector, None)
        # Keyed by name, since labels of namespaces change: then rules are made anew (``ClusterEvent.NAMESPACE``).
        found = (name for name, labels in known.items() if self.others.matches(labels))
        return PodSet(self.selector, self.namespaces if self.others == NOTHING else self.namespaces.union(found))

    def concerns(self, namespace: str, there: Labels, labels: Labels) -> bool:
        """Whether it is about pods with these labels; ``there`` are the labels of their namespace."""
        return (namespace in self.namespaces or self.others.matches(there)) and self.selector.matches(labels)


def affinity(pod: Pod) -> tuple[AffinityTerm, ...]:
    """The pods that the pod must be near."""
    found = pod.spec.affinity.pod_affinity if pod.spec.affinity is not None else None
    return _terms(pod, found.required_during_scheduling_ignored_during_execution if found is not None else None)


def anti_affinity(pod: Pod) -> tuple[AffinityTerm, ...]:
    """The pods that the pod must not be near."""
    found = pod.spec.affinity.pod_anti_affinity if pod.spec.affinity is not None else None
    return _terms(pod, found.required_during_scheduling_ignored_during_execution if found is not None else None)


def preferred(pod: Pod) -> Iterator[tuple[AffinityTerm, int]]:
    """The pods that the pod would rather be near, with weights; negative ones for those that it would rather avoid."""
    affinity = pod.spec.affinity
    if affinity is None:
        return
    # What is to be avoided weighs negatively, so that one sum says it all.
    for kind, sign in ((affinity.pod_affinity, 1), (affinity.pod_anti_affinity, -1)):
        for it in (kind.preferred_during_scheduling_ignored_during_execution if kind is not None else None) or ():
            yield AffinityTerm.of(pod, it.pod_affinity_term), sign * it.weight


def equal_labels(pod: Pod, keys: Iterable[str] | None, operator: str = "In") -> list[Requirement]:
    """That others have the pod's value of each of these labels, or with NotIn another one or none."""
    # A key that the pod lacks selects nothing, as the API server leaves it out.
    own = pod.metadata.labels or {}
    return [Requirement(key, operator, frozenset((own[key],))) for key in keys or () if key in own]


def _with_label_keys(pod: Pod, term: PodAffinityTerm) -> Selector:
    """The selector with ``matchLabelKeys`` and ``mismatchLabelKeys``, which the API server merges into it at creation.

    A key that the selector names already has been merged, with the value that the label had then.
    """
    selector = Selector.of(term.label_selector)
    # The server has merged the keys when it created the pod, and the pod's labels may have changed since.
    merged = {it.key for it in selector.requirements or ()}
    more = equal_labels(pod, term.match_label_keys) + equal_labels(pod, term.mismatch_label_keys, "NotIn")
    return selector.also(it for it in more if it.key not in merged)


def _terms(pod: Pod, listed: Iterable[PodAffinityTerm] | None) -> tuple[AffinityTerm, ...]:
    return tuple(AffinityTerm.of(pod, term) for term in listed) if listed else ()


KEPT_TOPOLOGIES = 128  # up to date, more than one pod asks for; the least recently used is dropped first
TOPOLOGY_PART_LABELS: Final = 10_000
"""Labels that are compared in a row for a new topology: a millisecond or two."""
_LABELS_PER_PUT: Final = 10
"""Labels that are compared in the time in which a node is put into a topology."""
_LABELS_PER_REQUIREMENT: Final = 3
"""Labels that are compared in the time in which a node is compared with a requirement of an affinity."""

NodesAfter = Callable[[str, int], Sequence[Node]]


@dataclass(frozen=True, slots=True)
class NodeScope:
    """The nodes that count: with all of these labels, selected, and with taints that are tolerated (None: any)."""

    keys: frozenset[str] = frozenset()
    selector: frozenset[tuple[str, str]] = frozenset()
    affinity: NodeSelector | None = None
    tolerations: tuple[Toleration, ...] | None = None

    @property
    def label_count(self) -> int:
        """What it takes to compare a node: as long as so many labels of pods."""
        cheap = len(self.keys) + len(self.selector) + len(self.tolerations or ())
        return cheap + _LABELS_PER_REQUIREMENT * requirements(self.affinity)


ANY_NODE = NodeScope()


class DomainCounts:
    """How many pods of one kind are in each domain, kept up to date; domains without any are left out."""

    __slots__ = ("_by_node", "_fewest", "by_domain", "topology")

    def __init__(self, topology: DomainsByNode, by_node: Mapping[str, int]) -> None:
        self.topology, self._by_node = topology, by_node
        self.by_domain: dict[str, int] = {}
        self._fewest: int | None = None
        # The nodes that are known by now; the others come by ``moved``.
        for node, count in by_node.items():
            self.add(node, count)
        topology.counts.append(self)

    def add(self, node: str, count: int) -> None:
        """The number of pods on the node changes by so many."""
        # A pod may be counted before its node is known, or on a node that is in no domain.
        domain = self.topology.domain_of.get(node)
        if domain is not None:
            self._add(domain, count)

    def moved(self, node: str, before: str | None, after: str | None) -> None:
        """The node left one domain for another; None stands for no domain."""
        count = self._by_node.get(node, 0)
        for domain, number in ((before, -count), (after, count)):
            if domain is not None:
                self._add(domain, number)

    def _add(self, domain: str, count: int) -> None:
        # Worked out when it is asked: several counts change between two questions.
        self._fewest = None
        total = self.by_domain.pop(domain, 0) + count
        if total:
            self.by_domain[domain] = total

    @property
    def fewest(self) -> int:
        """The smallest count of all domains; 0 without domains."""
        if self._fewest is None:
            # Domains without pods are left out of the counts: if there is one, the fewest is none.
            some = len(self.by_domain) == len(self.topology.size)
            self._fewest = min(self.by_domain.values(), default=0) if some else 0
        return self._fewest


class DomainsByNode:
    """The domain of each node that counts; no node does if the affinity cannot be understood."""

    def __init__(self, key: str, scope: NodeScope) -> None:
        self.key, self.scope = key, scope
        self.domain_of: dict[str, str] = {}
        self.size: dict[str, int] = {}
        """How many nodes each domain has; those without any are left out."""
        self.counts: list[DomainCounts] = []
        # A selector that cannot be understood matches no node.
        self._terms: tuple[node_selectors.NodeTerm, ...] = ()
        with suppress(NodeSelectionError):
            self._terms = node_selectors.parse(scope.affinity) if scope.affinity is not None else ()

    def put(self, node: Node) -> None:
        """The node is new or changed."""
        name = node.metadata.name
        self._move(name, (node.metadata.labels or {}).get(self.key) if self._includes(node) else None)

    def _includes(self, node: Node) -> bool:
        scope, labels = self.scope, node.metadata.labels or {}
        # The cheap half first: labels are look-ups, taints and affinities are comparisons.
        if not all(key in labels for key in scope.keys) or not scope.selector <= labels.items():
            return False
        if scope.tolerations is not None and untolerated(repelling(node.spec.taints or ()), scope.tolerations):
            return False
        return scope.affinity is None or node_selectors.first_match(self._terms, node) is not None

    def remove(self, name: str) -> None:
        """The node is gone; an unknown one is ignored."""
        self._move(name, None)

    def _move(self, name: str, after: str | None) -> None:
        # Labels of a node may change: its pods move with it from one domain to another.
        before = self.domain_of.pop(name, None)
        if after is not None:
            self.domain_of[name] = after
        if before == after:
            return
        for domain, number in ((before, -1), (after, 1)):
            if domain is not None:
                total = self.size.pop(domain, 0) + number
                if total:
                    self.size[domain] = total
        for counts in self.counts:
            counts.moved(name, before, after)


class Topologies:
    """The topologies that rules use. ``dropped`` is called with one that is no longer kept up to date.

    ``nodes_after`` gives a part of the nodes by name: at most so many of those behind a name.
    """

    def __init__(self, nodes_after: NodesAfter, dropped: Callable[[DomainsByNode], None]) -> None:
        self._nodes_after, self._dropped = nodes_after, dropped
        self._kept: OrderedDict[tuple[str, NodeScope], DomainsByNode] = OrderedDict()
        self._growing: list[DomainsByNode] = []
        self.label_keys: dict[str, int] = {}
        """How many nodes have each label."""

    def get(self, key: str, scope: NodeScope = ANY_NODE) -> DomainsByNode:
        """The domains of a label among these nodes."""
        found = self._kept.get((key, scope))
        if found is None:
            for _ in self.making(key, scope):
                pass
            return self._kept[key, scope]
        self._kept.move_to_end((key, scope))
        return found

    def making(self, key: str, scope: NodeScope = ANY_NODE) -> Iterator[int]:
        """Have a topology ready, in pieces: says after each how many labels it has compared, or what takes as long.

        Nodes may come, change and go meanwhile: those that are looked at already are kept up to date.
        """
        if (key, scope) in self._kept:
            return
        made, each, name = DomainsByNode(key, scope), scope.label_count + _LABELS_PER_PUT, ""
        part = max(1, TOPOLOGY_PART_LABELS // each)
        # From now on it hears of each change: a node that was looked at may change before the last one is.
        self._growing.append(made)
        try:
            # By name and not by position, since nodes come and go between two parts.
            while nodes := self._nodes_after(name, part):
                for node in nodes:
                    made.put(node)
                name = nodes[-1].metadata.name
                yield each * len(nodes)
        finally:
            self._growing.remove(made)
        # Another one may have made the same meanwhile, and counts may hang on that.
        if (key, scope) not in self._kept:
            self._kept[key, scope] = made
            # Tenants name topology keys: each that is kept is compared with every change of a node.
            if len(self._kept) > KEPT_TOPOLOGIES:
                self._dropped(self._kept.popitem(last=False)[1])

    def put(self, node: Node, before: Node | None = None) -> None:
        """The node is new or changed."""
        self._count(before, -1)
        self._count(node, 1)
        for topology in (*self._kept.values(), *self._growing):
            topology.put(node)

    def remove(self, node: Node) -> None:
        """The node is gone."""
        self._count(node, -1)
        for topology in (*self._kept.values(), *self._growing):
            topology.remove(node.metadata.name)

    def _count(self, node: Node | None, number: int) -> None:
        for key in (node.metadata.labels or ()) if node is not None else ():
            total = self.label_keys.pop(key, 0) + number
            if total:
                self.label_keys[key] = total


class Population:
    """Counts that are kept up to date as pods and nodes come and go; ``nodes`` has the node of each pod so far."""

    __slots__ = ("_by_topology", "by_node")

    def __init__(self, nodes: Iterable[str] = ()) -> None:
        self.by_node: dict[str, int] = dict(Counter(nodes))
        self._by_topology: dict[DomainsByNode, DomainCounts] = {}

    def add(self, node: str, count: int) -> None:
        """The number of pods on the node changes by so many."""
        total = self.by_node.pop(node, 0) + count
        if total:
            self.by_node[node] = total
        for counts in self._by_topology.values():
            counts.add(node, count)

    def within(self, topology: DomainsByNode) -> DomainCounts:
        """The counts by domain."""
        found = self._by_topology.get(topology)
        if found is None:
            found = self._by_topology[topology] = DomainCounts(topology, self.by_node)
        return found

    def forget(self, topology: DomainsByNode) -> None:
        """The topology is no longer kept up to date."""
        # Without this the counts of a dropped topology would stay, and never change again.
        self._by_topology.pop(topology, None)

    def close(self) -> None:
        """The counts are no longer needed."""
        for topology, counts in self._by_topology.items():
            topology.counts.remove(counts)
        self._by_topology.clear()
