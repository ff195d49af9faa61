"""The study's Random: any node with room, on it any device with room.

The published runs draw from a list whose order is a race of threads, so single runs differ from them, the mean not.
"""

from __future__ import annotations

import numpy as np

from dra_operator.quality.states import Floats, State, States
from dra_operator.quality.trace import Shape

from .policy import Policy


class Random(Policy):
    """The stream goes on where the workload ends."""

    name = "random"

    def scores(self, shape: Shape, states: States) -> Floats:
        return np.zeros(len(states))

    def pick(self, scores: Floats) -> int:
        feasible = np.nonzero(scores == 0)[0]
        return int(feasible[self.workload.random.intn(len(feasible))]) if len(feasible) else 0

    def device(self, shape: Shape, state: State) -> int:
        devices = [device for device, left in enumerate(state.gpus) if left >= shape.milli]
        return devices[self.workload.random.intn(len(devices))]
