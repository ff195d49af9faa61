"""Depth-first search for the first solution in reference order (allocator.md section 5).

::

    claims in order
      requests in order                      Alternatives: one frame per request
        subrequests in order
          devices one after the other        Pick: one frame per device; All: one frame for all devices

The stack of frames is explicit, so the search can stop after any step and go on later, and is not bound
by Python's recursion limit.

A branch ends in one of two ways: it fails, or it would exceed the 32 results of a claim (``LIMIT``). The
latter skips an alternative, or abandons the previous request at once, since no other device changes it.

Most searches succeed or fail within a few steps. One that has failed ``PATIENCE`` times starts again with
a ``Guide`` that cuts branches which cannot hold a solution: the first solution stays the same.
"""

from __future__ import annotations

from typing import Final

from .ahead import Ahead
from .frames import Alternatives, End, Frame
from .guide import Guide
from .problem import Problem
from .state import State

PATIENCE: Final = 12
GUIDED_COST: Final = 25
"""A step with a guide takes about so many times longer than one without."""


class Search:
    """A search that can be continued: ``run`` until it has an answer or has done so many steps."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.steps = 0
        self.guide: Guide | None = None
        self.solved: bool | None = None
        self._failures = 0
        if problem.hopeless:
            self.state, self.solved = State(problem), False
        else:
            self._begin(None)

    def enter(self, step: int, ahead: Ahead | None) -> Frame | None:
        """The frame of a step; None when all steps are done."""
        return Alternatives(step, ahead) if step < len(self.problem.domains) else None

    def run(self, steps: int) -> bool | None:
        """True: solved, ``state.grants`` is the solution. False: there is none. None: not known yet.

        Raises AllocationError when the search meets something fatal.
        """
        last = self.steps + steps
        while self.solved is None and self.steps < last:
            self._step(self._stack, self.state)
            if self.solved is None and self._failures > PATIENCE and self.guide is None:
                self._start_again()
        return self.solved

    def picks(self) -> list[int]:
        """The chosen alternative of each step, once solved."""
        return [frame.index for frame in self._stack if isinstance(frame, Alternatives)]

    def _begin(self, ahead: Ahead | None) -> None:
        self.state = State(self.problem)
        first = self.enter(0, ahead)
        self._stack: list[Frame] = []
        if first is None:
            self.solved = True
        else:
            self._stack.append(first)

    def _start_again(self) -> None:
        while self.state.grants:
            self.state.give_back()
        self.guide = Guide(self.problem)
        if not self.guide.sees(0):
            self._begin(None)
            return
        ahead = self.guide.start()
        if ahead is None:
            self.solved = False
        else:
            self._begin(ahead)

    def _step(self, stack: list[Frame], state: State) -> None:
        frame = stack[-1]
        self.steps += 1 if self.guide is None else GUIDED_COST
        advanced = frame.advance(state)
        if advanced:
            following = frame.follow(self)
            if following is None:
                self.solved = True
            else:
                self._push(stack, following)
        elif advanced is False:
            self._pop(stack, state)

    def _push(self, stack: list[Frame], frame: Frame) -> None:
        known = self.guide.failed.get(frame.key) if self.guide is not None and frame.key is not None else None
        if known is None:
            stack.append(frame)
        else:
            stack[-1].retract(self.state, self._crossing(stack[-1], frame, known))

    def _pop(self, stack: list[Frame], state: State) -> None:
        frame = stack.pop()
        self._failures += 1
        if self.guide is not None and frame.key is not None:
            self.guide.failed[frame.key] = frame.outcome
        if stack:
            stack[-1].retract(state, self._crossing(stack[-1], frame, frame.outcome))
        else:
            self.solved = False

    def _crossing(self, outer: Frame, inner: Frame, end: End) -> End:
        """Between claims, exceeding the limit is an ordinary failure: another claim has its own 32."""
        domains = self.problem.domains
        if domains[outer.step][0].claim != domains[inner.step][0].claim:
            return End.FAILED
        return end
