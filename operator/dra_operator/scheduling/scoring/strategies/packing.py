"""Devices that are shared already first, then free ones of nodes in use, whole nodes last: whole nodes stay whole.

As GpuPacking of the study "Beware of Fragmentation" has it.
"""

from __future__ import annotations

from typing import Final

from .strategy import Candidate, Strategy

SHARED_SCORE, IN_USE_SCORE, WHOLE_SCORE = 100, 50, 33
"""The most that a node gets where nothing free is begun, where it is in use, and where all of it is free."""
HALF_SCORE: Final = 50


class Packing(Strategy):
    """``packing``."""

    name = "packing"
    device_order = "best-fit"
    uses_mix = False
    ranks_all_pods = True

    def score(self, candidate: Candidate) -> int:
        """By what the pod begins."""
        before, after = candidate.before, candidate.after
        begun = before.whole - after.whole
        if not before.units:  # only pods without claims fit there
            return SHARED_SCORE
        if before.whole == before.units:
            return max(WHOLE_SCORE - begun, 1)
        if begun:
            return max(IN_USE_SCORE - begun, WHOLE_SCORE)
        shared = before.idle - 1000 * before.whole
        return max(SHARED_SCORE - shared // 100, HALF_SCORE)
