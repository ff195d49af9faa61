"""The first node with room, and on it the first device with room."""

from __future__ import annotations

import numpy as np

from dra_operator.quality.states import Floats, State, States
from dra_operator.quality.trace import Shape

from .policy import Policy


class FirstFit(Policy):
    """In the order in which equals are taken."""

    name = "first-fit"

    def scores(self, shape: Shape, states: States) -> Floats:
        return np.zeros(len(states))

    def device(self, shape: Shape, state: State) -> int:
        return first_device(shape, state)


def first_device(shape: Shape, state: State) -> int:
    """The first with room for a share."""
    return next(device for device, left in enumerate(state.gpus) if left >= shape.milli)
