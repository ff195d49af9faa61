"""From a pod to a plan: which node, which devices for each claim, or why not (scheduling.md 4.2 to 4.4).

Planning changes nothing. A plan is only a proposal until the holdings have taken its devices.
"""

from __future__ import annotations

import math
from collections.abc import Generator

from dra_operator.allocator import AllocationError

from .answer import NoPlace, Plan
from .attempt import Aborted, Answered, Attempt
from .examination import Case
from .pause import Elapsed, Pause

Planning = Generator[Pause, Elapsed, Plan | NoPlace]


def plan(case: Case, filter_timeout: float = math.inf, answered: Answered = lambda _name, _answer: None) -> Planning:
    """The best node for a pod whose claims are in order, each given once.

    A generator that pauses every few milliseconds, so that the caller can let others run, and says at what; it
    returns the answer. A caller with a clock sends the seconds of search so far: a node that takes the allocator longer
    than ``filter_timeout`` ends the attempt. ``answered`` gets the answer of each node.

    Errors of the input (a selector that fails on a device of one node) end the attempt, although another node might
    do.
    """
    try:
        attempt = Attempt(case, filter_timeout, answered)
        yield from attempt.search()
        if not attempt.fits:
            return (yield from attempt.refuse())
    except (AllocationError, Aborted) as error:
        return NoPlace(str(error), is_error=True)
    return attempt.best()


def decided(planning: Planning) -> Plan | NoPlace:
    """The answer of a plan, in one go."""
    while True:
        try:
            next(planning)
        except StopIteration as end:
            answer: Plan | NoPlace = end.value
            return answer
