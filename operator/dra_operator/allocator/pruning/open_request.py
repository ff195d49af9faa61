"""What a search may still use for the remaining requests."""

from __future__ import annotations

from typing import NamedTuple

from dra_operator.allocator.problem.domain import Domain
from dra_operator.allocator.problem.ledger import Ledger
from dra_operator.allocator.search.pruner import Remaining


class OpenRequest(NamedTuple):
    """One remaining request: any of its alternatives must find its need."""

    alternatives: tuple[tuple[Domain, int], ...]
    bound: frozenset[Ledger]
    """Ledgers comparing attributes that at least one device falls under, whichever alternative is used."""
    touching: frozenset[Ledger]
    """Ledgers comparing attributes of any alternative."""
    admin: bool
    """Some alternative has admin access, which requests of other claims do not limit."""

    @classmethod
    def of(cls, *alternatives: tuple[Domain, int]) -> OpenRequest:
        """A request with these alternatives and needs."""
        scopes = [frozenset(domain.comparing if need else ()) for domain, need in alternatives]
        admin = any(domain.alternative.admin for domain, _ in alternatives)
        return cls(alternatives, scopes[0].intersection(*scopes), frozenset().union(*scopes), admin)

    @property
    def claim(self) -> int:
        """The claim of the request."""
        return self.alternatives[0][0].claim

    def ruled_in(self, remaining: Remaining) -> list[tuple[Domain, int]]:
        """The alternatives that are still possible."""
        return [(domain, need) for domain, need in self.alternatives if domain.number in remaining]

    def need(self, remaining: Remaining) -> int:
        """The least that the request takes."""
        return min(need for _, need in self.ruled_in(remaining))

    def devices(self, remaining: Remaining) -> int:
        """All devices that the request may still use."""
        devices = 0
        for domain, _ in self.alternatives:
            devices |= remaining.get(domain.number, 0)
        return devices

    def keep(self, devices: int, remaining: Remaining) -> bool:
        """Restricts the request to these devices; False if no alternative finds enough of them."""
        for domain, need in self.ruled_in(remaining):
            kept = remaining[domain.number] & devices
            if kept.bit_count() < need:
                del remaining[domain.number]
            else:
                remaining[domain.number] = kept
        return self.alive(remaining)

    def alive(self, remaining: Remaining) -> bool:
        """Some alternative finds enough devices."""
        for domain, need in self.alternatives:
            devices = remaining.get(domain.number)
            if devices is not None and (
                bool(devices) if domain.alternative.everything else devices.bit_count() >= need
            ):
                return True
        return False
