"""Depth-first search for the first solution in reference order (allocator.md section 5).

::

    claims in order
      requests in order
        subrequests in order                 one AlternativesFrame per request that has any
          devices one after the other        one DeviceFrame per device; one AllDevicesFrame for all

The stack of frames is explicit, so the search can stop after any step and continue later, and Python's recursion limit
does not matter.

A branch ends in one of two ways: it fails, or it would exceed the 32 results of a claim (``LIMIT``). The
latter skips an alternative, or abandons the previous request at once, since no other device changes it.

An error of what the node sees (a selector that fails on a device, for instance) ends the alternative in which it is
met: the nearest request behind it that has another one goes on with that. If its alternatives end as well, or there is
no such request, the search ends with the error. Under the reference's semantics each error ends the search.

Most searches succeed or fail within a few steps. One that has failed ``FAILURES_BEFORE_PRUNING`` times starts again
with a pruner that cuts branches which cannot hold a solution: the first solution stays the same. A search may be given
an order of devices (``order``), which counts until then.
"""

from __future__ import annotations

from typing import Final

from dra_ledger.errors import AllocationError

from dra_operator.allocator.problem.problem import NodeProblem

from .frames import (
    AlternativesFrame,
    BranchEnd,
    BranchPruner,
    BranchState,
    DeviceOrder,
    Frame,
    MakePruner,
    Remaining,
    enter,
)

FAILURES_BEFORE_PRUNING: Final = 12
PRUNED_STEP_FACTOR: Final = 25
"""A step with a pruner takes about so many times longer than one without."""


class Search:
    """A search that can be interrupted: ``run`` until it has an answer or has done so many steps."""

    def __init__(self, problem: NodeProblem, make_pruner: MakePruner, order: DeviceOrder | None = None) -> None:
        self.problem = problem
        self.steps = 0
        self._make_pruner = make_pruner
        self._pruner: BranchPruner | None = None
        self.solved: bool | None = None
        self._failures = 0
        if problem.hopeless:
            self.state, self.solved = BranchState(problem), False
        else:
            self._begin(None, order)

    def run(self, steps: int) -> bool | None:
        """True: ``state.grants`` is the solution. False: there is none. None: not known yet.

        Raises AllocationError when the search ends with an error.
        """
        last = self.steps + steps
        while self.solved is None and self.steps < last:
            if self._failures > FAILURES_BEFORE_PRUNING and self._pruner is None:
                self._start_again()
            else:
                try:
                    self._advance(last)
                except AllocationError as error:
                    self._abandon_alternative(error)
        return self.solved

    def picks(self) -> list[int]:
        """The chosen alternative of each stage, once solved."""
        picks = [0] * len(self.problem.domains)
        for frame in self._stack:
            if isinstance(frame, AlternativesFrame):
                picks[frame.stage] = frame.index
        return picks

    def _begin(self, remaining: Remaining | None, order: DeviceOrder | None = None) -> None:
        self.state = BranchState(self.problem, order)
        first = enter(self.state, self._pruner, 0, remaining)
        self._stack: list[Frame] = []
        if first is None:
            self.solved = True
        else:
            self._stack.append(first)

    def _start_again(self) -> None:
        while self.state.grants:
            self.state.give_back()
        self._pruner = self._make_pruner(self.problem)
        if not self._pruner.may_prune(0):
            self._begin(None)
            return
        remaining = self._pruner.start()
        if remaining is None:
            self.solved = False
        else:
            self._begin(remaining)

    def _advance(self, last: int) -> None:
        """Takes steps until it has an answer, has taken the last, or has failed often enough to start again."""
        stack, state, pruner = self._stack, self.state, self._pruner
        cost = 1 if pruner is None else PRUNED_STEP_FACTOR
        is_ordered = state.order is not None
        while self.steps < last:
            self.steps += cost
            if is_ordered:
                self.steps += state.ordering_steps
                state.ordering_steps = 0
            frame = stack[-1]
            advanced = frame.advance(state)
            if advanced:
                following = frame.follow(state, pruner)
                if following is None:
                    self.solved = True
                    return
                known = pruner.nogoods.get(following.key) if pruner is not None and following.key is not None else None
                if known is None:
                    stack.append(following)
                else:
                    frame.retract(state, self._crossing(frame, following, known))
            elif advanced is False:
                self._pop(stack, state)
                if not stack or (self._failures > FAILURES_BEFORE_PRUNING and pruner is None):
                    return

    def _abandon_alternative(self, error: AllocationError) -> None:
        """Go on with the next alternative of the nearest request that has one. Raises the error if none has."""
        if not (self.problem.node.errors_stay and error.is_of_node):
            raise error
        self._failures += 1
        while self._stack:
            frame = self._stack[-1]
            if isinstance(frame, AlternativesFrame):
                last = frame.abandon(self.state, error)
                if last is None:
                    return
                error = last
            self._stack.pop()
        raise error

    def _pop(self, stack: list[Frame], state: BranchState) -> None:
        frame = stack.pop()
        self._failures += 1
        if self._pruner is not None and frame.key is not None:
            self._pruner.nogoods[frame.key] = frame.outcome
        if stack:
            stack[-1].retract(state, self._crossing(stack[-1], frame, frame.outcome))
        else:
            self.solved = False

    def _crossing(self, outer: Frame, inner: Frame, end: BranchEnd) -> BranchEnd:
        """Between claims, exceeding the limit is an ordinary failure: another claim has its own 32."""
        domains = self.problem.domains
        if domains[outer.stage][0].claim != domains[inner.stage][0].claim:
            return BranchEnd.FAILED
        return end
