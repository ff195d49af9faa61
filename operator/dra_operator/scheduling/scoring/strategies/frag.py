"""The node where least is in vain afterwards: lost to requests that fit no device, or more than requests could use.

Six parts of ten are what requests of one class alone could not use, however they were placed, with the cpu that their
pods need; four are the fragmentation of ``fgd``. A pod that takes no devices goes where few are idle: its cpu is worth
most to pods with devices where these are. The score is exact: nodes differ where their numbers differ.
"""

from __future__ import annotations

from typing import Final

from dra_operator.allocator import WEIGHT_OF_ALL, Totals, wasted_with

from .strategy import Candidate, Strategy

LOST_WEIGHT: Final = 4
UNUSED_WEIGHT: Final = 6
IDLE_DIVISOR: Final = 50
"""What is idle beside a pod without devices counts so many times less than what is in vain to all."""


class Frag(Strategy):
    """``frag``."""

    name = "frag"
    device_order = "least-loss"
    uses_mix = True
    ranks_all_pods = True

    def score(self, candidate: Candidate) -> int:
        """How much less is in vain."""
        before, after = candidate.before, candidate.after
        less = _in_vain(candidate, before, candidate.milli_cpu) - _in_vain(candidate, after, candidate.milli_cpu_after)
        if after.idle != before.idle:
            return less
        return less - before.idle * WEIGHT_OF_ALL * (LOST_WEIGHT + UNUSED_WEIGHT) // IDLE_DIVISOR


def _in_vain(candidate: Candidate, totals: Totals, milli_cpu: int) -> int:
    return wasted_with(candidate.mix, totals, milli_cpu, lost=LOST_WEIGHT, unused=UNUSED_WEIGHT)
