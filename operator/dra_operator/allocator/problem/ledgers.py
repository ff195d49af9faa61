"""The ledgers of one problem, made when a request first needs them."""

from __future__ import annotations

from dra_operator.allocator.request.claim_program import Comparison

from .constraints import Constraint, Distinct, Match
from .counters import Counters
from .domain import Domain
from .node_state import NodeState
from .shares import Shares


class Ledgers:
    """Ledgers start from the state of the node. Requests under the same ledger get the same object."""

    def __init__(self, node: NodeState) -> None:
        self.node = node
        self._shares: Shares | None = None
        self._counters: dict[int, Counters] = {}
        self._constraints: dict[tuple[int, int], Constraint] = {}

    @property
    def shares(self) -> Shares:
        """The shares of all devices."""
        if self._shares is None:
            self._shares = Shares(self.node.shareable, self.node.left)
        return self._shares

    def counters(self, devices: int) -> list[Counters]:
        """The counters of the pools that have any of the devices."""
        return [self._counter(place) for place in self.node.places(devices)]

    def constraints(self, domain: Domain) -> list[Constraint]:
        """The constraints of its claim that a domain falls under."""
        return [self._constraint(domain.claim, one) for one in domain.alternative.constraints]

    def _counter(self, place: int) -> Counters:
        known = self._counters.get(place)
        if known is None:
            known = self._counters[place] = self.node.counters(place).copy()
        return known

    def _constraint(self, claim: int, comparison: Comparison) -> Constraint:
        known = self._constraints.get((claim, comparison.position))
        if known is None:
            column = self.node.column(comparison)
            made = Distinct(column) if comparison.distinct else Match(column)
            known = self._constraints[claim, comparison.position] = made
        return known
