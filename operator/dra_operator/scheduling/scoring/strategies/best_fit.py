"""The node that has least left of devices and cpu: full nodes become full first."""

from __future__ import annotations

from typing import Final

from .strategy import Candidate, Strategy

CORES_PER_DEVICE: Final = 16
"""A device weighs as much as so many cores: 8 and 128 of the largest nodes in the study of the trace openb."""


class BestFit(Strategy):
    """``best-fit``."""

    name = "best-fit"
    device_order = "best-fit"
    uses_mix = False
    ranks_all_pods = True

    def score(self, candidate: Candidate) -> int:
        """What is left, negative. The pod's own cpu is the same on every node, and left out."""
        return -(candidate.after.idle * CORES_PER_DEVICE + candidate.milli_cpu)
