"""The study's GpuClustering: pods of one kind (a share, or 1, 2, 4, 8 GPUs) together, on the fullest node."""

from __future__ import annotations

import numpy as np

from dra_operator.quality.states import Floats, States, pod_kind
from dra_operator.quality.trace import Shape

from .policy import BEST_PUBLISHED_SCORE, LARGEST_GPU_MILLI, Policy

QUARTER = BEST_PUBLISHED_SCORE // 4


class GpuClustering(Policy):
    """A quarter of the score by what is left, the others by the kinds of pods that are there."""

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
