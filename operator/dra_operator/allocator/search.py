"""Depth-first search for the first solution in reference order (allocator.md section 5).

::

    claims in order
      requests in order
        subrequests in order                 one AlternativesFrame per request that has any
          devices one after the other        one DeviceFrame per device; one AllDevicesFrame for all

Each decision is a frame (allocator.md sections 5 and 6). It takes its next option (``advance``), gives it back when the
rest failed (``retract``), and is popped when it has no more. The second and later devices of one request come from
those after the previous one, so each combination is tried once. The stack of frames is explicit, so the search can stop
after any step and continue later, and Python's recursion limit does not matter.

A branch ends in one of two ways: it fails, or it would exceed the 32 results of a claim (``LIMIT``). The latter skips
an alternative, or abandons the previous request at once, since no other device changes it.

An error of what the node sees (a selector that fails on a device, for instance) ends the alternative in which it is
met: the nearest request behind it that has another one goes on with that. If its alternatives end as well, or there is
no such request, the search ends with the error. Under the reference's semantics each error ends the search.

Most searches succeed or fail within a few steps. One that has failed ``FAILURES_BEFORE_PRUNING`` times starts again
with a pruner that cuts branches which cannot hold a solution: the first solution stays the same. ``BranchPruner`` is
all that a search knows of one; the room ``pruning`` implements it.

A search may be given an order of devices: which of them are tried first for a request (the room ``ordering``). It tries
all of them in the end, so what can be allocated stays the same, and so do the chosen alternatives. For this

- the order counts from the last request with alternatives on: the devices of earlier requests decide which alternative
  is possible;
- it does not count where a selector may fail on a device: whether the search reaches that device would depend on it;
- a search that fails often starts again with a pruner, and in the reference's order.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from enum import Enum
from typing import Final, NamedTuple, Protocol

from dra_api.resource import MOST_RESULTS
from dra_ledger.basics import each
from dra_ledger.errors import AllocationError, ClaimError

from dra_operator.allocator.problem.ledgers import Ledger
from dra_operator.allocator.problem.node_state import Domain
from dra_operator.allocator.problem.problem import NodeProblem

Grant = tuple[Domain, int, int, int]
"""One device given to one alternative; and what was taken before, in all and by the claim, to be restored."""


class Tried(NamedTuple):
    """The devices, each once, in the order in which they are tried, and what it cost to find that out."""

    devices: Sequence[int]
    steps: int = 0


class DeviceOrder(Protocol):
    """Which devices are tried first."""

    def tried(self, problem: NodeProblem, grants: Sequence[Grant], domain: Domain, devices: int, missing: int) -> Tried:
        """Puts the devices in order. The request lacks so many, the next one included; ``grants`` were made before."""


def ordered_from(problem: NodeProblem) -> int:
    """The first stage at which an order may count; behind the last one if it may not count at all."""
    domains = problem.domains
    # An error is observable (section 15): by another order the search might reach another device, and with it another
    # error or none.
    if not all(domain.cannot_raise for stage in problem.reached for domain in stage):
        return len(domains)
    # Which alternative a request gets depends on the devices that requests before it hold, so these keep the
    # reference's order. The devices of the last request with a choice are tried after that choice is made.
    prioritized = (number for number in reversed(range(len(domains))) if len(domains[number]) > 1)
    return next(prioritized, 0)


class BranchState:
    """The devices, counters and shares that the current branch has taken."""

    ordered_from = 0
    """The stage from which on ``order`` counts."""
    ordering_steps = 0
    """What an order of devices has cost since the search last looked."""

    def __init__(self, problem: NodeProblem, order: DeviceOrder | None = None) -> None:
        self.problem = problem
        self.order = order
        """How devices are tried from a stage on; None: in the reference's order."""
        if order is not None:
            self.ordered_from = ordered_from(problem)
        self.grants: list[Grant] = []
        self.taken = 0
        """Devices taken in this call, which ordinary requests must not take; shares do not count."""
        self.by_claim = [0] * len(problem.program.claims)
        """Devices that each claim took, shares left out."""
        self.results = self.by_claim.copy()
        # A device that allows multiple allocations is never in use as a whole (section 6): what is left of it is
        # counted by ``CapacityShares``.
        self._exclusive = ~problem.node.shareable
        self._admin_exempt = problem.node.admin_exempt

    def blocked(self, domain: Domain) -> int:
        """Devices in use by this call: of any ordinary request, and of any request of the same claim."""
        own = self.by_claim[domain.claim]
        return own if domain.alternative.admin else own | self.taken

    def take(self, domain: Domain, device: int) -> None:
        """Gives a device to a domain."""
        claim, taken = domain.claim, self.taken
        own = self.by_claim[claim]
        self.grants.append((domain, device, taken, own))
        bit = 1 << device & self._exclusive
        # In the reference what admin access takes is in use for later ordinary requests. Where the two ignore each
        # other (section 15), only the claim itself must not take the device again.
        if not (self._admin_exempt and domain.alternative.admin):
            self.taken = taken | bit
        self.by_claim[claim] = own | bit
        self.results[claim] += 1
        # A ledger may fail while it takes (a derived attribute, K37-DA-10). Another alternative may be tried then, so
        # nothing of this device may stay in the ledgers before it.
        try:
            for ledger in domain.ledgers:
                ledger.take(device, domain)
        except AllocationError:
            self._undo_taking(domain, device, domain.ledgers[: domain.ledgers.index(ledger)])
            raise

    def _undo_taking(self, domain: Domain, device: int, took: Sequence[Ledger]) -> None:
        """Undoes a ``take`` that failed behind these ledgers, so that another alternative can be tried."""
        _, _, self.taken, self.by_claim[domain.claim] = self.grants.pop()
        self.results[domain.claim] -= 1
        for ledger in reversed(took):
            ledger.give_back(device, domain)

    def give_back(self) -> None:
        """Undoes the latest ``take``."""
        domain, device, self.taken, own = self.grants.pop()
        claim = domain.claim
        self.by_claim[claim] = own
        self.results[claim] -= 1
        if domain.ledgers:
            for ledger in reversed(domain.ledgers):
                ledger.give_back(device, domain)


