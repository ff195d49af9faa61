"""Bounds by addition: what all remaining requests take at least, against what is left of counters and capacities.

What is left counts only if the devices that may still be taken can use it: of 10Gi, shares of 4Gi use 8Gi.
Requests that could be served without drawing on a counter or capacity take nothing of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from dra_ledger.basics import each
from dra_ledger.counters import CounterKind

from dra_operator.allocator.problem.ledger import ConsumableCapacity, SharedCounters
from dra_operator.allocator.problem.problem import Problem
from dra_operator.allocator.search.pruner import Remaining

from .counter_bounds import CounterBounds
from .open_request import OpenRequest
from .sharing import CapacityLedger, capacity_ledgers
from .subset_sum import largest_sum

Name = TypeVar("Name")


class AggregateBounds:
    """Each method is False only when the remaining requests certainly cannot all be served."""

    def __init__(self, problem: Problem, counter_bounds: Sequence[CounterBounds], several: int) -> None:
        self._problem = problem
        self._counter_bounds = counter_bounds
        self._several = several
        self._shares = [(one.capacity, _shares(problem, one)) for one in capacity_ledgers(problem)]
        self._drawing = _drawing(problem)
        self._least_charges: dict[tuple[int, Drawing], Mapping[CounterKind, int]] = {}

    def counters_suffice(self, remaining: Remaining, opened: list[OpenRequest]) -> bool:
        """Summed over all sets, no kind of counter may be asked for more than can be had of it."""
        if not self._counter_bounds:
            return True
        ordinary = [request for request in opened if not request.admin]
        together = 0
        for request in ordinary:
            together |= request.devices(remaining)
        room = _total(room for counter_bound in self._counter_bounds for room in counter_bound.rooms(together))
        alike = Counter(
            tuple(
                (need, remaining[domain.number], self._drawing[domain.number])
                for domain, need in request.ruled_in(remaining)
            )
            for request in ordinary
        )
        wanted = _total(
            _times(count, _least(_times(need, self._charges(devices, costs)) for need, devices, costs in alternatives))
            for alternatives, count in alike.items()
        )
        return all(amount <= room.get(kind, 0) for kind, amount in wanted.items())

    def capacity_suffices(self, remaining: Remaining, opened: list[OpenRequest]) -> bool:
        """Summed over all devices that can be shared, no capacity may be asked for more than can be had of it."""
        ordinary = [request for request in opened if not request.admin] if self._shares else []
        return all(self._suffices(capacity, shares, remaining, ordinary) for capacity, shares in self._shares)

    def _suffices(
        self,
        capacity: ConsumableCapacity,
        shares: Sequence[Share],
        remaining: Remaining,
        ordinary: Sequence[OpenRequest],
    ) -> bool:
        wanted = _total(
            _least(_times(need, shares[domain.number].least) for domain, need in request.ruled_in(remaining))
            for request in ordinary
        )
        if not any(wanted.values()):
            return True
        room: dict[str, int] = {}
        for device, sizes in _sizes(shares, ordinary, remaining).items():
            left = capacity.left(device)
            for name, amounts in sizes.items():
                room[name] = room.get(name, 0) + largest_sum(left[name], frozenset(amounts))
        return all(amount <= room.get(name, 0) for name, amount in wanted.items())

    def _charges(self, devices: int, drawing: Drawing) -> Mapping[CounterKind, int]:
        """The least that any of the devices takes of each kind of counter."""
        key = devices, drawing
        known = self._least_charges.get(key)
        if known is None:
            free = devices & (self._several | drawing.free)
            known = {} if free else _least(costs for costs, group in drawing.costs if devices & group)
            self._least_charges[key] = known
        return known


def _sizes(
    shares: Sequence[Share], requests: Iterable[OpenRequest], remaining: Remaining
) -> dict[int, dict[str, set[int]]]:
    """For each device that can be shared, and each of its capacities, the shares that may be taken of it."""
    devices: dict[Share, int] = {}
    for request in requests:
        for domain, _ in request.ruled_in(remaining):
            share = shares[domain.number]
            devices[share] = devices.get(share, 0) | remaining[domain.number]
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


def _shares(problem: Problem, limited: CapacityLedger) -> list[Share]:
    """The share of every domain, by its number."""
    in_nanos = {
        id(amounts): {
            device: {name: amount.nanos for name, amount in amounts[device].items()}
            for device in each(usable)
            if device in amounts
        }
        for amounts, usable in limited.consumptions
    }
    known: dict[tuple[int, int], Share] = {}
    shares: list[Share] = []
    for domains in problem.domains:
        for domain in domains:
            key = (id(domain.amounts), domain.usable) if limited.ledger in domain.ledgers else (0, 0)
            if key not in known:
                amounts = in_nanos.get(key[0], {})
                known[key] = Share(amounts, _least(amounts.get(device, {}) for device in each(key[1])))
            shares.append(known[key])
    return shares


@dataclass(frozen=True, slots=True, eq=False)
class Drawing:
    """What devices cost of the counters that a domain draws on; the same object for domains that draw on the same."""

    costs: list[tuple[Mapping[CounterKind, int], int]]
    """Devices by what they cost of each kind of counter."""
    free: int
    """Devices that cost nothing."""


def _drawing(problem: Problem) -> list[Drawing]:
    """The drawing of every domain, by its number."""
    known: dict[tuple[int, ...], Drawing] = {}
    drawing: list[Drawing] = []
    for domains in problem.domains:
        for domain in domains:
            counting = [ledger for ledger in domain.ledgers if ledger.shared_counters is not None]
            key = tuple(map(id, counting))
            if key not in known:
                known[key] = _make_drawing(
                    [ledger.shared_counters for ledger in counting if ledger.shared_counters is not None]
                )
            drawing.append(known[key])
    return drawing


def _make_drawing(drawn_on: Iterable[SharedCounters]) -> Drawing:
    costs: list[tuple[Mapping[CounterKind, int], int]] = []
    drawing = already_charged = 0
    for counters in drawn_on:
        already_charged |= counters.already_charged
        for more, devices in counters.costs_by_kind:
            both: list[tuple[Mapping[CounterKind, int], int]] = []
            if devices & drawing:  # some draw on other counters as well
                both = [(_total((more, other)), devices & group) for other, group in costs if devices & group]
                costs = [(other, group & ~devices) for other, group in costs]
            costs += [*both, (more, devices & ~drawing)]
            drawing |= devices
    return Drawing(costs, ~drawing | already_charged)


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
