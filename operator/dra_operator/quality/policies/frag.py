"""Our policy: the placement that leaves most room for the pods to come.

What counts is how V grows (``room``), what the kind of nodes costs the pod (``prices``), and for pods without GPU how
much is idle on the node. Scores are rounded before they are compared, so that noise does not decide among equals.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from dra_operator.quality.fragmentation import Fragmentation
from dra_operator.quality.prices import prices
from dra_operator.quality.room import Room
from dra_operator.quality.states import Floats, Ints, State, States, StateTable
from dra_operator.quality.trace import Shape
from dra_operator.quality.workload import Workload

from .policy import Policy

GPU_POINTS: Final = 10_000.0
"""Points of a price of one GPU."""
IDLE_MILLI_POINTS: Final = 0.02
"""Points of an idle thousandth on the node of a pod without GPU."""
SCORE_DIGITS: Final = 6


class Frag(Policy):
    """A share is tried on every device; whole GPUs are the first ones that are free."""

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
