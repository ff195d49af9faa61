"""The device first that has least to spare, so that large remainders stay whole.

Of devices that are shared, the fullest on which the share fits. Of partitions, those whose counters are spent most. Of
other devices, the smallest by its capacities. Equal ones follow each other as in the reference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from dra_ledger.basics import each

from dra_operator.allocator.problem.domain import Domain
from dra_operator.allocator.problem.ledger import ConsumableCapacity
from dra_operator.allocator.problem.problem import Problem
from dra_operator.allocator.search.order import Grant, Tried

WHOLE_MILLIONTHS: Final = 1_000_000
"""All of a capacity or counter."""


class BestFit:
    """The order ``best-fit``."""

    def tried(self, problem: Problem, grants: Sequence[Grant], domain: Domain, devices: int, missing: int) -> Tried:
        """The fullest first."""
        consumable = next((it for ledger in domain.ledgers if (it := ledger.consumable_capacity) is not None), None)
        spent = _counters_left(domain)
        keys = {}
        for device in each(devices):
            if device in domain.amounts:
                keys[device] = _left(problem, consumable, device)
            else:
                keys[device] = spent.get(device, 0), tuple(_size(problem, device))
        return Tried(sorted(keys, key=lambda device: (keys[device], device)), len(keys) // 16)


def _left(problem: Problem, consumable: ConsumableCapacity | None, device: int) -> tuple[int, tuple[int, ...]]:
    """What is left of a shared device, each capacity as a part of the whole."""
    left: Mapping[str, int] = consumable.left(device) if consumable is not None else problem.node.left(device)
    capacity = problem.view.devices[device].capacity or {}
    return sum(left[name] * WHOLE_MILLIONTHS // (capacity[name].value.nanos or 1) for name in capacity), ()


def _counters_left(domain: Domain) -> dict[int, int]:
    """What is left of the counters from which a device draws, and of those that are bound up with them."""
    found: dict[int, int] = {}
    for ledger in domain.ledgers:
        counters = ledger.shared_counters
        if counters is None:
            continue
        for block in counters.blocks:
            left = sum(counters.left[number] for number in block.counters)
            for device in each((block.devices << counters.offset) & domain.usable):
                found[device] = left
    return found


def _size(problem: Problem, device: int) -> list[int]:
    capacity = problem.view.devices[device].capacity or {}
    return [capacity[name].value.nanos for name in sorted(capacity)]
