"""The emptiest node first, and on it the first device with room: what the operator does unless it is told otherwise.

Empty is a node by the mean of its free CPU and memory. The operator also looks at pod slots, of which traces say
nothing.
"""

from __future__ import annotations

import numpy as np

from dra_operator.quality.states import Floats, State, States
from dra_operator.quality.trace import Shape

from .first_fit import first_device
from .policy import Policy


class Emptiest(Policy):
    """GPUs do not count."""

    name = "emptiest"
    looks_at_memory = True

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

    def device(self, shape: Shape, state: State) -> int:
        return first_device(shape, state)
