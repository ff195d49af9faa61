"""Bounds by addition: what everything ahead takes at least, against what is left of counters and capacities.

What is left counts only as far as the devices that may still be taken can use it up: of 10Gi, shares of 4Gi use 8Gi.
Requests that could be served without drawing on a counter or capacity take nothing of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from dra_operator.allocator.basics.bits import each
from dra_operator.allocator.problem.problem import Problem
from dra_operator.allocator.published.counter_table import Kind
from dra_operator.allocator.search.pruner import Remaining

from .ahead import Open
from .headroom import Headroom
from .knapsack import fill
from .sharing import offers

Name = TypeVar("Name")


class Sums:
    """Each method is False only when the requests ahead certainly cannot all be served."""

    def __init__(self, problem: Problem, headrooms: Sequence[Headroom], several: int) -> None:
        self._problem = problem
        self._headrooms = headrooms
        self._several = several
        self._shares = _shares(problem)
        self._least_charges: dict[int, Mapping[Kind, int]] = {}

    def counters_suffice(self, ahead: Remaining, opened: list[Open]) -> bool:
        """Summed over all sets, no kind of counter may be asked for more than can be had of it."""
        if not self._headrooms:
            return True
        ordinary = [request for request in opened if not request.admin]
        together = 0
        for request in ordinary:
            together |= request.devices(ahead)
        room = _total(room for headroom in self._headrooms for room in headroom.rooms(together))
        alike = Counter(
            tuple((need, ahead[domain.number]) for domain, need in request.ruled_in(ahead)) for request in ordinary
        )
        wanted = _total(
            _times(count, _least(_times(need, self._charges(devices)) for need, devices in alternatives))
            for alternatives, count in alike.items()
        )
        return all(amount <= room.get(kind, 0) for kind, amount in wanted.items())

    def capacity_suffices(self, ahead: Remaining, opened: list[Open]) -> bool:
        """Summed over all devices that can be shared, no capacity may be asked for more than can be had of it."""
        if not self._shares:
            return True
        ordinary = [request for request in opened if not request.admin]
        wanted = _total(
            _least(_times(need, self._shares[domain.number].least) for domain, need in request.ruled_in(ahead))
            for request in ordinary
        )
        if not any(wanted.values()):
            return True
        left = self._problem.shares.left
        room = _total(
            {name: fill(left(device)[name], frozenset(amounts)) for name, amounts in sizes.items()}
            for device, sizes in self._sizes(ordinary, ahead).items()
        )
        return all(amount <= room.get(name, 0) for name, amount in wanted.items())

    def _charges(self, devices: int) -> Mapping[Kind, int]:
        """The least that any of the devices takes of each kind of counter."""
        known = self._least_charges.get(devices)
        if known is None:
            groups = (group for table in self._problem.counters for group in table.costs_by_kind)
            free = devices & (self._several | ~self._problem.view.consuming)
            known = {} if free else _least(costs for costs, group in groups if devices & group)
            self._least_charges[devices] = known
        return known

    def _sizes(self, requests: Iterable[Open], ahead: Remaining) -> dict[int, dict[str, set[int]]]:
        """For each device that can be shared, and each of its capacities, the shares that may be taken of it."""
        devices: dict[Share, int] = {}
        for request in requests:
            for domain, _ in request.ruled_in(ahead):
                share = self._shares[domain.number]
                devices[share] = devices.get(share, 0) | ahead[domain.number]
        sizes: dict[int, dict[str, set[int]]] = {}
        for share, wanted in devices.items():
            for device, amounts in share.amounts.items():
                if wanted >> device & 1:
                    for name, amount in amounts.items():
                        sizes.setdefault(device, {}).setdefault(name, set()).add(amount)
        return sizes


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """What a share of each device takes; the same object for all domains for which it is the same."""

    amounts: dict[int, dict[str, int]]
    least: dict[str, int]
    """The least that any usable device gives, whichever is chosen."""


def _shares(problem: Problem) -> dict[int, Share]:
    """The share of every domain, by its number; empty when no device can be shared."""
    in_nanos = {
        id(amounts): {
            device: {name: amount.nanos for name, amount in amounts[device].items()}
            for device in each(usable)
            if device in amounts
        }
        for amounts, usable in offers(problem)
    }
    if not in_nanos:
        return {}
    known: dict[tuple[int, int], Share] = {}
    shares: dict[int, Share] = {}
    for domains in problem.domains:
        for domain in domains:
            key = id(domain.amounts) if domain.amounts else 0, domain.usable
            if key not in known:
                amounts = in_nanos.get(id(domain.amounts), {})
                known[key] = Share(amounts, _least(amounts.get(device, {}) for device in each(domain.usable)))
            shares[domain.number] = known[key]
    return shares


def _least(choices: Iterable[Mapping[Name, int]]) -> dict[Name, int]:
    """What is taken of each name at least, whichever of the choices is made."""
    least: dict[Name, int] | None = None
    for choice in choices:
        if least is None:
            least = dict(choice)
        else:
            least = {name: min(amount, choice[name]) for name, amount in least.items() if name in choice}
    return least or {}


def _times(count: int, amounts: Mapping[Name, int]) -> dict[Name, int]:
    return {name: count * amount for name, amount in amounts.items()}


def _total(parts: Iterable[Mapping[Name, int]]) -> dict[Name, int]:
    total: dict[Name, int] = {}
    for part in parts:
        for name, amount in part.items():
            total[name] = total.get(name, 0) + amount
    return total
