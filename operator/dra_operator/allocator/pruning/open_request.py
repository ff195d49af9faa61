"""What a search may still use for the remaining requests, and how many shares of a device it can still give.

A device that allows multiple allocations is not always shared: if the first share takes so much of some capacity that
no second one fits, the device counts like one that only one request can have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from dra_ledger.basics import each

from dra_operator.allocator.problem.ledgers import ConsumableCapacity, Consumption, Ledger, consumptions
from dra_operator.allocator.problem.node_state import Domain
from dra_operator.allocator.problem.problem import NodeProblem
from dra_operator.allocator.search.frames import Remaining


class CapacityLedger(NamedTuple):
    """A ledger of consumable capacity, with what its requests consume."""

    ledger: Ledger
    capacity: ConsumableCapacity
    consumptions: list[Consumption]


def capacity_ledgers(problem: NodeProblem) -> list[CapacityLedger]:
    """The ledgers of consumable capacity."""
    return [
        CapacityLedger(ledger, ledger.consumable_capacity, consumptions(domains))
        for ledger, domains in problem.ledgers.items()
        if ledger.consumable_capacity is not None
    ]


class Sharing:
    """Upper bounds for the shares of one problem."""

    def __init__(self, problem: NodeProblem) -> None:
        self._problem = problem
        self._capacity_ledgers = capacity_ledgers(problem)
        self._least: dict[int, list[tuple[ConsumableCapacity, Mapping[str, int]]]] = {}
        self.outside = frozenset(
            number for one in self._capacity_ledgers for number in problem.outside(one.ledger, problem.node.shareable)
        )
        """Alternatives that may take devices without consuming anything of them."""
        self.several = sum(1 << device for device in self._find_several())
        """Devices that several requests may get.

        Devices that draw nothing more of shared counters count as well: they are free. If some requests consume
        nothing, all shareable devices count, because those requests get them whatever is left.
        """

    def most(self, device: int) -> int:
        """At most so many further shares of a device."""
        least = self._least.get(device)
        if least is None:
            least = self._least[device] = [(one.capacity, _least_share(one, device)) for one in self._capacity_ledgers]
        most = len(self._problem.domains)
        for capacity, amounts in least:
            left = capacity.left(device)
            most = min([most, *(left[name] // amount for name, amount in amounts.items() if amount > 0)])
        return most

    def _find_several(self) -> Iterator[int]:
        shareable = self._problem.node.shareable
        if self.outside or self._problem.node.admin_exempt:
            return each(shareable)
        already_charged = 0
        for ledger in self._problem.ledgers:
            if ledger.shared_counters is not None:
                already_charged |= ledger.shared_counters.already_charged
        return (device for device in each(shareable) if already_charged >> device & 1 or self.most(device) > 1)


def _least_share(limited: CapacityLedger, device: int) -> dict[str, int]:
    """The least that any request would consume of each capacity."""
    least: dict[str, int] = {}
    for amounts, usable in limited.consumptions:
        if usable >> device & 1:
            for name, amount in amounts.get(device, {}).items():
                least[name] = min(amount.nanos, least.get(name, amount.nanos))
    return least


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