Remaining = dict[int, int]
"""Number of an alternative -> devices it may still use; alternatives that are ruled out are missing."""


class BranchEnd(Enum):
    """How a branch ended."""

    FAILED = "failed"
    LIMIT = "limit exceeded"


class BranchPruner(Protocol):
    """Knowledge about one problem that cuts branches without changing the answer."""

    nogoods: dict[Hashable, BranchEnd]
    """How the places of the search ended that have failed, by their ``key``."""

    def may_prune(self, stage: int) -> bool:
        """Looking ahead is allowed: no fatal error can be met at the stage itself."""

    def start(self) -> Remaining | None:
        """What remains before the first choice; None when there is no solution."""

    def propagate(
        self, remaining: Remaining | None, state: BranchState, stage: int, domain: Domain, missing: int, behind: int
    ) -> Remaining | None:
        """What remains after a choice; None when there is no solution behind it."""

    def interchangeable_with(self, state: BranchState, device: int) -> int:
        """The devices that fail when this one fails, which has just been given back."""

    def key(self, state: BranchState, stage: int, domain: Domain, missing: int, rest: int) -> Hashable:
        """Equal for two places in the search only if what follows is equal."""


MakePruner = Callable[[NodeProblem], BranchPruner]


class Frame:
    """One decision."""

    stage: int
    outcome: BranchEnd = BranchEnd.FAILED
    """How the frame ends when it has no more options."""
    key: Hashable = None
    """What the future of the frame depends on, if a pruner keeps nogoods."""

    @abstractmethod
    def advance(self, state: BranchState) -> bool | None:
        """Takes the next option; None if it failed at once, False if there is none left."""

    @abstractmethod
    def retract(self, state: BranchState, end: BranchEnd) -> None:
        """Gives the current option back, after what followed it ended like this."""

    @abstractmethod
    def follow(self, state: BranchState, pruner: BranchPruner | None) -> Frame | None:
        """The frame behind the current option, None behind the last request."""


