"""The node whose devices have most left: load is spread, and so are failures."""

from __future__ import annotations

from .strategy import Candidate, Strategy


class Emptiest(Strategy):
    """``emptiest``."""

    name = "emptiest"
    device_order = "reference"
    uses_mix = False
    ranks_all_pods = False

    def score(self, candidate: Candidate) -> int:
        """What is left afterwards."""
        return candidate.after.idle
