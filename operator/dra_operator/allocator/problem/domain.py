"""Which devices of a node one alternative of a request may take: the result of the filters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

from dra_operator.allocator.published.pool_view import Quantities
from dra_operator.allocator.request.claim_program import Alternative

from .ledger import Ledger

NO_AMOUNTS: Final[Mapping[int, Quantities]] = MappingProxyType({})


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
    amounts: Mapping[int, Quantities] = field(default_factory=lambda: NO_AMOUNTS)
    """What a share consumes of each device that allows multiple allocations, usable or not. Domains with equal requests
    share the object."""
    ledgers: tuple[Ledger, ...] = ()
    """The ledgers of devices that the domain takes, in the order in which they are asked."""
    comparing: tuple[Ledger, ...] = ()
    """Those of the ledgers that compare attributes."""

    def copy(self) -> Domain:
        """The same devices, without ledgers."""
        return Domain(
            self.alternative,
            self.claim,
            self.number,
            self.usable,
            self.raised,
            self.collected,
            self.need,
            self.amounts,
        )

    @property
    def short(self) -> bool:
        """Whether the domain alone has too few devices."""
        if self.alternative.everything:
            return not self.collected or bool(self.collected & ~self.usable)
        return self.usable.bit_count() < self.need

    @property
    def cannot_raise(self) -> bool:
        """Searching the domain cannot meet a fatal error.

        A domain that needs no device looks at none. A request for all devices takes them in order: if the first is
        unavailable, no constraint is checked.
        """
        first = self.collected & -self.collected
        if self.need and self.raised:
            return False
        return not first & self.usable or not any(ledger.ends_attempt for ledger in self.ledgers)


class Filtered(NamedTuple):
    """What the filters leave to a program on a node."""

    domains: list[tuple[Domain, ...]]
    """By stage, an entry for each alternative."""
    dead: int
    """The first stage that cannot be served even alone; the number of stages if there is none."""
