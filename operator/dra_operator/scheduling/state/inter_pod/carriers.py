"""Pods on nodes by the terms of affinity or anti-affinity that they carry, as pods that come ask about them.

A pod that comes has to know, for each topology key, where the pods are that carry a term about it. Thousands of pods of
one workload carry the same term, and thousands that come have the same labels; so the answer is kept for each namespace
and labels that were asked for, as sums that are kept up to date. To find it takes a look at every term that may be
about such a pod, which are as many as tenants make them: the first one that asks does that in pieces.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Generator, Iterator, Mapping
from typing import Final

from dra_api.core import Pod
from dra_api.relations.label_selectors import Labels

from .anchors import Anchors
from .population import Population
from .terms import AffinityTerm, Namespaces

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
        self.minds_namespaces = self.minds_namespaces or term.minds_namespaces
        population = self.by_key.setdefault(term.key, Population())
        for node, number in by_node.items():
            population.add(node, number)
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
            if term not in rest and carried.concerns(term):
                growing.append(carried)
        for carried in growing:
            carried.add(term, {node: number})
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
        kind = pod.metadata.namespace, frozenset((pod.metadata.labels or {}).items())
        there = namespaces.get(pod.metadata.namespace, {})
        while True:
            found = self._kept.get(kind)
            if found is not None and found.there == there and found.keys.issuperset(keys):
                self._kept.move_to_end(kind)
                return found
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
        own = [each for each in self._kept if each[0] == carried.namespace]
        if len(own) > KEPT_ANSWERS_OF_NAMESPACE:
            self._drop(own[0])
        elif len(self._kept) > KEPT_ANSWERS:
            self._drop(next(iter(self._kept)))

    def _drop(self, kind: Kind) -> None:
        dropped = self._kept.pop(kind, None)
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
