"""Pods of one kind, counted by node and by topology domain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from .topology import DomainCounts, Topology


class Population:
    """Counts that are kept up to date as pods and nodes come and go; ``nodes`` has the node of each pod so far."""

    __slots__ = ("_by_topology", "by_node")

    def __init__(self, nodes: Iterable[str] = ()) -> None:
        self.by_node: dict[str, int] = dict(Counter(nodes))
        self._by_topology: dict[Topology, DomainCounts] = {}

    def add(self, node: str, count: int) -> None:
        """The number of pods on the node changes by so many."""
        total = self.by_node.pop(node, 0) + count
        if total:
            self.by_node[node] = total
        for counts in self._by_topology.values():
            counts.add(node, count)

    def within(self, topology: Topology) -> DomainCounts:
        """The counts by domain."""
        found = self._by_topology.get(topology)
        if found is None:
            found = self._by_topology[topology] = DomainCounts(topology, self.by_node)
        return found

    def forget(self, topology: Topology) -> None:
        """The topology is no longer kept up to date."""
        self._by_topology.pop(topology, None)

    def close(self) -> None:
        """The counts are no longer needed."""
        for topology, counts in self._by_topology.items():
            topology.counts.remove(counts)
        self._by_topology.clear()
