"""From a pod to a plan: which node, which devices for each claim, or why not (scheduling.md 4.2 to 4.4).

Planning changes nothing. A plan is only a proposal until its devices are assumed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import replace

from dra_operator.allocator import AllocationError

from .attempt import Aborted, Answered, Attempt
from .node_status import NodeStatus
from .pause import Elapsed, Pause
from .placement import Placement
from .post_filter import PostFilter, Unschedulable
from .pre_filter import CycleState
from .result import NoPlace, Plan

Planning = Generator[Pause, Elapsed, Plan | NoPlace]


def plan(
    cycle_state: CycleState,
    filter_timeout: float = math.inf,
    answered: Answered = lambda _name, _answer: None,
    post_filter: PostFilter | None = None,
    placement: Placement | None = None,
) -> Planning:
    """The best node for a pod whose claims are in order, each given once.

    A generator that pauses every few milliseconds, so that the caller can let others run, and says at what; it
    returns the answer. A caller with a clock sends the seconds of search so far: a node that takes the allocator longer
    than ``filter_timeout`` counts as one that does not fit, and the answer is an error if no other one does.
    ``answered`` gets the answer of each node. ``post_filter`` may make room where no node fits. ``placement`` has
    strategies that prefer nodes; None: the first node that fits.

    Faults of the claims end the attempt. A fault of what one node sees (a selector that fails on one of its devices)
    keeps the pod from that node only.
    """
    statuses: dict[str, NodeStatus] = {}

    def noted(name: str, answer: NodeStatus) -> None:
        statuses[name] = answer
        answered(name, answer)

    try:
        attempt = Attempt(cycle_state, filter_timeout, answered if post_filter is None else noted, placement)
        yield from attempt.search()
        if attempt.fits:
            return attempt.best()
        refusal = yield from attempt.refuse()
        if post_filter is None or refusal.stuck:
            return refusal
        nominated = yield from post_filter(Unschedulable(cycle_state, attempt.question, refusal, statuses))
    except (AllocationError, Aborted) as error:
        return NoPlace(str(error), is_error=True)
    return replace(refusal, nominated=nominated)


def decided(planning: Planning, pause: Callable[[], None] = lambda: None) -> Plan | NoPlace:
    """The answer of a plan, in one go; ``pause`` is called every few milliseconds, and may raise."""
    while True:
        try:
            next(planning)
            pause()
        except StopIteration as end:
            answer: Plan | NoPlace = end.value
            return answer
