"""The devices of the current branch of a search, and the two seams of a search: an order of devices, and a pruner.

An order says which devices of a request are tried first; the room ``ordering`` has those that can be chosen. The search
tries all of them in the end, in any order: what can be allocated stays the same, and so do the chosen alternatives. For
this

- the order counts from the last request with alternatives on: the devices of earlier requests decide which alternative
  is possible;
- it does not count where a selector may fail on a device: whether the search reaches that device would depend on it;
- a search that fails often starts again with a pruner, and in the reference's order.

``BranchPruner`` is all that a search knows of one; the room ``pruning`` implements it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from dra_ledger.errors import AllocationError

from dra_operator.allocator.problem.domain import Domain
from dra_operator.allocator.problem.ledger import Ledger
from dra_operator.allocator.problem.problem import Problem

Grant = tuple[Domain, int, int, int]
"""One device given to one alternative; and what was taken before, in all and by the claim, to be restored."""


class Tried(NamedTuple):
    """The devices, each once, in the order in which they are tried, and what it cost to find that out."""

    devices: Sequence[int]
    steps: int = 0


class DeviceOrder(Protocol):
    """Which devices are tried first."""

    def tried(self, problem: Problem, grants: Sequence[Grant], domain: Domain, devices: int, missing: int) -> Tried:
        """Puts the devices in order. The request lacks so many, the next one included; ``grants`` were made before."""


def ordered_from(problem: Problem) -> int:
    """The first stage at which an order may count; behind the last one if it may not count at all."""
    domains = problem.domains
    if not all(domain.cannot_raise for stage in problem.reached for domain in stage):
        return len(domains)
    prioritized = (number for number in reversed(range(len(domains))) if len(domains[number]) > 1)
    return next(prioritized, 0)


class BranchState:
    """What the current branch has taken."""

    ordered_from = 0
    """The stage from which on ``order`` counts."""
    ordering_steps = 0
    """What an order of devices has cost since the search last looked."""

    def __init__(self, problem: Problem, order: DeviceOrder | None = None) -> None:
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
        self._exclusive = ~problem.node.shareable

    def blocked(self, domain: Domain) -> int:
        """Devices in use by this call: of any ordinary request, and of any request of the same claim."""
        own = self.by_claim[domain.claim]
        return own if domain.alternative.admin else own | self.taken

    def take(self, domain: Domain, device: int) -> None:
        """Gives a device to a domain."""
        own = self.by_claim[domain.claim]
        self.grants.append((domain, device, self.taken, own))
        bit = 1 << device & self._exclusive
        if not self.problem.node.exempt(domain):
            self.taken |= bit
        self.by_claim[domain.claim] = own | bit
        self.results[domain.claim] += 1
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
        self.by_claim[domain.claim] = own
        for ledger in reversed(domain.ledgers):
            ledger.give_back(device, domain)
        self.results[domain.claim] -= 1


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


MakePruner = Callable[[Problem], BranchPruner]