def enter(state: BranchState, pruner: BranchPruner | None, stage: int, remaining: Remaining | None) -> Frame | None:
    """The first frame from a stage on; None when all stages are done."""
    stages = state.problem.domains
    if stage == len(stages):
        return None
    domains = stages[stage]
    # A request without a choice needs no frame for it. It gets one all the same where it exceeds the limit, since that
    # frame ends with ``LIMIT``; and where it wants nothing, so that a row of such requests does not recurse.
    if len(domains) == 1:
        only = domains[0]
        if only.need and state.results[only.claim] + only.need <= MOST_RESULTS:
            return _serve(state, pruner, stage, only, remaining)
    return AlternativesFrame(state, stage, remaining)


def _serve(
    state: BranchState, pruner: BranchPruner | None, stage: int, domain: Domain, remaining: Remaining | None
) -> Frame | None:
    # In Kubernetes 1.32 a request for all devices succeeds where there is none (section 7): it is passed over like a
    # request for none.
    if domain.alternative.everything and not domain.is_void:
        return AllDevicesFrame(stage, domain, remaining)
    if domain.need:
        # Ordered frames know no pruner: an order counts only until the search starts again with one.
        if state.order is not None and stage >= state.ordered_from:
            return OrderedFrame(state, state.order, stage, domain, domain.need, domain.usable)
        return DeviceFrame(state, pruner, stage, domain, domain.need, -1, remaining)
    return enter(state, pruner, stage + 1, remaining)


class AlternativesFrame(Frame):
    """Which alternative serves the request, if there is a choice; limited when all of them exceed the limit."""

    def __init__(self, state: BranchState, stage: int, remaining: Remaining | None) -> None:
        self.stage = stage
        self.index = -1
        self._limited = True
        self._remaining = remaining
        self._before = len(state.grants)
        self._fault: AllocationError | None = None

    def abandon(self, state: BranchState, error: AllocationError) -> AllocationError | None:
        """Give up the current alternative, in which the error was met. Return the first such error if none is left."""
        # The reference's order meets the first error first, so that is the one to report.
        self._fault = self._fault or error
        # The frames behind this one are dropped, not retracted: what they took is given back here.
        while len(state.grants) > self._before:
            state.give_back()
        return None if self.index + 1 < len(state.problem.domains[self.stage]) else self._fault

    def advance(self, state: BranchState) -> bool | None:
        domains = state.problem.domains[self.stage]
        while self.index + 1 < len(domains):
            self.index += 1
            domain = domains[self.index]
            if not domain.need or state.results[domain.claim] + domain.need <= MOST_RESULTS:
                return True
        # An alternative ended with an error and no other serves the request: that is an error, and no mere refusal.
        if self._fault is not None:
            raise self._fault
        # If all alternatives exceed the limit, another device for the request before changes nothing: it is abandoned
        # as well (section 5).
        self.outcome = BranchEnd.LIMIT if self._limited else BranchEnd.FAILED
        return False

    def retract(self, state: BranchState, end: BranchEnd) -> None:
        self._limited &= end is BranchEnd.LIMIT

    def follow(self, state: BranchState, pruner: BranchPruner | None) -> Frame | None:
        domain = state.problem.domains[self.stage][self.index]
        return _serve(state, pruner, self.stage, domain, self._remaining)


