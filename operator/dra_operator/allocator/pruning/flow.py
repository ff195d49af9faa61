"""A matching bound: whether limited supplies can meet all demands at once.

Demands are requests that need so many devices; a supply is a set of devices of which only so many can be
used together (a plain device: one; partitions of one counter: as many as it can hold). Every solution is a
flow, so when the largest flow misses a demand, there is no solution. The converse does not hold: this is a
bound, not an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Supply(NamedTuple):
    """At most ``limit`` of these devices."""

    devices: int
    limit: int


class Demand(NamedTuple):
    """``need`` different ones of these devices."""

    devices: int
    need: int


def feasible(demands: Sequence[Demand], supplies: Sequence[Supply]) -> bool:
    """False when the demands certainly cannot all be met."""
    reach = [
        [min(supply.limit, (demand.devices & supply.devices).bit_count()) for supply in supplies] for demand in demands
    ]
    totals = [sum(row) for row in reach]
    if any(total < demand.need for total, demand in zip(totals, demands, strict=True)):
        return False
    needed = 0
    order = sorted(range(len(demands)), key=totals.__getitem__)
    for index in order:
        needed += demands[index].need
        if needed > totals[index]:
            break
    else:
        return True  # even in the worst order, each demand finds enough
    return _largest_flow(reach, [demand.need for demand in demands], [supply.limit for supply in supplies])


def _largest_flow(reach: list[list[int]], needs: list[int], limits: list[int]) -> bool:
    """Augmenting paths from each missing unit of a demand to a supply with room."""
    used: list[dict[int, int]] = [{} for _ in needs]
    users: list[set[int]] = [set() for _ in limits]
    room = list(limits)
    for demand, need in enumerate(needs):
        for _ in range(need):
            if not _augment(demand, reach, used, users, room):
                return False
    return True


def _augment(
    start: int, reach: list[list[int]], used: list[dict[int, int]], users: list[set[int]], room: list[int]
) -> bool:
    """Finds one more unit for a demand, moving units of others where that helps (breadth first)."""
    came_from: dict[int, tuple[int, int | None]] = {}
    queue: list[tuple[int, int | None]] = [(start, None)]
    for demand, via in queue:
        for supply, most in enumerate(reach[demand]):
            if supply in came_from or used[demand].get(supply, 0) >= most:
                continue
            came_from[supply] = (demand, via)
            if room[supply]:
                _shift(supply, came_from, used, users)
                room[supply] -= 1
                return True
            queue.extend((other, supply) for other in users[supply])
    return False


def _shift(
    supply: int, came_from: dict[int, tuple[int, int | None]], used: list[dict[int, int]], users: list[set[int]]
) -> None:
    target: int | None = supply
    while target is not None:
        demand, previous = came_from[target]
        used[demand][target] = used[demand].get(target, 0) + 1
        users[target].add(demand)
        if previous is not None:
            used[demand][previous] -= 1
            if not used[demand][previous]:
                users[previous].discard(demand)
        target = previous
