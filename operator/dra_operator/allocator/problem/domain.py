"""Which devices of a node one alternative of a request may take: the result of the filters."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from dra_ledger.errors import AllocationError
from dra_ledger.pools import Quantities

from dra_operator.allocator.claim_program import Alternative

from .ledger import Ledger

NO_AMOUNTS: Final[Mapping[int, Quantities]] = MappingProxyType({})


Wanted = tuple[Hashable, Callable[[], Ledger]]
"""The key of a ledger, and what makes one: the domains of a problem that want equal keys share it."""


class Domain:
    """One alternative on one node."""

    __slots__ = (
        "alternative",
        "amounts",
        "claim",
        "collected",
        "fault",
        "ledgers",
        "need",
        "number",
        "raised",
        "usable",
        "wanted",
    )

    def __init__(self, alternative: Alternative, claim: int, number: int, like: Domain | None = None) -> None:
        """Make a domain that nothing passes, or one with what filters left to another one.

        A problem with ledgers makes all its domains anew, so that no field is set twice.
        """
        self.alternative = alternative
        self.claim = claim
        self.number = number
        """Position among all domains of the problem."""
        self.usable: int = 0 if like is None else like.usable
        """Devices that pass all filters."""
        self.raised: int = 0 if like is None else like.raised
        """Devices on which a selector raised, or of which a fatal amount would be consumed: the end of a search that
        reaches one."""
        self.collected: int = 0 if like is None else like.collected
        """Mode All: the devices that must all be taken."""
        self.fault: AllocationError | None = None if like is None else like.fault
        """Mode All: why it is not known which devices the node has for it; then it has none."""
        self.need: int = 0 if like is None else like.need
        self.amounts: Mapping[int, Quantities] = NO_AMOUNTS if like is None else like.amounts
        """What a share consumes of each device that allows multiple allocations, usable or not. Domains with equal
        requests share the object."""
        self.wanted: tuple[Wanted, ...] = () if like is None else like.wanted
        """The ledgers that devices of the domain fall under, in the order in which they are asked."""
        self.ledgers: tuple[Ledger, ...] = ()
        """Those ledgers, in a problem."""

    def in_problem(self, ledgers: dict[Hashable, Ledger]) -> Domain:
        """The same domain for one problem, which has made these ledgers so far."""
        own = Domain(self.alternative, self.claim, self.number, self)
        if self.wanted:
            for key, make in self.wanted:
                if key not in ledgers:
                    ledgers[key] = make()
            own.ledgers = tuple([ledgers[key] for key, _ in self.wanted])
        return own

    @property
    def name(self) -> str:
        """The request in results and messages."""
        return self.alternative.request

    @property
    def comparing(self) -> list[Ledger]:
        """Those of its ledgers that compare attributes."""
        return [one for one in self.ledgers if one.agrees_on or one.differs_in]

    @property
    def is_void(self) -> bool:
        """Mode All: there is no device, and in Kubernetes 1.32 that will do."""
        return not (self.alternative.least or self.collected or self.fault) and self.alternative.everything

    @property
    def short(self) -> bool:
        """Whether the domain alone has too few devices."""
        if self.alternative.everything:
            return not (self.collected or self.is_void) or bool(self.collected & ~self.usable)
        return self.usable.bit_count() < self.need

    @property
    def cannot_raise(self) -> bool:
        """Searching the domain cannot meet a fatal error.

        A domain that needs no device looks at none. A request for all devices takes them in order: if the first is
        unavailable, no constraint is checked.
        """
        if self.need:  # loops, since each problem asks each domain, and most have no ledger
            if self.raised:
                return False
            for ledger in self.ledgers:
                if ledger.may_fail(self):
                    return False
        if self.collected & -self.collected & self.usable:
            for ledger in self.ledgers:
                if ledger.ends_attempt:
                    return False
        return True


class Filtered(NamedTuple):
    """What the filters leave to a program on a node."""

    domains: list[tuple[Domain, ...]]
    """By stage, an entry for each alternative."""
    dead: int
    """The first stage that cannot be served even alone; the number of stages if there is none."""
    wants_ledgers: bool
    """Some domain falls under a ledger."""
    is_faulty: bool
    """Of some domain it is not known which devices the node has for it (``Domain.fault``)."""

    @property
    def number_of_domains(self) -> int:
        """The alternatives of all stages."""
        return sum(map(len, self.domains))
