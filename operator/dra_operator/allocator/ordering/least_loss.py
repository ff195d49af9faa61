"""The device first whose loss destroys least of what the mix may still ask of the node (``supply``).

What a class of the mix loses is a part of all requests of the class that the node could still serve: to take the last
placement of a class costs more than to take one of many. The parts are added up by the weights of the classes. Of
devices that cost the same, the one on the unit with least idle is first.

Partitions of one device are in each other's way, and what large ones gain small ones lose. There what a class loses
counts by how scarce the class becomes, however often it is asked for, so that no class pays for the others
(``depleted``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from dra_ledger.basics import each

from dra_operator.allocator.problem.domain import Domain
from dra_operator.allocator.problem.problem import Problem
from dra_operator.allocator.search.order import Grant, Tried

from .supply import Kinds, Supply, Taken, supply_of
from .totals import Totals, wasted

COMPARED_DEVICES: Final = 512
"""Devices that are compared; those behind them are tried in the order of the reference."""
STEPS_PER_DEVICE: Final = 1
"""What it costs to compare one, in steps of a search."""
ALL_BILLIONTHS: Final = 1_000_000_000
"""All requests of a class that a node could serve."""


Loss = Callable[[Supply, Totals, Totals], int]
"""What it costs that a unit of a node changes: of the node, and of the unit before and after."""


class LeastLoss:
    """The order ``least-loss``. ``kinds`` is asked for each time: the mix changes as pods come."""

    def __init__(self, kinds: Callable[[], Kinds], loss: Loss | None = None) -> None:
        self._kinds, self._loss, self._of_partitions = kinds, loss or destroyed, loss or depleted

    def tried(self, problem: Problem, grants: Sequence[Grant], domain: Domain, devices: int, missing: int) -> Tried:
        """By what is in vain afterwards; equal ones where least is idle."""
        kinds = self._kinds()
        mix = kinds.mix
        listed = list(each(devices))
        if not mix.classes or len(listed) < 2:
            return Tried(listed)
        supply = supply_of(problem.node, kinds)
        before = [taken_by(*grant[:2]) for grant in grants]
        begun = {supply.unit(it[0]) for it in before}
        loss: dict[int, tuple[int, int]] = {}
        alike: dict[object, tuple[int, int]] = {}
        for device in listed[:COMPARED_DEVICES]:
            unit = supply.unit(device)
            its = [it for it in before if supply.unit(it[0]) == unit] if unit in begun else []
            key = device if its else supply.state(device)
            known = alike.get(key)
            if known is None:
                now, then = supply.of_unit(device, its), supply.of_unit(device, [*its, taken_by(domain, device)])
                loss_of = self._of_partitions if supply.is_partition(device) else self._loss
                known = alike[key] = loss_of(supply, now, then), then.idle
            loss[device] = known
        compared = sorted(loss, key=lambda device: (loss[device], device))
        return Tried(compared + listed[COMPARED_DEVICES:], len(compared) * STEPS_PER_DEVICE)


def destroyed(supply: Supply, now: Totals, then: Totals) -> int:
    """What a unit's change costs the node, in billionths of what the mix may ask of it, times weights. Exact."""
    cost, takes = 0, supply.totals.takes
    for number, it in enumerate(supply.mix.classes):
        cost += it.weight * (now.takes[number] - then.takes[number]) * ALL_BILLIONTHS // (takes[number] or 1)
    return cost


def depleted(supply: Supply, now: Totals, then: Totals) -> int:
    """What a change of partitions costs the node: by how much each class gets scarcer (``Supply``). Exact."""
    pairs = enumerate(zip(now.takes, then.takes, strict=True))
    return sum([supply.scarcer(number, before - after) for number, (before, after) in pairs if before != after])


def fragmented(supply: Supply, now: Totals, then: Totals) -> int:
    """By how much the fragmentation of the study "Beware of Fragmentation" grows."""
    return wasted(supply.mix, then, lost=1, unused=0) - wasted(supply.mix, now, lost=1, unused=0)


def taken_by(domain: Domain, device: int) -> Taken:
    """What a request takes of a device."""
    amounts = domain.amounts.get(device)
    return device, None if amounts is None else {name: it.nanos for name, it in amounts.items()}
