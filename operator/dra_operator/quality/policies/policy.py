"""What a policy decides: a score for each node, which of them is taken, and on which device a share goes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Final

import numpy as np

from dra_operator.quality.fragmentation import Fragmentation
from dra_operator.quality.states import Floats, State, States, StateTable
from dra_operator.quality.trace import Shape
from dra_operator.quality.workload import Workload

BEST_PUBLISHED_SCORE: Final = 100
"""The best score of the published policies, which are whole numbers."""
LARGEST_CPU_MILLI: Final = 128_000
LARGEST_GPU_MILLI: Final = 8_000
"""By these the published policies norm: the largest node of the trace."""


class Policy(ABC):
    """One policy in one run."""

    name: ClassVar[str]
    looks_at_memory: ClassVar[bool] = False

    def __init__(self, workload: Workload, table: StateTable, fragmentation: Fragmentation) -> None:
        self.workload, self.table, self.fragmentation = workload, table, fragmentation

    @abstractmethod
    def scores(self, shape: Shape, states: States) -> Floats:
        """How much a pod would have each state; larger is better. It has room in all of them."""

    def pick(self, scores: Floats) -> int:
        """The node that is taken; minus infinity means that the node has no room. Of equals the first."""
        return int(scores.argmax())

    def device(self, shape: Shape, state: State) -> int:
        """The device for a share: the one with least left of those that have room."""
        return min((left, device) for device, left in enumerate(state.gpus) if left >= shape.milli)[1]

    def row(self, state: State) -> States:
        """A state as columns."""
        return self.table.states([self.table.number(state)])


def whole(scores: Floats) -> Floats:
    """Cut to whole numbers, as the published policies do."""
    return np.trunc(scores)
