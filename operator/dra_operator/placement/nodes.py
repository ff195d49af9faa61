"""All nodes in the two orders that placement needs: by name, and by the room on them, the best first.

Both are kept up to date one node at a time, so that an attempt can start with the best node instead of looking at all.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from typing import Final

from dra_api.core import Node, Pod

from .neighbours import Neighbours
from .node import LoadedNode
from .preferences import Preferences, preferences
from .residents import Residents
from .topology import Topologies

LEAST_ALLOCATED, MOST_ALLOCATED = "LeastAllocated", "MostAllocated"
STRATEGIES: Final = (LEAST_ALLOCATED, MOST_ALLOCATED)


class Nodes:
    """Loaded nodes by name; iterating goes by name. ``strategy``: whether the emptiest node is best, or the fullest."""

    def __init__(self, states: Iterable[LoadedNode] = (), *, strategy: str = LEAST_ALLOCATED) -> None:
        self._is_packed = strategy == MOST_ALLOCATED
        self._softly_tainted: set[str] = set()
        self._states: dict[str, LoadedNode] = {}
        self._names: list[str] = []
        self._order: list[tuple[float, str]] = []
        self._counting: dict[str, set[str]] = {}
        self.residents = Residents()
        """The pods on the nodes."""
        self._topologies = Topologies(self._nodes, self.residents.forget)
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
        if old is None or old.node is not state.node:
            self._topologies.put(state.node)
        insort(self._order, (-self.room(state), state.name))
        if state.soft_taints:
            self._softly_tainted.add(state.name)
        for resource in state.counted:
            self._counting.setdefault(resource, set()).add(state.name)

    def remove(self, name: str) -> None:
        """The node is gone; an unknown one is ignored."""
        old = self._states.pop(name, None)
        if old is not None:
            self._take_out(old)
            self._topologies.remove(name)
            del self._names[bisect_left(self._names, name)]

    def get(self, name: str) -> LoadedNode | None:
        """One node."""
        return self._states.get(name)

    def counting(self, resource: str) -> frozenset[str]:
        """The nodes that count an extended resource themselves."""
        return frozenset(self._counting.get(resource, ()))

    def neighbours_of(self, pod: Pod) -> Neighbours:
        """The rules between the pod and those on the nodes."""
        return Neighbours(pod, self.residents, self._topologies)

    def preferences_of(self, pod: Pod) -> Preferences:
        """What the pod would rather have."""
        softly, nodes = bool(self._softly_tainted), len(self)
        return Preferences(preferences(pod, self.residents, self._topologies, nodes=nodes, has_soft_taints=softly))

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
        order = self._order.copy()
        return (name for _, name in order)

    def _nodes(self) -> Iterator[Node]:
        return (state.node for state in self._states.values())

    def __iter__(self) -> Iterator[LoadedNode]:
        return (self._states[name] for name in self._names)

    def __len__(self) -> int:
        return len(self._states)

    def __contains__(self, name: object) -> bool:
        return name in self._states

    def _take_out(self, state: LoadedNode) -> None:
        del self._order[bisect_left(self._order, (-self.room(state), state.name))]
        self._softly_tainted.discard(state.name)
        for resource in state.counted:
            self._counting[resource].discard(state.name)
