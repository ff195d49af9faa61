"""Bounds over everything ahead: necessary conditions that are cheap to check.

A flow from requests to devices and partitions, one from requests to the values of ``distinctAttribute``,
and the least sum that each kind of counter must yield.
"""

from __future__ import annotations

from collections.abc import Sequence

from .ahead import Ahead, Open
from .bits import each
from .constraints import Distinct
from .flow import Demand, Supply, feasible
from .ledgers import Counters
from .problem import Problem
from .symmetry import split


class Bounds:
    """Each method is False only when the requests ahead certainly cannot all be served."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._least_amounts: dict[int, dict[str, int]] = {}

    def suffice(self, ahead: Ahead, opened: list[Open]) -> bool:
        """All bounds hold."""
        if not self.devices_suffice(ahead, opened) or not self.counters_suffice(ahead, opened):
            return False
        distinct = {
            constraint for request in opened for constraint in request.bound if isinstance(constraint, Distinct)
        }
        return all(self.values_suffice(constraint, ahead, opened) for constraint in distinct)

    def devices_suffice(self, ahead: Ahead, opened: list[Open]) -> bool:
        """The matching bound over ordinary requests."""
        demands = []
        together = 0
        for request in opened:
            if not request.admin:
                devices = request.devices(ahead)
                need = request.need(ahead)
                if need:
                    demands.append(Demand(devices, need))
                    together |= devices
        if not together & self._problem.view.consuming and _roomy(demands):
            return True
        return feasible(demands, self._supplies(together, {demand.devices for demand in demands}))

    def _supplies(self, together: int, wanted: set[int]) -> list[Supply]:
        """What the devices can yield; plain devices that the same requests want count together."""
        shareable = self._problem.view.shareable if self._problem.sharing else 0
        supplies = [Supply(1 << device, self._shares(device)) for device in each(together & shareable)]
        single = together & ~shareable
        for counters in self._problem.counters:
            for devices, limit in counters.bottlenecks(single):
                supplies.append(Supply(devices, limit))
                single &= ~devices
        supplies.extend(Supply(devices, devices.bit_count()) for devices in split([single], wanted))
        return supplies

    def _shares(self, device: int) -> int:
        """At most so many further shares of a device."""
        least = self._least_amounts.get(device)
        if least is None:
            least = self._least_amounts[device] = self._least_share(device)
        left = self._problem.shares.left.get(device, {})
        return min(
            (left[name] // amount for name, amount in least.items() if amount > 0), default=len(self._problem.domains)
        )

    def _least_share(self, device: int) -> dict[str, int]:
        """The least that any request would consume of each capacity."""
        least: dict[str, int] = {}
        for domains in self._problem.domains:
            for domain in domains:
                for name, amount in domain.amounts.get(device, {}).items():
                    least[name] = min(amount.nanos, least.get(name, amount.nanos))
        return least

    def counters_suffice(self, ahead: Ahead, opened: list[Open]) -> bool:
        """Summed over all sets, no kind of counter may be asked for more than is left of it."""
        tables: list[Counters] = self._problem.counters
        if not tables:
            return True
        left: dict[str, int] = {}
        for table in tables:
            for kind, amount in table.left_by_kind().items():
                left[kind] = left.get(kind, 0) + amount
        for request in opened:
            if request.admin:
                continue
            for kind, amount in self._least(request, ahead).items():
                left[kind] -= amount
        return all(amount >= 0 for amount in left.values())

    def _least(self, request: Open, ahead: Ahead) -> dict[str, int]:
        """The least that a request takes of each kind of counter, whatever it chooses."""
        least: dict[str, int] | None = None
        for domain, need in request.alternatives:
            devices = ahead.get(domain.number)
            if devices is None:
                continue
            if devices & (self._problem.view.shareable | ~self._problem.view.consuming):
                return {}
            found: dict[str, int] | None = None
            for table in self._problem.counters:
                for costs, group in table.costs_by_kind():
                    if devices & group:
                        found = dict(costs) if found is None else _smaller(found, costs)
            scaled = {kind: need * amount for kind, amount in (found or {}).items()}
            least = scaled if least is None else _smaller(least, scaled)
        return least or {}

    def values_suffice(self, constraint: Distinct, ahead: Ahead, opened: list[Open]) -> bool:
        """Each device of the requests in scope needs a value of its own."""
        demands = []
        for request in opened:
            if constraint in request.bound:
                devices = request.devices(ahead)
                need = request.need(ahead)
                values = 0
                for position, having in enumerate(constraint.column.having.values()):
                    if having & devices:
                        values |= 1 << position
                demands.append(Demand(values, need))
        if not demands:
            return True
        return feasible(demands, [Supply(1 << position, 1) for position in range(len(constraint.column.having))])


def _smaller(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {kind: min(amount, other[kind]) for kind, amount in one.items() if kind in other}


def _roomy(demands: Sequence[Demand]) -> bool:
    """Each demand finds enough devices whatever those that want any of the same take."""
    if sum(demand.need for demand in demands) <= min((d.devices.bit_count() for d in demands), default=0):
        return True
    return all(
        sum(other.need for other in demands if other.devices & demand.devices) <= demand.devices.bit_count()
        for demand in demands
    )
