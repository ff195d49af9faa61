"""The states of nodes, many at once: what is left of CPU and of each GPU, as columns of numbers.

Memory is left out unless a policy looks at it. A state that recurs, on this node or a like one, has the same number, so
what a policy thinks of it is worked out once (``run``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .trace import WHOLE_MILLI, Shape, TraceNode

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
NO_DEVICE_MILLI = -1
"""Stands for what is left of a GPU that a node does not have."""


class State(NamedTuple):
    """One node."""

    kind: int
    """Of the node."""
    cpu: int
    gpus: tuple[int, ...]
    """What is left of each GPU, in thousandths."""
    hosts: int = 0
    """Which kinds of pods are there, a bit each (``pod_kind``)."""
    memory: int = 0
    """What is left of it; 0 for policies that do not look at it, so that fewer states differ."""

    def after(self, shape: Shape, devices: Sequence[int], memory: int = 0) -> State:
        """With one more pod, on these GPUs."""
        left = list(self.gpus)
        for device in devices:
            left[device] -= shape.milli
        hosts = self.hosts | pod_kind(shape)
        return State(self.kind, self.cpu - shape.cpu, tuple(left), hosts, self.memory - memory)


def pod_kind(shape: Shape) -> int:
    """The bit of a pod's kind: it takes a share, or so many whole GPUs; nothing for pods without GPU."""
    return (1 << (0 if shape.is_share else shape.gpus)) if shape.gpus else 0


@dataclass(frozen=True)
class States:
    """A row for each state."""

    cpu: Ints
    gpus: Ints
    """A column for each device."""
    kind: Ints
    hosts: Ints
    memory: Ints

    @property
    def idle(self) -> Ints:
        """The thousandths of GPUs that are left."""
        idle: Ints = np.maximum(self.gpus, 0).sum(axis=1)
        return idle

    def __len__(self) -> int:
        return len(self.cpu)

    def with_others(self, others: States) -> States:
        """The rows of both."""
        pairs = zip(self._columns(), others._columns(), strict=True)
        return States(*(np.concatenate(pair) for pair in pairs))

    def _columns(self) -> tuple[Ints, ...]:
        return self.cpu, self.gpus, self.kind, self.hosts, self.memory

    def taken(self, rows: Ints | Sequence[int]) -> States:
        """Some of the rows."""
        return States(*(column[rows] for column in self._columns()))

    def feasible(self, shape: Shape, kinds: NodeKinds) -> Bools:
        """Where a pod fits, memory apart."""
        fits = self.cpu >= shape.cpu
        if shape.gpus:
            devices = (self.gpus >= shape.milli).sum(axis=1)
            fits = fits & (devices >= shape.gpus) & kinds.accepting(shape)[self.kind]
        return fits

    def after_whole(self, shape: Shape) -> States:
        """With a pod of whole GPUs, or of none, in each: it takes the first ones that are free."""
        if not shape.gpus:
            return replace(self, cpu=self.cpu - shape.cpu)
        free = self.gpus >= shape.milli
        taken = free & (free.cumsum(axis=1) <= shape.gpus)
        return replace(self, cpu=self.cpu - shape.cpu, gpus=self.gpus - shape.milli * taken)

    def after_share(self, shape: Shape) -> tuple[States, Ints, Ints]:
        """With a share on each device that has room: the states, and of which row and on which device each is.

        Of devices with as much left only the first is tried.
        """
        same = (self.gpus[:, :, None] == self.gpus[:, None, :]) & np.tri(self.gpus.shape[1], k=-1, dtype=bool)
        rows, devices = np.nonzero((self.gpus >= shape.milli) & ~same.any(axis=2))
        found = self.taken(rows)
        gpus = found.gpus.copy()
        gpus[np.arange(len(rows)), devices] -= shape.milli
        return replace(found, cpu=found.cpu - shape.cpu, gpus=gpus), rows, devices


class NodeKind(NamedTuple):
    """Nodes that are alike when they are empty."""

    model: str
    cpu: int
    memory: int
    gpus: int


class NodeKinds:
    """The kinds of nodes in a cluster, numbered, with how many there are of each."""

    def __init__(self, nodes: Sequence[TraceNode]) -> None:
        counts = Counter(NodeKind(it.model, it.cpu, it.memory, it.gpus) for it in nodes)
        self.listed = sorted(counts)
        self.counts = [counts[kind] for kind in self.listed]
        self.width = max(1, *(kind.gpus for kind in self.listed))
        """The most devices of a node."""
        self._numbers = {kind: number for number, kind in enumerate(self.listed)}
        self._accepting: dict[str, Bools] = {}

    def empty(self, node: TraceNode, memory: int) -> State:
        """The node's state with nothing on it; ``memory``: what policies see of it."""
        kind = self._numbers[NodeKind(node.model, node.cpu, node.memory, node.gpus)]
        return State(kind, node.cpu, (WHOLE_MILLI,) * node.gpus, memory=memory)

    def accepting(self, shape: Shape) -> Bools:
        """For each kind whether the pod may use its model."""
        found = self._accepting.get(shape.spec)
        if found is None:
            found = self._accepting[shape.spec] = np.array([shape.accepts(kind.model) for kind in self.listed])
        return found


class StateTable:
    """All states that occurred, each with a number."""

    def __init__(self, kinds: NodeKinds) -> None:
        self.kinds = kinds
        self._numbers: dict[State, int] = {}
        self._listed: list[State] = []

    def number(self, state: State) -> int:
        """The number of a state."""
        number = self._numbers.get(state)
        if number is None:
            number = self._numbers[state] = len(self._listed)
            self._listed.append(state)
        return number

    def state(self, number: int) -> State:
        """The state of a number."""
        return self._listed[number]

    def states(self, numbers: Sequence[int]) -> States:
        """Some of them as columns."""
        found = [self._listed[number] for number in numbers]
        width = self.kinds.width
        gpus = [it.gpus + (NO_DEVICE_MILLI,) * (width - len(it.gpus)) for it in found]
        return States(
            np.array([it.cpu for it in found], np.int64),
            np.array(gpus, np.int64).reshape(len(found), width),
            np.array([it.kind for it in found], np.int64),
            np.array([it.hosts for it in found], np.int64),
            np.array([it.memory for it in found], np.int64),
        )

    def __len__(self) -> int:
        return len(self._listed)


def whole_devices(state: State, shape: Shape) -> list[int]:
    """The first GPUs that are free, for a pod of whole ones."""
    return [device for device, left in enumerate(state.gpus) if left >= WHOLE_MILLI][: shape.gpus]