class DeviceFrame(Frame):
    """One device of a request, from those behind the previous one."""

    device: int = -1
    """The current option."""

    def __init__(
        self,
        state: BranchState,
        pruner: BranchPruner | None,
        stage: int,
        domain: Domain,
        missing: int,
        behind: int,
        remaining: Remaining | None,
    ) -> None:
        self.stage = stage
        self._domain = domain
        self._missing = missing
        self._remaining = self._after = remaining
        self._pruner = pruner
        # Only devices behind the previous one of the request: combinations, not permutations (section 5).
        free = -1 << behind + 1
        if state.grants:
            free &= ~state.blocked(domain)
        rest = domain.usable & free
        # Ledgers are asked once, for all candidates. Whenever this frame goes on, what was taken behind it has been
        # given back, so their answer stays.
        for ledger in domain.ledgers:
            rest = ledger.admit(rest, domain)
        # What looking ahead ruled out need not be tried, unless an error may be met here: then the reference would try
        # it.
        if remaining is not None and pruner is not None and pruner.may_prune(stage):
            rest &= remaining.get(domain.number, 0)
        # A device on which a selector raises is a candidate whatever the ledgers say: selectors are asked before
        # capacity, counters and constraints (section 6).
        self._raised = domain.raised & free
        self._rest = rest | self._raised
        if pruner is not None:
            self.key = pruner.key(state, stage, domain, missing, self._rest)

    def advance(self, state: BranchState) -> bool | None:
        rest = self._rest
        if not rest:
            return False
        # Devices are numbered in the order of section 3, so the lowest bit is the next candidate.
        lowest = rest & -rest
        self._rest = rest ^ lowest
        device = self.device = lowest.bit_length() - 1
        # Not before the search arrives here: an error behind the first solution is never met (section 6).
        if lowest & self._raised:
            raise state.problem.error_at(self._domain, device)
        state.take(self._domain, device)
        if self._pruner is not None and self._pruner.may_prune(self.stage):
            # The rest of the request may only come from devices behind this one.
            missing = self._missing - 1
            behind = self._domain.usable & -1 << self.device + 1
            self._after = self._pruner.propagate(self._remaining, state, self.stage, self._domain, missing, behind)
            if self._after is None:
                self.retract(state, BranchEnd.FAILED)
                return None
        return True

    def retract(self, state: BranchState, end: BranchEnd) -> None:
        state.give_back()
        # Results are counted, whichever devices they are: no other device of this request helps (section 5).
        if end is BranchEnd.LIMIT:
            self.outcome = BranchEnd.LIMIT
            self._rest = 0
        # Devices that are alike fail alike. Asked after this one was given back: what is still taken may tell them
        # apart.
        elif self._pruner is not None:
            self._rest &= ~self._pruner.interchangeable_with(state, self.device)

    def follow(self, state: BranchState, pruner: BranchPruner | None) -> Frame | None:
        if self._missing > 1:
            return DeviceFrame(state, pruner, self.stage, self._domain, self._missing - 1, self.device, self._after)
        return enter(state, pruner, self.stage + 1, self._after)


class OrderedFrame(Frame):
    """One device of a request, by an order of devices, from those that the frames before it have not tried."""

    def __init__(
        self, state: BranchState, order: DeviceOrder, stage: int, domain: Domain, missing: int, untried: int
    ) -> None:
        self.stage = stage
        self._order = order
        self._domain = domain
        self._missing = missing
        self._untried = untried
        # An order knows no "behind": what earlier frames of the request have tried is left out instead, so that each
        # combination is tried once here as well.
        devices = untried & ~state.blocked(domain)
        for ledger in domain.ledgers:
            devices = ledger.admit(devices, domain)
        tried, steps = order.tried(state.problem, state.grants, domain, devices, missing)
        state.ordering_steps += steps
        self._rest: Iterator[int] = iter(tried)

    def advance(self, state: BranchState) -> bool | None:
        device = next(self._rest, -1)
        if device < 0:
            return False
        self._untried &= ~(1 << device)
        state.take(self._domain, device)
        return True

    def retract(self, state: BranchState, end: BranchEnd) -> None:
        state.give_back()
        if end is BranchEnd.LIMIT:
            self.outcome = BranchEnd.LIMIT
            self._rest = iter(())

    def follow(self, state: BranchState, pruner: BranchPruner | None) -> Frame | None:
        if self._missing > 1:
            return OrderedFrame(state, self._order, self.stage, self._domain, self._missing - 1, self._untried)
        return enter(state, pruner, self.stage + 1, None)


