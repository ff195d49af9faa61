"""The node where least is in vain afterwards: lost to requests that fit no device, or more than requests could use.

Six parts of ten are what requests of one class alone could not use, however they were placed; four are the
fragmentation of ``fgd``. The score is exact: nodes differ where their numbers differ.
"""

from __future__ import annotations

from dra_operator.allocator import wasted

from .strategy import Candidate, Strategy


class Frag(Strategy):
    """``frag``."""

    name = "frag"
    device_order = "least-loss"
    uses_mix = True

    def score(self, candidate: Candidate) -> int:
        """How much less is in vain."""
        mix = candidate.mix
        return wasted(mix, candidate.before, lost=4, unused=6) - wasted(mix, candidate.after, lost=4, unused=6)
