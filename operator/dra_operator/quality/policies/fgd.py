"""FGD of the study: the least growth of fragmentation, as a whole number from 0 to 100."""

from __future__ import annotations

import numpy as np

from dra_operator.quality.states import Floats, Ints, State, States
from dra_operator.quality.trace import WHOLE_MILLI, Shape

from .policy import BEST_PUBLISHED_SCORE, Policy, whole


class Fgd(Policy):
    """A share is tried on every device; whole GPUs are the first ones that are free."""

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
