"""Depth-first search for the first solution in reference order (allocator.md section 5).

::

    claims in order
      requests in order                      Alternatives: one frame per request
        subrequests in order
          devices one after the other        Pick: one frame per device; All: one frame for all devices

The stack of frames is explicit, so the search can stop after any step and go on later, and is not bound
by Python's recursion limit. A frame offers its next option (``advance``), takes it back when what follows
failed (``retract``), and is popped when it has no more. The second and later devices of one request are
only looked for behind the previous one, so each combination is tried once.

A branch ends in one of two ways: it fails, or it would exceed the 32 results of a claim (``LIMIT``). The
latter skips an alternative, or abandons the previous request at once, since no other device changes it.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from dra_api.resource import RESULTS_LIMIT

from .domain import Domain, Problem
from .errors import ClaimError
from .node_view import each


class End(Enum):
    """How a branch ended."""

    FAILED = "failed"
    LIMIT = "limit exceeded"


class Grant(NamedTuple):
    """One device given to one alternative."""

    domain: Domain
    device: int
    taken: int
    """What was taken before, to be restored when the device is given back."""
    own: int


class State:
    """What the current branch has taken."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.grants: list[Grant] = []
        self.taken = 0
        """Devices of this call that ordinary requests leave alone; shares do not count."""
        self.by_claim = [0] * len(problem.plan.claims)
        """Devices that each claim took, shares left out."""
        self.results = [0] * len(problem.plan.claims)
        self._exclusive = ~(problem.view.shareable if problem.sharing else 0)

    def blocked(self, domain: Domain) -> int:
        """Devices in use by this call: of any ordinary request, and of any request of the same claim."""
        own = self.by_claim[domain.claim]
        return own if domain.alternative.admin else own | self.taken

    def take(self, domain: Domain, device: int) -> None:
        """Gives a device to a domain."""
        own = self.by_claim[domain.claim]
        self.grants.append(Grant(domain, device, self.taken, own))
        bit = 1 << device & self._exclusive
        if not self.problem.exempt(domain):
            self.taken |= bit
        self.by_claim[domain.claim] = own | bit
        self.results[domain.claim] += 1
        for ledger in domain.ledgers:
            ledger.take(device, domain)

    def give_back(self) -> None:
        """Undoes the latest ``take``."""
        domain, device, self.taken, own = self.grants.pop()
        self.by_claim[domain.claim] = own
        for ledger in reversed(domain.ledgers):
            ledger.give_back(device, domain)
        self.results[domain.claim] -= 1


class Frame:
    """One decision. ``outcome`` is how the frame ends when it has no more options."""

    __slots__ = ("outcome", "step")

    def __init__(self, step: int) -> None:
        self.step = step
        self.outcome = End.FAILED

    def advance(self, state: State) -> bool:
        """Takes the next option; False when there is none left."""
        raise NotImplementedError

    def retract(self, state: State, end: End) -> None:
        """What followed the current option ended like this: gives the option back."""
        raise NotImplementedError

    def follow(self, search: Search) -> Frame | None:
        """The frame behind the current option, None behind the last request."""
        raise NotImplementedError


class Alternatives(Frame):
    """Which alternative serves the request; limited when all of them exceed the limit."""

    __slots__ = ("_limited", "index")

    def __init__(self, step: int) -> None:
        super().__init__(step)
        self.index = -1
        self._limited = True

    def advance(self, state: State) -> bool:
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
            return All(self.step, domain)
        if domain.need:
            return Pick(self.step, domain, domain.need, 0, search.state)
        return search.enter(self.step + 1)


class Pick(Frame):
    """One device of a request, from those behind the previous one."""

    __slots__ = ("_domain", "_missing", "_raised", "_rest", "device")

    def __init__(self, step: int, domain: Domain, missing: int, start: int, state: State) -> None:
        super().__init__(step)
        self._domain = domain
        self._missing = missing
        free = ~state.blocked(domain) & -1 << start
        rest = domain.usable & free
        for ledger in domain.ledgers:
            rest = ledger.admit(rest, domain)
        self._raised = domain.raised & free
        self._rest = rest | self._raised
        self.device = -1

    def advance(self, state: State) -> bool:
        if not self._rest:
            return False
        lowest = self._rest & -self._rest
        self._rest ^= lowest
        self.device = lowest.bit_length() - 1
        if lowest & self._raised:
            raise state.problem.error_at(self._domain, self.device)
        state.take(self._domain, self.device)
        return True

    def retract(self, state: State, end: End) -> None:
        state.give_back()
        if end is End.LIMIT:
            self.outcome = End.LIMIT
            self._rest = 0

    def follow(self, search: Search) -> Frame | None:
        if self._missing > 1:
            return Pick(self.step, self._domain, self._missing - 1, self.device + 1, search.state)
        return search.enter(self.step + 1)


class All(Frame):
    """All collected devices of a request, in order, without alternatives."""

    __slots__ = ("_domain", "_done")

    def __init__(self, step: int, domain: Domain) -> None:
        super().__init__(step)
        self._domain = domain
        self._done = False

    def advance(self, state: State) -> bool:
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
        return search.enter(self.step + 1)


class Search:
    """A search that can be continued: ``run`` until it has an answer or has done so many steps."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.state = State(problem)
        self.steps = 0
        first = self.enter(0)
        self._stack: list[Frame] = [] if first is None else [first]
        self.solved: bool | None = True if first is None else None

    def enter(self, step: int) -> Frame | None:
        """The frame of a step; None when all steps are done."""
        return Alternatives(step) if step < len(self.problem.domains) else None

    def run(self, steps: int) -> bool | None:
        """True: solved, ``state.grants`` is the solution. False: there is none. None: not known yet.

        Raises AllocationError when the search meets something fatal.
        """
        last = self.steps + steps
        while self.solved is None and self.steps < last:
            self.steps += 1
            self._step(self._stack, self.state)
        return self.solved

    def _step(self, stack: list[Frame], state: State) -> None:
        frame = stack[-1]
        if frame.advance(state):
            following = frame.follow(self)
            if following is None:
                self.solved = True
            else:
                stack.append(following)
            return
        stack.pop()
        if stack:
            stack[-1].retract(state, self._crossing(stack[-1], frame))
        else:
            self.solved = False

    def picks(self) -> list[int]:
        """The chosen alternative of each step, once solved."""
        return [frame.index for frame in self._stack if isinstance(frame, Alternatives)]

    def _crossing(self, outer: Frame, inner: Frame) -> End:
        """Between claims, exceeding the limit is an ordinary failure: another claim has its own 32."""
        domains = self.problem.domains
        if domains[outer.step][0].claim != domains[inner.step][0].claim:
            return End.FAILED
        return inner.outcome
