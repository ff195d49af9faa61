"""How many rounds a random scenario runs: a few, or as many as ``KOPF_DRA_ROUNDS`` says."""

from __future__ import annotations

import os


def rounds(few: int) -> range:
    """The numbers of the rounds, which are also their seeds."""
    return range(int(os.environ.get("KOPF_DRA_ROUNDS", few)))
