"""How many shares of a device can still be given, and which devices several requests may get at all.

A device that allows multiple allocations is not always shared: if the first share takes so much of some capacity that
no second one fits, the device counts like one that only one request can have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from dra_ledger.basics import each

from dra_operator.allocator.problem.ledger import ConsumableCapacity, Consumption, Ledger, consumptions
from dra_operator.allocator.problem.problem import Problem


class CapacityLedger(NamedTuple):
    """A ledger of consumable capacity, with what its requests consume."""

    ledger: Ledger
    capacity: ConsumableCapacity
    consumptions: list[Consumption]


def capacity_ledgers(problem: Problem) -> list[CapacityLedger]:
    """The ledgers of consumable capacity."""
    return [
        CapacityLedger(ledger, ledger.consumable_capacity, consumptions(domains))
        for ledger, domains in problem.ledgers.items()
        if ledger.consumable_capacity is not None
    ]


class Sharing:
    """Upper bounds for the shares of one problem."""

    def __init__(self, problem: Problem) -> None:
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
