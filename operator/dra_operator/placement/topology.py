"""Topology domains: nodes with the same value of one label.

A topology is updated as nodes come, go and change, and so are its counts of pods by domain. So a rule finds the count
of a domain by one look-up, for any number of nodes and pods.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from dra_api.core import Node, NodeSelector, Toleration

from dra_operator.allocator.basics.errors import NodeSelectionError
from dra_operator.allocator.published.node_selectors import matches

from .tolerations import repelling, untolerated

KEPT = 64  # topologies that are kept up to date; the least recently used one is dropped first


@dataclass(frozen=True, slots=True)
class NodeScope:
    """The nodes that count: with all of these labels, selected, and with taints that are tolerated (None: any)."""

    keys: frozenset[str] = frozenset()
    selector: frozenset[tuple[str, str]] = frozenset()
    affinity: NodeSelector | None = None
    tolerations: tuple[Toleration, ...] | None = None

    def includes(self, node: Node) -> bool:
        """Whether the node counts; none does if the affinity cannot be understood."""
        labels = node.metadata.labels or {}
        if not all(key in labels for key in self.keys) or not self.selector <= labels.items():
            return False
        if self.tolerations is not None and untolerated(repelling(node.spec.taints or ()), self.tolerations):
            return False
        try:
            return self.affinity is None or matches(self.affinity, node)
        except NodeSelectionError:
            return False


ANY_NODE = NodeScope()


class DomainCounts:
    """How many pods of one kind are in each domain, kept up to date; domains without any are left out."""

    __slots__ = ("_by_node", "_fewest", "by_domain", "topology")

    def __init__(self, topology: Topology, by_node: Mapping[str, int]) -> None:
        self.topology, self._by_node = topology, by_node
        self.by_domain: dict[str, int] = {}
        self._fewest: int | None = None
        for node, count in by_node.items():
            self.add(node, count)
        topology.counts.append(self)

    def add(self, node: str, count: int) -> None:
        """The number of pods on the node changes by so many."""
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
        self._fewest = None
        total = self.by_domain.pop(domain, 0) + count
        if total:
            self.by_domain[domain] = total

    @property
    def fewest(self) -> int:
        """The smallest count of all domains; 0 without domains."""
        if self._fewest is None:
            some = len(self.by_domain) == len(self.topology.size)
            self._fewest = min(self.by_domain.values(), default=0) if some else 0
        return self._fewest


class Topology:
    """The domain of each node that counts."""

    def __init__(self, key: str, scope: NodeScope) -> None:
        self.key, self.scope = key, scope
        self.domain_of: dict[str, str] = {}
        self.size: dict[str, int] = {}
        """How many nodes each domain has; those without any are left out."""
        self.counts: list[DomainCounts] = []

    def put(self, node: Node) -> None:
        """The node is new or changed."""
        name = node.metadata.name
        self._move(name, (node.metadata.labels or {}).get(self.key) if self.scope.includes(node) else None)

    def remove(self, name: str) -> None:
        """The node is gone; an unknown one is ignored."""
        self._move(name, None)

    def _move(self, name: str, after: str | None) -> None:
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
    """The topologies that rules use. ``dropped`` is called with one that is no longer kept up to date."""

    def __init__(self, nodes: Callable[[], Iterable[Node]], dropped: Callable[[Topology], None]) -> None:
        self._nodes, self._dropped = nodes, dropped
        self._kept: OrderedDict[tuple[str, NodeScope], Topology] = OrderedDict()

    def get(self, key: str, scope: NodeScope = ANY_NODE) -> Topology:
        """The domains of a label among these nodes."""
        found = self._kept.get((key, scope))
        if found is None:
            found = self._kept[key, scope] = Topology(key, scope)
            for node in self._nodes():
                found.put(node)
            if len(self._kept) > KEPT:
                self._dropped(self._kept.popitem(last=False)[1])
        self._kept.move_to_end((key, scope))
        return found

    def put(self, node: Node) -> None:
        """The node is new or changed."""
        for topology in self._kept.values():
            topology.put(node)

    def remove(self, name: str) -> None:
        """The node is gone."""
        for topology in self._kept.values():
            topology.remove(name)
