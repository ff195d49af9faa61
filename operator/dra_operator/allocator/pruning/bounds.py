"""Bounds over all remaining requests: necessary conditions that are cheap to check.

Here: a flow from requests to devices and partitions, and one from requests to the values of ``distinctAttribute``.
``match_group_bound`` has the bound for several ``matchAttribute`` constraints, ``aggregate_bounds`` those for counters
and capacities.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dra_ledger.basics import each
from dra_ledger.columns import Column

from dra_operator.allocator.problem.ledger import Ledger
from dra_operator.allocator.problem.problem import Problem
from dra_operator.allocator.search.pruner import Remaining

from .aggregate_bounds import AggregateBounds
from .all_different import assignable
from .counter_bounds import CounterBounds
from .device_symmetry import split
from .flow import Need, Supply, feasible
from .match_group_bound import match_groups_suffice
from .open_request import OpenRequest
from .sharing import Sharing


class Bounds:
    """Each method is False only when the remaining requests certainly cannot all be served.

    The checks also remove devices that are in no solution.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._sharing = Sharing(problem)
        self.several = self._sharing.several
        """Devices that several requests may get."""
        self._counter_bounds = [
            CounterBounds(problem, ledger, ledger.shared_counters)
            for ledger in problem.ledgers
            if ledger.shared_counters is not None
        ]
        self._aggregates = AggregateBounds(problem, self._counter_bounds, self.several)

    def suffice(self, remaining: Remaining, opened: list[OpenRequest]) -> bool:
        """All bounds hold; sums are the quickest to look at."""
        if not self._aggregates.counters_suffice(remaining, opened) or not self._aggregates.capacity_suffices(
            remaining, opened
        ):
            return False
        if not self.devices_suffice(remaining, opened) or not match_groups_suffice(remaining, opened, self.several):
            return False
        distinct = {
            ledger: ledger.differs_in for request in opened for ledger in request.bound if ledger.differs_in is not None
        }
        return all(self.values_suffice(ledger, column, remaining, opened) for ledger, column in distinct.items())

    def devices_suffice(self, remaining: Remaining, opened: list[OpenRequest]) -> bool:
        """The matching bound over ordinary requests, and over all requests of each claim that has others.

        Other claims may have what admin access takes, but no other request of its own claim may.
        """
        if not self._devices_suffice(remaining, [request for request in opened if not request.admin]):
            return False
        return all(
            self._devices_suffice(remaining, [request for request in opened if request.claim == claim])
            for claim in {request.claim for request in opened if request.admin}
        )

    def _devices_suffice(self, remaining: Remaining, requests: Sequence[OpenRequest]) -> bool:
        needs = _needs(((request.devices(remaining), request.need(remaining)) for request in requests), self.several)
        together = 0
        for need in needs:
            together |= need.devices
        if not together & self._problem.view.consuming and _roomy(needs):
            return True
        if not together & (self._problem.view.consuming | self.several):
            return _give_own_devices(remaining, requests)
        numbers = {domain.number for request in requests for domain, _ in request.ruled_in(remaining)}
        return feasible(needs, self._supplies(together, {need.devices for need in needs}, numbers))

    def one_is_left(self, devices: int, remaining: Remaining, opened: list[OpenRequest]) -> bool:
        """Whether the requests may leave one of these devices unused."""
        shareable = self._problem.node.shareable
        if devices & shareable:
            return True
        wanted = [(request.devices(remaining), request.need(remaining)) for request in opened if not request.admin]
        needs = _needs([*wanted, (devices, 1)], shareable)
        together = 0
        for need in needs:
            together |= need.devices
        parts = split([together & ~shareable], {need.devices for need in needs})
        supplies = [Supply(1 << device, len(self._problem.domains)) for device in each(together & shareable)]
        return feasible(needs, supplies + [Supply(part, part.bit_count()) for part in parts])

    def _supplies(self, together: int, wanted: set[int], numbers: set[int]) -> list[Supply]:
        """What the devices can supply; plain devices that the same requests want count together.

        A ledger limits nothing when some of the alternatives take devices without it.
        """
        unlimited = not numbers.isdisjoint(self._sharing.outside)
        supplies = [
            Supply(1 << device, len(self._problem.domains) if unlimited else self._sharing.most(device))
            for device in each(together & self.several)
        ]
        single = together & ~self.several
        for counter_bound in self._counter_bounds:
            if not numbers.isdisjoint(counter_bound.outside):
                continue
            for devices, limit in counter_bound.bottlenecks(single):
                supplies.append(Supply(devices, limit))
                single &= ~devices
        supplies.extend(Supply(devices, devices.bit_count()) for devices in split([single], wanted))
        return supplies

    def values_suffice(self, ledger: Ledger, column: Column, remaining: Remaining, opened: list[OpenRequest]) -> bool:
        """Each device of the requests in scope needs a value of its own."""
        having = list(column.having.values())
        scope = [request for request in opened if ledger in request.bound]
        wanted = ((_positions(having, request.devices(remaining)), request.need(remaining)) for request in scope)
        return feasible(_needs(wanted, 0), [Supply(1 << position, 1) for position in range(len(having))])


def _give_own_devices(remaining: Remaining, requests: Sequence[OpenRequest]) -> bool:
    """Keeps the devices that are in some assignment of different devices to all requests; False if there is none."""
    accepted: list[int] = []
    for request in requests:
        accepted += [request.devices(remaining)] * request.need(remaining)
    found = assignable(accepted)
    if found is None:
        return False
    position = 0
    for request in requests:
        need = request.need(remaining)
        if need and found[position] != accepted[position] and not request.keep(found[position], remaining):
            return False
        position += need
    return True


def _positions(sets: Iterable[int], devices: int) -> int:
    """Which of the sets have any of the devices, as a bit set."""
    return sum(1 << position for position, members in enumerate(sets) if members & devices)


def _needs(wanted: Iterable[tuple[int, int]], several: int) -> list[Need]:
    """What is wanted of the same devices is one need, unless two requests may get the same device."""
    apart: list[Need] = []
    together: dict[int, int] = {}
    for devices, count in wanted:
        if devices & several:
            apart.append(Need(devices, count))
        elif count:
            together[devices] = together.get(devices, 0) + count
    return apart + [Need(devices, count) for devices, count in together.items()]


def _roomy(needs: Sequence[Need]) -> bool:
    """Whether each need finds enough devices, whatever the competing needs take."""
    if sum(need.number for need in needs) <= min((need.devices.bit_count() for need in needs), default=0):
        return True
    return all(
        sum(other.number for other in needs if other.devices & need.devices) <= need.devices.bit_count()
        for need in needs
    )
