"""A limit on work that costs do not cover.

The reference charges one unit for comparing two lists, however deep they are, and nothing for what ``format`` prints.
Lists may share their elements, so that work can be exponential in the length of the expression. Implementations whose
work depends on the depth of their operands therefore spend effort here; each evaluation by the machine starts afresh.
"""

from __future__ import annotations

import threading
from typing import Final

from .errors import CostLimitExceeded

LIMIT: Final = 500_000
"""Elementary steps of one evaluation; about a second."""


class _Budget(threading.local):
    left = LIMIT


_budget: Final = _Budget()


def begin() -> None:
    """A new evaluation starts in this thread."""
    _budget.left = LIMIT


def spend(steps: int) -> None:
    """Note the work done. Raises CostLimitExceeded when it becomes too much."""
    _budget.left -= steps
    if _budget.left < 0:
        raise CostLimitExceeded("comparing or printing the values takes too long")
