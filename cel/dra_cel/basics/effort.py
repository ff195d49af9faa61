"""A limit on work that costs do not cover.

The reference charges one unit for comparing two lists, however deep they are, and nothing for what ``format`` prints.
Lists may share their elements, so that work can be exponential in the length of the expression. Implementations whose
work depends on the depth of their operands therefore spend effort here; each evaluation by the machine starts afresh,
and so does each compilation, which compiles the patterns of an expression. An evaluation that is put aside takes its
account along (``suspend``) and brings it back (``resume``).
"""

from __future__ import annotations

import threading
from typing import Final, NamedTuple

from .errors import CostLimitExceeded

EFFORT_STEPS: Final = 500_000
"""Elementary steps of one evaluation; about a second."""


class Account(NamedTuple):
    """What is left of the effort, and what was paid once."""

    left: int
    paid: set[str]


class _Budget(threading.local):
    def __init__(self) -> None:
        self.left = EFFORT_STEPS
        self.paid: set[str] = set()


_budget: Final = _Budget()


def begin() -> None:
    """A new evaluation or compilation starts in this thread."""
    _budget.left = EFFORT_STEPS
    _budget.paid = set()


def suspend() -> Account:
    """What the evaluation under way has left."""
    return Account(_budget.left, _budget.paid)


def resume(account: Account) -> None:
    """The evaluation with this account goes on in this thread."""
    _budget.left, _budget.paid = account


def spend_once(what: str, steps: int) -> None:
    """Note work that an evaluation does once, such as compiling a pattern, whether or not an earlier one has done it:
    the verdict must not depend on what is remembered. Raises CostLimitExceeded."""
    if what not in _budget.paid:
        spend(steps)
        _budget.paid.add(what)


def spend(steps: int) -> None:
    """Note the work done. Raises CostLimitExceeded when it becomes too much."""
    _budget.left -= steps
    if _budget.left < 0:
        raise CostLimitExceeded("comparing, printing or matching the values takes too long")
