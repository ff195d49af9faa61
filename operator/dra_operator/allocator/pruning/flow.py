"""A matching bound: whether limited supplies can meet all needs at once.

Needs are requests for so many devices; a supply is a set of devices of which only so many can be
used together (a plain device: one; partitions of one counter: as many as it can hold). Every solution is a
flow, so when the largest flow misses a need, there is no solution. The converse does not hold: this is a
bound, not an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Supply(NamedTuple):
    """At most ``limit`` of these devices."""

    devices: int
    limit: int


class Need(NamedTuple):
    """``number`` different ones of these devices."""

    devices: int
    number: int


def feasible(needs: Sequence[Need], supplies: Sequence[Supply]) -> bool:
    """False when the needs certainly cannot all be met."""
    reach = [[min(supply.limit, (need.devices & supply.devices).bit_count()) for supply in supplies] for need in needs]
    totals = [sum(row) for row in reach]
    if any(total < need.number for total, need in zip(totals, needs, strict=True)):
        return False
    needed = 0
    order = sorted(range(len(needs)), key=totals.__getitem__)
    for index in order:
        needed += needs[index].number
        if needed > totals[index]:
            break
    else:
        return True  # even in the worst order, each need finds enough
    return _largest_flow(reach, [need.number for need in needs], [supply.limit for supply in supplies])


def _largest_flow(reach: list[list[int]], counts: list[int], limits: list[int]) -> bool:
    """Augmenting paths from each missing unit of a need to a supply with room."""
    used: list[dict[int, int]] = [{} for _ in counts]
    users: list[set[int]] = [set() for _ in limits]
    room = list(limits)
    for need, count in enumerate(counts):
        for _ in range(count):
            if not _augment(need, reach, used, users, room):
                return False
    return True


def _augment(
    start: int, reach: list[list[int]], used: list[dict[int, int]], users: list[set[int]], room: list[int]
) -> bool:
    """Finds one more unit for a need, moving units of others where that helps (breadth first)."""
    came_from: dict[int, tuple[int, int | None]] = {}
    queue: list[tuple[int, int | None]] = [(start, None)]
    for need, via in queue:
        for supply, most in enumerate(reach[need]):
            if supply in came_from or used[need].get(supply, 0) >= most:
                continue
            came_from[supply] = (need, via)
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
        need, previous = came_from[target]
        used[need][target] = used[need].get(target, 0) + 1
        users[target].add(need)
        if previous is not None:
            used[need][previous] -= 1
            if not used[need][previous]:
                users[previous].discard(need)
        target = previous
