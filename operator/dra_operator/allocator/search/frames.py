"""The decisions of a search, one frame each (allocator.md sections 5 and 6).

A frame takes its next option (``advance``), gives it back when the rest failed (``retract``), and is popped when it has
no more. The second and later devices of one request come from those after the previous one, so each combination is
tried once.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from dra_api.resource import MOST_RESULTS
from dra_ledger.basics import each
from dra_ledger.errors import AllocationError, ClaimError

from dra_operator.allocator.problem.domain import Domain

from .state import BranchEnd, BranchPruner, BranchState, DeviceOrder, Remaining


class Frame:
    """One decision."""

    stage: int
    outcome: BranchEnd = BranchEnd.FAILED
    """How the frame ends when it has no more options."""
    key: Hashable = None
    """What the future of the frame depends on, if a pruner keeps nogoods."""

    def advance(self, state: BranchState) -> bool | None:
        """Takes the next option; None if it failed at once, False if there is none left."""
        raise NotImplementedError

    def retract(self, state: BranchState, end: BranchEnd) -> None:
        """Gives the current option back, after what followed it ended like this."""
        raise NotImplementedError

    def follow(self, state: BranchState, pruner: BranchPruner | None) -> Frame | None:
        """The frame behind the current option, None behind the last request."""
        raise NotImplementedError


def enter(state: BranchState, pruner: BranchPruner | None, stage: int, remaining: Remaining | None) -> Frame | None:
    """The first frame from a stage on; None when all stages are done."""
    stages = state.problem.domains
    if stage == len(stages):
        return None
    only = stages[stage][0] if len(stages[stage]) == 1 else None
    if only is None or not only.need or _exceeds_limit(state, only):
        return AlternativesFrame(state, stage, remaining)
    return _serve(state, pruner, stage, only, remaining)


def _serve(
    state: BranchState, pruner: BranchPruner | None, stage: int, domain: Domain, remaining: Remaining | None
) -> Frame | None:
    if domain.alternative.everything and not domain.is_void:
        return AllDevicesFrame(stage, domain, remaining)
    if domain.need:
        if state.order is not None and stage >= state.ordered_from:
            return OrderedFrame(state, state.order, stage, domain, domain.need, domain.usable)
        return DeviceFrame(state, pruner, stage, domain, domain.need, -1, remaining)
    return enter(state, pruner, stage + 1, remaining)


def _exceeds_limit(state: BranchState, domain: Domain) -> bool:
    return domain.need > 0 and state.results[domain.claim] + domain.need > MOST_RESULTS


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
        self._fault = self._fault or error
        while len(state.grants) > self._before:
            state.give_back()
        return None if self.index + 1 < len(state.problem.domains[self.stage]) else self._fault

    def advance(self, state: BranchState) -> bool | None:
        domains = state.problem.domains[self.stage]
        while self.index + 1 < len(domains):
            self.index += 1
            if not _exceeds_limit(state, domains[self.index]):
                return True
        if self._fault is not None:
            raise self._fault
        self.outcome = BranchEnd.LIMIT if self._limited else BranchEnd.FAILED
        return False

    def retract(self, state: BranchState, end: BranchEnd) -> None:
        self._limited &= end is BranchEnd.LIMIT

    def follow(self, state: BranchState, pruner: BranchPruner | None) -> Frame | None:
        domain = state.problem.domains[self.stage][self.index]
        return _serve(state, pruner, self.stage, domain, self._remaining)


class DeviceFrame(Frame):
    """One device of a request, from those behind the previous one."""

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
        free = ~state.blocked(domain) & -1 << behind + 1
        rest = domain.usable & free
        for ledger in domain.ledgers:
            rest = ledger.admit(rest, domain)
        if remaining is not None and pruner is not None and pruner.may_prune(stage):
            rest &= remaining.get(domain.number, 0)
        self._raised = domain.raised & free
        self._rest = rest | self._raised
        self.device = -1
        if self._pruner is not None:
            self.key = self._pruner.key(state, stage, domain, missing, self._rest)

    def advance(self, state: BranchState) -> bool | None:
        if not self._rest:
            return False
        lowest = self._rest & -self._rest
        self._rest ^= lowest
        self.device = lowest.bit_length() - 1
        if lowest & self._raised:
            raise state.problem.error_at(self._domain, self.device)
        state.take(self._domain, self.device)
        if self._pruner is not None and self._pruner.may_prune(self.stage):
            missing = self._missing - 1
            behind = self._domain.usable & -1 << self.device + 1
            self._after = self._pruner.propagate(self._remaining, state, self.stage, self._domain, missing, behind)
            if self._after is None:
                self.retract(state, BranchEnd.FAILED)
                return None
        return True

    def retract(self, state: BranchState, end: BranchEnd) -> None:
        state.give_back()
        if end is BranchEnd.LIMIT:
            self.outcome = BranchEnd.LIMIT
            self._rest = 0
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

    def _admit(self, state: BranchState, device: int) -> bool:
        """Raises ClaimError when the first ledger to refuse the device has to accept all of them."""
        domain, bit = self._domain, 1 << device
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
        self.outcome = end

    def follow(self, state: BranchState, pruner: BranchPruner | None) -> Frame | None:
        return enter(state, pruner, self.stage + 1, self._remaining)
