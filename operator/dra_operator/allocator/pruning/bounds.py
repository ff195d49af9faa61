"""Bounds over all remaining requests: necessary conditions that are cheap to check.

Here: a flow from requests to devices and partitions, one from requests to the values of ``distinctAttribute``, and the
bound for several ``matchAttribute`` constraints over one attribute. The requests of one such constraint are a group:
all of its devices come from one value. Several groups may share a value as long as it has enough devices for all of
them. Whether there are values for all groups is a flow again. ``aggregate_bounds`` has the bounds for counters and
capacities.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dra_ledger.basics import each
from dra_ledger.columns import Column

from dra_operator.allocator.problem.ledgers import Ledger
from dra_operator.allocator.problem.problem import NodeProblem
from dra_operator.allocator.pruning.aggregate_bounds import AggregateBounds, CounterBounds
from dra_operator.allocator.pruning.matching import LimitedSupply, Need, assignable, feasible
from dra_operator.allocator.pruning.open_request import OpenRequest, Sharing
from dra_operator.allocator.pruning.symmetry import split
from dra_operator.allocator.search.frames import Remaining


def match_groups_suffice(remaining: Remaining, opened: Sequence[OpenRequest], several: int) -> bool:
    """False only when the groups of some attribute certainly cannot all find a value."""
    return all(
        len(groups) < 2 or _find_values(column, groups, remaining)
        for column, groups in _by_column(remaining, opened, several).items()
    )


def _by_column(
    remaining: Remaining, opened: Sequence[OpenRequest], several: int
) -> dict[Column, list[list[OpenRequest]]]:
    """The groups of each attribute; no request is in two of them, and no device can serve two requests."""
    members: dict[tuple[Ledger, Column], list[OpenRequest]] = {}
    for request in opened:
        if not request.admin and not request.devices(remaining) & several:
            for ledger in request.bound:
                if ledger.agrees_on is not None:
                    members.setdefault((ledger, ledger.agrees_on), []).append(request)
    groups: dict[Column, list[list[OpenRequest]]] = {}
    for (_, column), group in members.items():
        others = groups.setdefault(column, [])
        if not any(request is other for other_group in others for other in other_group for request in group):
            others.append(group)
    return groups


def _find_values(column: Column, groups: Sequence[Sequence[OpenRequest]], remaining: Remaining) -> bool:
    having = list(column.having.values())
    needs = [sum(request.need(remaining) for request in group) for group in groups]
    values = [_values(having, group, remaining) for group in groups]
    together = 0
    for group in groups:
        for request in group:
            together |= request.devices(remaining)
    supplies = []
    for position, devices in enumerate(having):
        fitting = sorted(need for need, possible in zip(needs, values, strict=True) if possible >> position & 1)
        supplies.append(LimitedSupply(1 << position, _fit(fitting, (devices & together).bit_count())))
    return feasible([Need(possible, 1) for possible in values], supplies)


def _values(having: Sequence[int], group: Sequence[OpenRequest], remaining: Remaining) -> int:
    """The positions of the values with enough devices for each request of a group."""
    return sum(
        1 << position
        for position, devices in enumerate(having)
        if all(
            any(
                (remaining[domain.number] & devices).bit_count() >= need for domain, need in request.ruled_in(remaining)
            )
            for request in group
        )
    )


def _fit(needs: Sequence[int], room: int) -> int:
    """How many of the needs, smallest first, find room together."""
    for count, need in enumerate(needs):
        room -= need
        if room < 0:
            return count
    return len(needs)


class Bounds:
    """Each method is False only when the remaining requests certainly cannot all be served.

    The checks also remove devices that are in no solution.
    """

    def __init__(self, problem: NodeProblem) -> None:
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
        supplies = [LimitedSupply(1 << device, len(self._problem.domains)) for device in each(together & shareable)]
        return feasible(needs, supplies + [LimitedSupply(part, part.bit_count()) for part in parts])

    def _supplies(self, together: int, wanted: set[int], numbers: set[int]) -> list[LimitedSupply]:
        """What the devices can supply; plain devices that the same requests want count together.

        A ledger limits nothing when some of the alternatives take devices without it.
        """
        unlimited = not numbers.isdisjoint(self._sharing.outside)
        supplies = [
            LimitedSupply(1 << device, len(self._problem.domains) if unlimited else self._sharing.most(device))
            for device in each(together & self.several)
        ]
        single = together & ~self.several
        for counter_bound in self._counter_bounds:
            if not numbers.isdisjoint(counter_bound.outside):
                continue
            for devices, limit in counter_bound.bottlenecks(single):
                supplies.append(LimitedSupply(devices, limit))
                single &= ~devices
        supplies.extend(LimitedSupply(devices, devices.bit_count()) for devices in split([single], wanted))
        return supplies

    def values_suffice(self, ledger: Ledger, column: Column, remaining: Remaining, opened: list[OpenRequest]) -> bool:
        """Each device of the requests in scope needs a value of its own."""
        having = list(column.having.values())
        scope = [request for request in opened if ledger in request.bound]
        wanted = ((_positions(having, request.devices(remaining)), request.need(remaining)) for request in scope)
        return feasible(_needs(wanted, 0), [LimitedSupply(1 << position, 1) for position in range(len(having))])


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
