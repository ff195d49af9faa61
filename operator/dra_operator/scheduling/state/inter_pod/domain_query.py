"""What rules between pods look up: how many pods of a selection there are in each domain of a topology."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from .pods_by_node import PodsByNode
from .selection import Selection
from .terms import AffinityTerm, Namespaces
from .topology import ANY_NODE, DomainCounts, NodeScope, Topologies


class DomainQuery(NamedTuple):
    """The pods, the topology key, and the nodes that count."""

    selection: Selection
    key: str
    scope: NodeScope = ANY_NODE

    def counts(self, pods_by_node: PodsByNode, topologies: Topologies) -> DomainCounts:
        """The answer."""
        return pods_by_node.count(self.selection).within(topologies.get(self.key, self.scope))


def together(terms: Iterable[AffinityTerm], namespaces: Namespaces) -> Selection:
    """The pods that all terms are about: required affinity."""
    return Selection(tuple(term.pods(namespaces) for term in terms))


def one_by_one(terms: Iterable[AffinityTerm], namespaces: Namespaces) -> Iterator[DomainQuery]:
    """The pods of each term: anti-affinity, and whatever is preferred."""
    return (DomainQuery(Selection((term.pods(namespaces),)), term.key) for term in terms)
