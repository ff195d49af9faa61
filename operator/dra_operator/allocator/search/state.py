"""What the current branch of a search has taken, and how it is given back."""

from __future__ import annotations

from collections.abc import Sequence

from dra_ledger.errors import AllocationError

from dra_operator.allocator.problem.domain import Domain
from dra_operator.allocator.problem.ledger import Ledger
from dra_operator.allocator.problem.problem import Problem

from .order import DeviceOrder, Grant, ordered_from


class State:
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
