"""How many rounds a random scenario runs, and how many examples a sweep looks at."""

from __future__ import annotations

import os


def rounds(few: int) -> range:
    """The numbers of the rounds, which are also their seeds: a few, or as many as ``KOPF_DRA_ROUNDS`` says."""
    return range(int(os.environ.get("KOPF_DRA_ROUNDS", few)))


def fewer(full: int) -> int:
    """The size of a sweep over random examples or seeds: all of them in CI (``CI=true``), elsewhere a third."""
    return full if "CI" in os.environ else -(-full // 3)
