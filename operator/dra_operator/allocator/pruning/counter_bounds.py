"""What devices can still use of shared counters, for bounds.

Counters that no device uses together are independent: each GPU of a pool, cut into partitions, is a block of its own.
Between two calls a search changes one or two blocks, so results are kept per block, by what is left of its counters and
which of its devices are asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from dra_ledger.counters import Block, CounterKind

from dra_operator.allocator.problem.ledger import Ledger, SharedCounters
from dra_operator.allocator.problem.problem import Problem

from .subset_sum import largest_sum

Found = TypeVar("Found")
Limit = tuple[int, int]
"""Devices, and how many of them can be taken together at most."""


class CounterBounds:
    """Bounds for shared counters in their current state."""

    def __init__(self, problem: Problem, ledger: Ledger, counters: SharedCounters) -> None:
        self._counters = counters
        reach = 0
        for _, devices in counters.groups:
            reach |= devices
        self.outside = problem.outside(ledger, reach)
        """Alternatives that may take devices of the counters without drawing on them."""
        self._rooms: dict[object, dict[CounterKind, int]] = {}
        self._limits: dict[object, list[Limit]] = {}

    def rooms(self, devices: int) -> Iterator[dict[CounterKind, int]]:
        """What these devices can use of what is left, per block: summed over its sets for each kind of counter."""
        return self._remembered(self._rooms, devices, self._room)

    def bottlenecks(self, devices: int) -> Iterator[Limit]:
        """The devices in parts, with how many of each part can be taken together at most.

        Devices that consume the same count for the counter of which they take the largest part.
        """
        offset = self._counters.offset
        for limits in self._remembered(self._limits, devices, self._limit):
            for members, most in limits:
                yield members << offset, most

    def _remembered(
        self, known: dict[object, Found], devices: int, work_out: Callable[[Block, int], Found]
    ) -> Iterator[Found]:
        devices = (devices & ~self._counters.already_charged) >> self._counters.offset
        left = self._counters.left
        for block in self._counters.blocks:
            mine = devices & block.devices
            if mine:
                key = mine, *(left[number] for number in block.counters)
                if key not in known:
                    known[key] = work_out(block, mine)
                yield known[key]

    def _room(self, block: Block, devices: int) -> dict[CounterKind, int]:
        sizes: dict[int, set[int]] = {}
        for charges, group in block.groups:
            if devices & group:
                for number, amount in charges:
                    sizes.setdefault(number, set()).add(amount)
        room: dict[CounterKind, int] = {}
        for number, amounts in sizes.items():
            usable = largest_sum(self._counters.left[number], frozenset(amounts))
            for kind in self._counters.kinds[number]:
                room[kind] = room.get(kind, 0) + usable
        return room

    def _limit(self, block: Block, devices: int) -> list[Limit]:
        left = self._counters.left
        members: dict[int, int] = {}
        amounts: dict[int, list[tuple[int, int]]] = {}
        for charges, group in block.groups:
            if devices & group:
                number, amount = max(charges, key=lambda charge: charge[1] / max(1, left[charge[0]]))
                if amount > 0:
                    members[number] = members.get(number, 0) | devices & group
                    amounts.setdefault(number, []).append((amount, (devices & group).bit_count()))
        return [(members[number], _most(left[number], amounts[number])) for number in members]


def _most(room: int, amounts: list[tuple[int, int]]) -> int:
    """How many fit into the room when the smallest go first; ``amounts`` says how many there are of each size."""
    most = 0
    for amount, count in sorted(amounts):
        fitting = min(count, max(0, room) // amount)
        most += fitting
        room -= fitting * amount
        if fitting < count:
            break
    return most