class AllDevicesFrame(Frame):
    """All collected devices of a request, in order, without alternatives."""

    def __init__(self, stage: int, domain: Domain, remaining: Remaining | None) -> None:
        self.stage = stage
        self._domain = domain
        self._done = False
        self._remaining = remaining

    def advance(self, state: BranchState) -> bool | None:
        # There is one way to take all devices (section 5).
        if self._done or not self._domain.collected:
            return False
        self._done = True
        # One after the other: what one draws from counters or capacity may keep the next one from being taken.
        for count, device in enumerate(each(self._domain.collected)):
            if not self._admit(state, device):
                for _ in range(count):
                    state.give_back()
                return False
            state.take(self._domain, device)
        return True

    def _admit(self, state: BranchState, device: int) -> bool:
        """Raises ClaimError when the first ledger to refuse the device has to accept all of them."""
        domain, bit = self._domain, 1 << device
        # Before any constraint is asked: a device that is in use or that a filter refuses fails the request, one that
        # violates a constraint ends the attempt (section 7).
        if not domain.usable & bit & ~state.blocked(domain):
            return False
        refusing = next((ledger for ledger in domain.ledgers if not ledger.admit(bit, domain)), None)
        if refusing is not None and refusing.ends_attempt:
            claim = state.problem.program.claims[domain.claim].key
            raise ClaimError.of_node(
                f"claim {claim}, request {domain.alternative.request}: cannot add device "
                f"{state.problem.view.id(device)} because a claim constraint would not be satisfied: all must have "
                f"{refusing}; ask for a number of devices, or narrow the selectors"
            )
        return refusing is None

    def retract(self, state: BranchState, end: BranchEnd) -> None:
        for _ in each(self._domain.collected):
            state.give_back()
        # There is nothing else to try, so this frame ends as what followed it.
        self.outcome = end

    def follow(self, state: BranchState, pruner: BranchPruner | None) -> Frame | None:
        return enter(state, pruner, self.stage + 1, self._remaining)


FAILURES_BEFORE_PRUNING: Final = 12
PRUNED_STEP_FACTOR: Final = 25
"""A step with a pruner takes about so many times longer than one without."""


class Search:
    """A search that can be interrupted: ``run`` until it has an answer or has done so many steps."""

    def __init__(self, problem: NodeProblem, make_pruner: MakePruner, order: DeviceOrder | None) -> None:
        self.problem = problem
        self.steps = 0
        self._make_pruner = make_pruner
        self._pruner: BranchPruner | None = None
        self.solved: bool | None = None
        self._failures = 0
        # A request that cannot be served even alone needs no search: nothing before it can end with an error.
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
            # Most searches end within a few steps, and a pruner looks at the whole problem before it is of any use: so
            # it comes late.
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
        if self.problem.program.has_choices:
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
        # The ledgers belong to the problem and are used again: they must be as they were at the beginning.
        while self.state.grants:
            self.state.give_back()
        self._pruner = self._make_pruner(self.problem)
        # An error may be met at the very first request: nothing may be concluded before it.
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
        # The budget stands for time, so a step that takes longer counts for more.
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
                # In a state that has failed before, the search fails again.
                if pruner is None or following.key is None or (known := pruner.nogoods.get(following.key)) is None:
                    stack.append(following)
                else:
                    frame.retract(state, self._crossing(frame, following, known))
            elif advanced is False:
                self._pop(stack, state)
                if not stack or (self._failures > FAILURES_BEFORE_PRUNING and pruner is None):
                    return

    def _abandon_alternative(self, error: AllocationError) -> None:
        """Go on with the next alternative of the nearest request that has one. Raises the error if none has."""
        # A fault of the claims is met on each node, and ends the attempt for all (section 15).
        if not (self.problem.node.errors_stay and error.is_of_node):
            raise error
        # It counts as a failure, so that a search which meets error after error gets a pruner like others.
        self._failures += 1
        while self._stack:
            frame = self._stack[-1]
            if isinstance(frame, AlternativesFrame):
                last = frame.abandon(self.state, error)
                if last is None:
                    return
                # No alternative of this request is left: its first error passes on to the request before (section 15).
                error = last
            self._stack.pop()
        raise error

    def _pop(self, stack: list[Frame], state: BranchState) -> None:
        frame = stack.pop()
        self._failures += 1
        # Only frames that ran out of options come here. One that an error ended must not be remembered: the error would
        # not be met again.
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
