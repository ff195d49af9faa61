"""Depth-first search for the first solution in reference order (allocator.md section 5).

::

    claims in order
      requests in order                      Alternatives: one frame per request
        subrequests in order
          devices one after the other        Pick: one frame per device; All: one frame for all devices

The stack of frames is explicit, so the search can stop after any step and go on later, and is not bound
by Python's recursion limit. A frame takes its next option (``advance``), gives it back when what follows
failed (``retract``), and is popped when it has no more. The second and later devices of one request are
only looked for behind the previous one, so each combination is tried once.

A branch ends in one of two ways: it fails, or it would exceed the 32 results of a claim (``LIMIT``). The
latter skips an alternative, or abandons the previous request at once, since no other device changes it.

Most searches succeed or fail within a few steps. One that has failed ``PATIENCE`` times starts again with
a ``Guide`` that cuts branches which cannot hold a solution: the first solution stays the same.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from dra_api.resource import RESULTS_LIMIT

from .domain import Domain, Problem
from .errors import ClaimError
from .guide import Guide
from .lookahead import Ahead
from .node_view import each
from .state import State

PATIENCE: Final = 12
GUIDED_COST: Final = 25
"""A step with a guide takes about so many times longer than one without."""


class End(Enum):
    """How a branch ended."""

    FAILED = "failed"
    LIMIT = "limit exceeded"


class Frame:
    """One decision. ``outcome`` is how the frame ends when it has no more options."""

    __slots__ = ("key", "outcome", "step")

    def __init__(self, step: int) -> None:
        self.step = step
        self.outcome = End.FAILED
        self.key: object = None
        """What the future of the frame depends on, when somebody remembers failures."""

    def advance(self, state: State) -> bool | None:
        """Takes the next option; None when that led nowhere at once, False when there is none left."""
        raise NotImplementedError

    def retract(self, state: State, end: End) -> None:
        """What followed the current option ended like this: gives the option back."""
        raise NotImplementedError

    def follow(self, search: Search) -> Frame | None:
        """The frame behind the current option, None behind the last request."""
        raise NotImplementedError


class Alternatives(Frame):
    """Which alternative serves the request; limited when all of them exceed the limit."""

    __slots__ = ("_ahead", "_limited", "index")

    def __init__(self, step: int, ahead: Ahead | None) -> None:
        super().__init__(step)
        self.index = -1
        self._limited = True
        self._ahead = ahead

    def advance(self, state: State) -> bool | None:
        domains = state.problem.domains[self.step]
        while self.index + 1 < len(domains):
            self.index += 1
            domain = domains[self.index]
            if not domain.need or state.results[domain.claim] + domain.need <= RESULTS_LIMIT:
                return True
        self.outcome = End.LIMIT if self._limited else End.FAILED
        return False

    def retract(self, state: State, end: End) -> None:
        self._limited &= end is End.LIMIT

    def follow(self, search: Search) -> Frame | None:
        domain = search.problem.domains[self.step][self.index]
        if domain.alternative.everything:
            return All(self.step, domain, self._ahead)
        if domain.need:
            return Pick(search, self.step, domain, domain.need, -1, self._ahead)
        return search.enter(self.step + 1, self._ahead)


class Pick(Frame):
    """One device of a request, from those behind the previous one."""

    __slots__ = ("_after", "_ahead", "_domain", "_guide", "_missing", "_raised", "_rest", "device")

    def __init__(
        self, search: Search, step: int, domain: Domain, missing: int, behind: int, ahead: Ahead | None
    ) -> None:
        super().__init__(step)
        self._domain = domain
        self._missing = missing
        self._ahead = self._after = ahead
        self._guide = search.guide
        free = ~search.state.blocked(domain) & -1 << behind + 1
        rest = domain.usable & free
        for ledger in domain.ledgers:
            rest = ledger.admit(rest, domain)
        self._raised = domain.raised & free
        self._rest = rest | self._raised
        self.device = -1
        if self._guide is not None:
            self.key = self._guide.key(search.state, step, domain, missing, self._rest)

    def advance(self, state: State) -> bool | None:
        if not self._rest:
            return False
        lowest = self._rest & -self._rest
        self._rest ^= lowest
        self.device = lowest.bit_length() - 1
        if lowest & self._raised:
            raise state.problem.error_at(self._domain, self.device)
        state.take(self._domain, self.device)
        if self._guide is not None and self._guide.sees(self.step):
            missing = self._missing - 1
            behind = self._domain.usable & -1 << self.device + 1
            self._after = self._guide.after(self._ahead, state, self.step, self._domain, missing, behind)
            if self._after is None:
                self.retract(state, End.FAILED)
                return None
        return True

    def retract(self, state: State, end: End) -> None:
        state.give_back()
        if end is End.LIMIT:
            self.outcome = End.LIMIT
            self._rest = 0
        elif self._guide is not None:
            self._rest &= ~self._guide.like(self.device)

    def follow(self, search: Search) -> Frame | None:
        if self._missing > 1:
            return Pick(search, self.step, self._domain, self._missing - 1, self.device, self._after)
        return search.enter(self.step + 1, self._after)


class All(Frame):
    """All collected devices of a request, in order, without alternatives."""

    __slots__ = ("_ahead", "_domain", "_done")

    def __init__(self, step: int, domain: Domain, ahead: Ahead | None) -> None:
        super().__init__(step)
        self._domain = domain
        self._done = False
        self._ahead = ahead

    def advance(self, state: State) -> bool | None:
        if self._done or not self._domain.collected:
            return False
        self._done = True
        for count, device in enumerate(each(self._domain.collected)):
            if not self._admit(state, device):
                for _ in range(count):
                    state.give_back()
                return False
            state.take(self._domain, device)
        return True

    def _admit(self, state: State, device: int) -> bool:
        """Raises ClaimError when only a constraint keeps the device away (section 7)."""
        domain, bit = self._domain, 1 << device
        if not domain.usable & bit & ~state.blocked(domain):
            return False
        for ledger in domain.ledgers:
            if not ledger.admit(bit, domain):
                if ledger not in domain.constraints:
                    return False
                claim = state.problem.plan.claims[domain.claim].key
                raise ClaimError(
                    f"claim {claim}, request {domain.alternative.request}: cannot add device "
                    f"{state.problem.view.id(device)} because a claim constraint would not be satisfied"
                )
        return True

    def retract(self, state: State, end: End) -> None:
        for _ in each(self._domain.collected):
            state.give_back()
        self.outcome = end

    def follow(self, search: Search) -> Frame | None:
        return search.enter(self.step + 1, self._ahead)


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
            if self._failures > PATIENCE and self.guide is None:
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
