"""The study's GpuPacking: first GPUs that are shared already, then nodes in use, then empty nodes."""

from __future__ import annotations

import numpy as np

from dra_operator.quality.states import Floats, States
from dra_operator.quality.trace import WHOLE_MILLI, Shape

from .policy import BEST_PUBLISHED_SCORE, Policy

ON_USED_NODES = BEST_PUBLISHED_SCORE // 2
ON_EMPTY_NODES = BEST_PUBLISHED_SCORE // 3


class GpuPacking(Policy):
    """The pod takes the fullest GPUs that have room; a pod without GPU goes to the first node."""

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
