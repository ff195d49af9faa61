"""Which devices of a node one alternative of a request may take: the result of the filters.

What each filter left is kept for the refusal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dra_operator.allocator.published.pool_view import Amounts
from dra_operator.allocator.refusal import Rule
from dra_operator.allocator.request.plan import Alternative

from .constraints import Constraint
from .ledgers import Ledger


@dataclass(slots=True)
class Domain:
    """One alternative on one node."""

    alternative: Alternative
    claim: int
    number: int
    """Position among all domains of the problem."""
    usable: int = 0
    """Devices that pass all filters."""
    raised: int = 0
    """Devices on which a selector raised: fatal when the search reaches one."""
    collected: int = 0
    """Mode All: the devices that must all be taken."""
    need: int = 0
    amounts: Mapping[int, Amounts] = field(default_factory=dict)
    """What a share consumes of each device that allows multiple allocations, usable or not; the same object for all
    domains that request the same."""
    ledgers: tuple[Ledger, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    stages: list[tuple[Rule, int]] = field(default_factory=list)
    """What was left after each filter, in their order."""

    @property
    def short(self) -> bool:
        """The domain alone has too few devices."""
        if self.alternative.everything:
            return not self.collected or bool(self.collected & ~self.usable)
        return self.usable.bit_count() < self.need

    @property
    def quiet(self) -> bool:
        """Searching the domain cannot meet a fatal error.

        Where no device is needed, none is looked at. All devices are taken in order: when the first of them cannot be
        had, no constraint is looked at.
        """
        first = self.collected & -self.collected
        return not (self.need and self.raised) and not (self.constraints and first & self.usable)

    def narrow(self, rule: Rule, devices: int) -> None:
        """Records what a filter left."""
        self.usable = devices
        self.stages.append((rule, devices))
