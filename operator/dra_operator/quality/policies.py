"""Policies: which of the nodes that have room a pod gets, and which GPU there.

A policy gives each node a score, says which of the best nodes is taken, and on which device a share goes. Most are
policies of the study and repeat its figures; ``EmptiestPolicy`` is the default, ``FragPolicy`` our own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Final

import numpy as np

from dra_operator.quality.states import Floats, Fragmentation, Ints, Room, State, States, StateTable, pod_kind, prices
from dra_operator.quality.trace import WHOLE_MILLI, Shape, Workload

BEST_PUBLISHED_SCORE: Final = 100
"""The best score of the published policies, which are whole numbers."""
LARGEST_CPU_MILLI: Final = 128_000
LARGEST_GPU_MILLI: Final = 8_000
"""By these the published policies norm: the largest node of the trace."""


class Policy(ABC):
    """One policy in one run."""

    name: ClassVar[str]
    looks_at_memory: ClassVar[bool] = False
    takes_first_device: ClassVar[bool] = False
    """Whether a share goes on the first device with room, and not on the fullest one."""

    def __init__(self, workload: Workload, table: StateTable, fragmentation: Fragmentation) -> None:
        self.workload, self.table, self.fragmentation = workload, table, fragmentation

    @abstractmethod
    def scores(self, shape: Shape, states: States) -> Floats:
        """How much a pod would have each state; larger is better. It has room in all of them."""

    def pick(self, scores: Floats) -> int:
        """The node that is taken; minus infinity means that the node has no room. Of equals the first."""
        return int(scores.argmax())

    def device(self, shape: Shape, state: State) -> int:
        """The device for a share."""
        with_room = [(left, device) for device, left in enumerate(state.gpus) if left >= shape.milli]
        return with_room[0][1] if self.takes_first_device else min(with_room)[1]

    def row(self, state: State) -> States:
        """A state as columns."""
        return self.table.states([self.table.number(state)])


def whole(scores: Floats) -> Floats:
    """Cut to whole numbers, as the published policies do."""
    return np.trunc(scores)


class FirstFitPolicy(Policy):
    """The first node with room, and on it the first device with room."""

    name = "first-fit"
    takes_first_device = True

    def scores(self, shape: Shape, states: States) -> Floats:
        return np.zeros(len(states))


class EmptiestPolicy(Policy):
    """The emptiest node first, and on it the first device with room: the operator's default.

    Empty is a node by the mean of its free CPU and memory; GPUs do not count. The operator also looks at pod slots, of
    which traces say nothing.
    """

    name = "emptiest"
    looks_at_memory = True
    takes_first_device = True

    def scores(self, shape: Shape, states: States) -> Floats:
        kinds = self.table.kinds.listed
        totals = [np.array([getattr(kind, of) for kind in kinds])[states.kind] for of in ("cpu", "memory")]
        used = [total - left for total, left in zip(totals, (states.cpu, states.memory), strict=True)]
        free = [
            np.where(total > 0, 1 - its / np.maximum(total, 1), 0.0) for its, total in zip(used, totals, strict=True)
        ]
        offered = sum((total > 0).astype(np.int64) for total in totals)
        scores: Floats = (free[0] + free[1]) / np.maximum(offered, 1)
        return scores


class BestFitPolicy(Policy):
    """The study's BestFit: the least CPU and GPU left, in equal parts, normed by the largest node."""

    name = "best-fit"

    def scores(self, shape: Shape, states: States) -> Floats:
        cpu = (states.cpu - shape.cpu) / LARGEST_CPU_MILLI * 0.5
        gpu = (states.idle - shape.total) / LARGEST_GPU_MILLI * 0.5
        return whole((1.0 - (cpu + gpu)) * BEST_PUBLISHED_SCORE)


class DotProductPolicy(Policy):
    """The study's DotProd: nodes whose free CPU and GPUs point least where the request points.

    Both vectors are normed by the largest node.
    """

    name = "dot-product"

    def scores(self, shape: Shape, states: States) -> Floats:
        cpu = states.cpu / LARGEST_CPU_MILLI * (shape.cpu / LARGEST_CPU_MILLI)
        gpu = states.idle / LARGEST_GPU_MILLI * (shape.total / LARGEST_GPU_MILLI)
        return whole(BEST_PUBLISHED_SCORE * (1 - (cpu + gpu) / 2))


class FgdPolicy(Policy):
    """FGD of the study: the least growth of fragmentation, as a whole number from 0 to 100.

    A share is tried on every device; whole GPUs are the first ones that are free.
    """

    name = "fgd"

    def scores(self, shape: Shape, states: States) -> Floats:
        if not shape.is_share:
            return self._score(states, states.after_whole(shape), np.arange(len(states)))
        after, rows, _ = states.after_share(shape)
        found = np.full(len(states), -np.inf)
        np.maximum.at(found, rows, self._score(states, after, rows))
        return found

    def device(self, shape: Shape, state: State) -> int:
        """The first with the best score."""
        states = self.row(state)
        after, rows, devices = states.after_share(shape)
        return int(devices[self._score(states, after, rows).argmax()])

    def _score(self, before: States, after: States, rows: Ints) -> Floats:
        """For each state afterwards; ``rows`` says what it was before."""
        found = self.fragmentation.of(before.with_others(after))
        gained = found[rows] - found[len(before) :]
        return whole(BEST_PUBLISHED_SCORE * (1 / (1 + np.exp(-gained / WHOLE_MILLI))))


