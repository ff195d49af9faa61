"""The study's DotProd: nodes whose free CPU and GPUs point least where the request points."""

from __future__ import annotations

from dra_operator.quality.states import Floats, States
from dra_operator.quality.trace import Shape

from .policy import BEST_PUBLISHED_SCORE, LARGEST_CPU_MILLI, LARGEST_GPU_MILLI, Policy, whole


class DotProduct(Policy):
    """Both vectors are normed by the largest node."""

    name = "dot-product"

    def scores(self, shape: Shape, states: States) -> Floats:
        cpu = states.cpu / LARGEST_CPU_MILLI * (shape.cpu / LARGEST_CPU_MILLI)
        gpu = states.idle / LARGEST_GPU_MILLI * (shape.total / LARGEST_GPU_MILLI)
        return whole(BEST_PUBLISHED_SCORE * (1 - (cpu + gpu) / 2))
