"""The decisions of a search, one frame each (allocator.md sections 5 and 6).

A frame takes its next option (``advance``), gives it back when what follows failed (``retract``), and is
popped when it has no more. The second and later devices of one request are only looked for behind the
previous one, so each combination is tried once.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from dra_api.resource import RESULTS_LIMIT

from .ahead import Ahead
from .bits import each
from .domain import Domain
from .errors import ClaimError
from .ledgers import Counters
from .state import State

if TYPE_CHECKING:
    from .search import Search


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
            self._rest &= ~self._guide.like(state, self.device)

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
        """Raises ClaimError when a constraint keeps the device away and nothing but its capacity does so, too.

        Here capacity is the last thing to look at, otherwise the first (section 7): a device that an earlier
        request shares violates a constraint rather than being used up.
        """
        domain, bit = self._domain, 1 << device
        if not domain.usable & bit & ~state.blocked(domain):
            return False
        refusing = [ledger for ledger in domain.ledgers if not ledger.admit(bit, domain)]
        violated = next((constraint for constraint in domain.constraints if constraint in refusing), None)
        if violated is not None and not any(isinstance(ledger, Counters) for ledger in refusing):
            claim = state.problem.plan.claims[domain.claim].key
            raise ClaimError(
                f"claim {claim}, request {domain.alternative.request}: cannot add device "
                f"{state.problem.view.id(device)} because a claim constraint would not be satisfied: all must have "
                f"{violated}; ask for a number of devices, or narrow the selectors"
            )
        return not refusing

    def retract(self, state: State, end: End) -> None:
        for _ in each(self._domain.collected):
            state.give_back()
        self.outcome = end

    def follow(self, search: Search) -> Frame | None:
        return search.enter(self.step + 1, self._ahead)
