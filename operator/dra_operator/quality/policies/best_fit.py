"""The study's BestFit: the least CPU and GPU left, in equal parts."""

from __future__ import annotations

from dra_operator.quality.states import Floats, States
from dra_operator.quality.trace import Shape

from .policy import BEST_PUBLISHED_SCORE, LARGEST_CPU_MILLI, LARGEST_GPU_MILLI, Policy, whole


class BestFit(Policy):
    """What is left is normed by the largest node."""

    name = "best-fit"

    def scores(self, shape: Shape, states: States) -> Floats:
        cpu = (states.cpu - shape.cpu) / LARGEST_CPU_MILLI * 0.5
        gpu = (states.idle - shape.total) / LARGEST_GPU_MILLI * 0.5
        return whole((1.0 - (cpu + gpu)) * BEST_PUBLISHED_SCORE)
