"""All nodes in the two orders that placement needs: by name, and from the emptiest to the fullest.

Both are kept up to date one node at a time, so that an attempt can start with the best node instead of looking at all.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator

from dra_api.core import Pod

from .neighbours import Neighbours
from .node import NodeState
from .residents import Residents
from .topology import Topologies


class Nodes:
    """Node states by name; iterating goes by name."""

    def __init__(self, states: Iterable[NodeState] = ()) -> None:
        self._states: dict[str, NodeState] = {}
        self._names: list[str] = []
        self._order: list[tuple[float, str]] = []
        self._counting: dict[str, set[str]] = {}
        self.residents = Residents()
        """The pods on the nodes."""
        self._topologies = Topologies(lambda: (state.node for state in self), self.residents.forget)
        for state in states:
            self.put(state)

    def put(self, state: NodeState) -> None:
        """The node is new, changed, or has another load."""
        old = self._states.get(state.name)
        if old is None:
            insort(self._names, state.name)
        else:
            self._take_out(old)
        self._states[state.name] = state
        if old is None or old.node is not state.node:
            self._topologies.put(state.node)
        insort(self._order, (-state.emptiness, state.name))
        for resource in state.counted:
            self._counting.setdefault(resource, set()).add(state.name)

    def remove(self, name: str) -> None:
        """The node is gone; an unknown one is ignored."""
        old = self._states.pop(name, None)
        if old is not None:
            self._take_out(old)
            self._topologies.remove(name)
            del self._names[bisect_left(self._names, name)]

    def get(self, name: str) -> NodeState | None:
        """One node."""
        return self._states.get(name)

    def counting(self, resource: str) -> frozenset[str]:
        """The nodes that count an extended resource themselves."""
        return frozenset(self._counting.get(resource, ()))

    def neighbours_of(self, pod: Pod) -> Neighbours:
        """The rules between the pod and those on the nodes."""
        return Neighbours(pod, self.residents, self._topologies)

    def spread(self, count: int) -> list[str]:
        """So many names, evenly taken from all of them in order; the same as long as no node comes or goes."""
        total = len(self._names)
        return [self._names[number * total // count] for number in range(count)] if total > count else self.names()

    def names(self) -> list[str]:
        """All names in order."""
        return list(self._names)

    def from_emptiest(self) -> Iterator[str]:
        """All names, the emptiest node first, equals by name. Nodes may come, go and change while it is used."""
        order = self._order.copy()
        return (name for _, name in order)

    def __iter__(self) -> Iterator[NodeState]:
        return (self._states[name] for name in self._names)

    def __len__(self) -> int:
        return len(self._states)

    def __contains__(self, name: object) -> bool:
        return name in self._states

    def _take_out(self, state: NodeState) -> None:
        del self._order[bisect_left(self._order, (-state.emptiness, state.name))]
        for resource in state.counted:
            self._counting[resource].discard(state.name)