QUARTER = BEST_PUBLISHED_SCORE // 4


class GpuClusteringPolicy(Policy):
    """The study's GpuClustering: pods of one kind (a share, or 1, 2, 4, 8 GPUs) together, on the fullest node.

    A quarter of the score by what is left, the others by the kinds of pods that are there.
    """

    name = "gpu-clustering"

    def scores(self, shape: Shape, states: States) -> Floats:
        kind = pod_kind(shape)
        if not kind:
            return np.zeros(len(states))
        filled = QUARTER * (LARGEST_GPU_MILLI - states.idle) // LARGEST_GPU_MILLI
        has_kind = (states.hosts & kind) > 0
        others = np.where(states.hosts == 0, QUARTER, 0)
        together = np.where(states.hosts == kind, 3 * QUARTER, 2 * QUARTER)
        return (filled + np.where(has_kind, together, others)).astype(np.float64)


ON_USED_NODES = BEST_PUBLISHED_SCORE // 2
ON_EMPTY_NODES = BEST_PUBLISHED_SCORE // 3


class GpuPackingPolicy(Policy):
    """The study's GpuPacking: first GPUs that are shared already, then nodes in use, then empty nodes.

    The pod takes the fullest GPUs that have room; a pod without GPU goes to the first node.
    """

    name = "gpu-packing"

    def scores(self, shape: Shape, states: States) -> Floats:
        if not shape.gpus:
            return np.zeros(len(states))
        free = (states.gpus == WHOLE_MILLI).sum(axis=1)
        is_empty = free == (states.gpus >= 0).sum(axis=1)
        fullest = np.sort(np.where(states.gpus >= shape.milli, states.gpus, WHOLE_MILLI + 1), axis=1)[:, : shape.gpus]
        opened = (fullest == WHOLE_MILLI).sum(axis=1)
        left = (np.minimum(fullest, WHOLE_MILLI) * 100 // WHOLE_MILLI).sum(axis=1)
        shared = np.maximum(BEST_PUBLISHED_SCORE - left // 10, ON_USED_NODES)
        scores = np.where(opened > 0, np.maximum(ON_USED_NODES - opened, ON_EMPTY_NODES), shared)
        found: Floats = np.where(is_empty, np.maximum(ON_EMPTY_NODES - free, free), scores).astype(np.float64)
        return found


class RandomPolicy(Policy):
    """The study's Random: any node with room, on it any device with room.

    The stream goes on where the workload ends. The published runs draw from a list whose order is a race of threads, so
    single runs differ from them, the mean not.
    """

    name = "random"

    def scores(self, shape: Shape, states: States) -> Floats:
        return np.zeros(len(states))

    def pick(self, scores: Floats) -> int:
        feasible = np.nonzero(scores == 0)[0]
        return int(feasible[self.workload.random.intn(len(feasible))]) if len(feasible) else 0

    def device(self, shape: Shape, state: State) -> int:
        devices = [device for device, left in enumerate(state.gpus) if left >= shape.milli]
        return devices[self.workload.random.intn(len(devices))]


GPU_POINTS: Final = 10_000.0
"""Points of a price of one GPU."""
IDLE_MILLI_POINTS: Final = 0.02
"""Points of an idle thousandth on the node of a pod without GPU."""
SCORE_DIGITS: Final = 6


class FragPolicy(Policy):
    """Our policy: the placement that leaves most room for the pods to come.

    It counts the growth of V (``Room``), the price of the kind of nodes for the pod (``prices``), and for pods without
    GPU how much is idle on the node. Scores are rounded before they are compared, so that noise does not decide among
    equals. A share is tried on every device; whole GPUs are the first ones that are free.
    """

    name = "frag"

    def __init__(self, workload: Workload, table: StateTable, fragmentation: Fragmentation) -> None:
        super().__init__(workload, table, fragmentation)
        self._room = Room(workload.pods, table.kinds)
        self._prices = prices(workload.pods, table.kinds)

    def scores(self, shape: Shape, states: States) -> Floats:
        price = GPU_POINTS * self._prices[shape][states.kind]
        if not shape.is_share:
            after, rows = states.after_whole(shape), np.arange(len(states))
            idle = np.zeros(len(states)) if shape.gpus else IDLE_MILLI_POINTS * states.idle
            return np.round(self._gained(states, after, rows) - price - idle, SCORE_DIGITS)
        after, rows, _ = states.after_share(shape)
        best = np.full(len(states), -np.inf)
        np.maximum.at(best, rows, self._gained(states, after, rows))
        return np.round(best - price, SCORE_DIGITS)

    def device(self, shape: Shape, state: State) -> int:
        """The first with the best score."""
        states = self.row(state)
        after, rows, devices = states.after_share(shape)
        return int(devices[np.round(self._gained(states, after, rows), SCORE_DIGITS).argmax()])

    def _gained(self, before: States, after: States, rows: Ints) -> Floats:
        found = self._room.wasted(before.with_others(after))
        return found[rows] - found[len(before) :]


POLICIES: Final[Mapping[str, type[Policy]]] = {
    policy.name: policy
    for policy in (
        RandomPolicy,
        DotProductPolicy,
        GpuClusteringPolicy,
        GpuPackingPolicy,
        BestFitPolicy,
        FgdPolicy,
        FirstFitPolicy,
        EmptiestPolicy,
        FragPolicy,
    )
}
