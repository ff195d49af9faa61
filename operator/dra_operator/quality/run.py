"""One run: the pods of a workload arrive one at a time; each is placed by a policy, or turned away for good.

A policy scores a state of a node, not a node. A score is kept for each shape of pods and state, and only nodes that
changed since a shape came last are looked at again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from .fragmentation import Fragmentation
from .policies import Policy
from .states import Floats, NodeKinds, State, StateTable, whole_devices
from .trace import Shape, TracePod
from .workload import Workload, members

MakePolicy = Callable[[Workload, StateTable, Fragmentation], Policy]
NO_NODE_NUMBER = -1


class TracePlacement(NamedTuple):
    """What became of a pod."""

    pod: TracePod
    node: int
    """Its place in the order of nodes; ``NO_NODE_NUMBER`` if none has room."""
    devices: tuple[int, ...]
    left: int
    """The number of the state in which the node was."""
    reached: int
    """The number of the state in which the node is."""


class Run:
    """A cluster that fills."""

    def __init__(self, workload: Workload, make_policy: MakePolicy) -> None:
        nodes = workload.nodes
        self.workload = workload
        kinds = NodeKinds(nodes)
        self.table = StateTable(kinds)
        self.fragmentation = Fragmentation(workload.typical, kinds)
        self._policy = make_policy(workload, self.table, self.fragmentation)
        self._memory = np.array([node.memory for node in nodes], np.int64)
        seen = self._policy.looks_at_memory
        self.empty = [self.table.number(kinds.empty(node, node.memory if seen else 0)) for node in nodes]
        self._at = list(self.empty)
        self._changed: list[int] = []
        """The nodes that got pods, or gave some back, in that order."""
        self._known: dict[Shape, _Known] = {}
        self.placed = 0
        """How many pods have a node."""

    def placements(self) -> Iterator[TracePlacement]:
        """One for each pod, in the order of arrival; of a gang one for each member."""
        for pod in self.workload.arrivals:
            yield from self._together(members(pod)) if self.workload.has_gangs else (self.place(pod),)

    def _together(self, pods: Sequence[TracePod]) -> list[TracePlacement]:
        """All of them, or none."""
        found: list[TracePlacement] = []
        for pod in pods:
            found.append(self.place(pod))
            if found[-1].node == NO_NODE_NUMBER:
                for it in reversed(found[:-1]):
                    self.take_back(it)
                return [TracePlacement(it, NO_NODE_NUMBER, (), 0, 0) for it in pods]
        return found

    def take_back(self, placement: TracePlacement) -> None:
        """The last placement on its node did not happen."""
        self._at[placement.node] = placement.left
        self._memory[placement.node] += placement.pod.memory
        self._changed.append(placement.node)
        self.placed -= 1

    def refill(self, node: int, placements: Sequence[TracePlacement]) -> None:
        """From now on the node has these, on their devices, and no others."""
        table, sees_memory = self.table, self._policy.looks_at_memory
        state = table.state(self.empty[node])
        for it in placements:
            state = state.after(it.pod.shape, it.devices, it.pod.memory if sees_memory else 0)
        self._at[node] = table.number(state)
        self._memory[node] = self.workload.nodes[node].memory - sum(it.pod.memory for it in placements)
        self._changed.append(node)

    def number(self, node: int) -> int:
        """The number of the state in which a node is."""
        return self._at[node]

    def state(self, node: int) -> State:
        """The state in which a node is."""
        return self.table.state(self._at[node])

    def memory(self, node: int) -> int:
        """MiB that a node has left."""
        return int(self._memory[node])

    def place(self, pod: TracePod, forbidden: int = NO_NODE_NUMBER) -> TracePlacement:
        """The next pod, on any node but one."""
        scores = self._scores(pod.shape)
        if pod.memory:
            scores = np.where(self._memory >= pod.memory, scores, -np.inf)
        if forbidden != NO_NODE_NUMBER:
            scores = scores.copy()
            scores[forbidden] = -np.inf
        node = self._policy.pick(scores)
        if scores[node] == -np.inf:
            return TracePlacement(pod, NO_NODE_NUMBER, (), 0, 0)
        left = self._at[node]
        state = self.table.state(left)
        share = pod.shape.is_share
        devices = [self._policy.device(pod.shape, state)] if share else whole_devices(state, pod.shape)
        memory = pod.memory if self._policy.looks_at_memory else 0
        self._at[node] = self.table.number(state.after(pod.shape, devices, memory))
        self._memory[node] -= pod.memory
        self._changed.append(node)
        self.placed += 1
        return TracePlacement(pod, node, tuple(devices), left, self._at[node])

    def _scores(self, shape: Shape) -> Floats:
        known = self._known.get(shape)
        if known is None:
            known = self._known[shape] = _Known(len(self._at))
            stale: set[int] | range = range(len(self._at))
        else:
            stale = set(self._changed[known.seen :])
        known.seen = len(self._changed)
        numbers = {node: self._at[node] for node in stale}
        unknown = list(dict.fromkeys(number for number in numbers.values() if number not in known.by_state))
        if unknown:
            known.by_state.update(zip(unknown, self._evaluated(shape, unknown), strict=True))
        for node, number in numbers.items():
            known.by_node[node] = known.by_state[number]
        return known.by_node

    def _evaluated(self, shape: Shape, numbers: list[int]) -> list[float]:
        states = self.table.states(numbers)
        found = np.full(len(numbers), -np.inf)
        feasible = np.nonzero(states.feasible(shape, self.table.kinds))[0]
        if len(feasible):
            found[feasible] = self._policy.scores(shape, states.taken(feasible))
        scores: list[float] = found.tolist()
        return scores


class _Known:
    """What a shape thinks of states and nodes."""

    def __init__(self, nodes: int) -> None:
        self.by_state: dict[int, float] = {}
        self.by_node = np.full(nodes, -np.inf)
        self.seen = 0
