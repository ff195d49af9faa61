"""Fragmentation gradient descent: the node where least becomes useless to the pods that usually come.

A node's fragmentation is what is idle on devices that cannot serve a request, in the mean over the mix. The score is
``100 * sigmoid(decrease of the fragmentation, in devices)`` without its fraction, as in the study "Beware of
Fragmentation" (Weng et al., USENIX ATC 2023). To leave the fraction out matters: nodes that are nearly equal follow
each other by name then, and fill one after the other. It is computed in whole numbers, from a table of the decreases
at which the score grows. Devices are also lost where a request lacks cpu; the cpu of a request is that of its class in
the mean, where the study has a kind of pods for each amount.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Final

from dra_operator.allocator import WEIGHT_OF_ALL, wasted_with

from .strategy import Candidate, Strategy

_UNIT: Final = 1000 * WEIGHT_OF_ALL
"""One device, lost to the whole mix."""
_STEPS: Final = tuple(math.ceil(_UNIT * math.log(score / (100 - score))) for score in range(1, 100))
"""The least decrease that gives each score from 1 to 99."""


class FragmentationGradientDescent(Strategy):
    """``fgd``."""

    name = "fgd"
    device_order = "least-fragmentation"
    uses_mix = True
    ranks_all_pods = True

    def score(self, candidate: Candidate) -> int:
        """From 0 to 99; 50 where nothing changes."""
        mix = candidate.mix
        before = wasted_with(mix, candidate.before, candidate.milli_cpu, lost=1, unused=0)
        after = wasted_with(mix, candidate.after, candidate.milli_cpu_after, lost=1, unused=0)
        return bisect_right(_STEPS, before - after)
