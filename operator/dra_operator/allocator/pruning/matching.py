"""Matchings of requests and devices: whether limited supplies meet all needs, and which devices can be in a matching.

``feasible`` is a bound by the largest flow. Needs are requests for so many devices; a supply is a set of devices of
which only so many can be used together (a plain device: one; partitions of one counter: as many as it can hold). Every
solution is a flow, so when the largest flow misses a need, there is no solution. The converse does not hold: this is a
bound, not an answer.

``assignable`` is the textbook filter (Régin) for requests that each need devices of their own: which of them can be in
an assignment that serves all requests? Find one assignment, a matching of requests and devices. A device that stays
free in it can be given to any request that accepts it. A device that was assigned can be given to another request only
if its owner finds another one. That is possible along a chain of owners that ends at a free device, or around a circle
of owners: a strongly connected component of the graph "accepts a device of". A device that no such change leads to is
in no assignment.

Request r0 accepts {d0}, r1 {d0, d1}, r2 {d1, d2, d3}. The assignment r0-d0, r1-d1, r2-d2 leaves d3 free. r1 cannot have
d0: its owner r0 accepts no other. r2 cannot have d1: its owner r1 would need d0. So r1 keeps {d1}, r2 {d2, d3}.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dra_ledger.basics import each


class LimitedSupply(NamedTuple):
    """At most ``limit`` of these devices."""

    devices: int
    limit: int


class Need(NamedTuple):
    """``number`` different ones of these devices."""

    devices: int
    number: int


def feasible(needs: Sequence[Need], supplies: Sequence[LimitedSupply]) -> bool:
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


def assignable(accepted: Sequence[int]) -> list[int] | None:
    """For each of some requests for one device those that it can get; None when not all can be served at once."""
    mates = _assign(accepted)
    if mates is None:
        return None
    taken = wanted = 0
    for devices, mate in zip(accepted, mates, strict=True):
        wanted |= devices
        taken |= mate
    movable = wanted & ~taken
    """Free devices, and those whose owners find a free one along a chain."""
    fixed = list(range(len(accepted)))
    while True:
        moving = [number for number in fixed if accepted[number] & movable]
        if not moving:
            break
        fixed = [number for number in fixed if not accepted[number] & movable]
        for number in moving:
            movable |= mates[number]
    found = [devices & movable for devices in accepted]
    for members in _circles(accepted, mates, fixed):
        theirs = 0
        for number in members:
            theirs |= mates[number]
        for number in members:
            found[number] = accepted[number] & theirs
    return found


def _assign(accepted: Sequence[int]) -> list[int] | None:
    """A device for each request, those with the fewest first; others are moved where that helps."""
    mates = [0] * len(accepted)
    owners: dict[int, int] = {}
    taken = 0
    for number in sorted(range(len(accepted)), key=lambda number: accepted[number].bit_count()):
        free = accepted[number] & ~taken
        if free:
            device = free & -free
            mates[number], owners[device] = device, number
        else:
            device = _move(number, accepted, mates, owners, taken)
            if not device:
                return None
        taken |= device
    return mates


def _move(number: int, accepted: Sequence[int], mates: list[int], owners: dict[int, int], taken: int) -> int:
    """Serves a request by moving owners along the shortest chain to a free device, which is returned; 0 if none."""
    came_from: dict[int, int] = {}
    seen = 0
    queue = [number]
    for asking in queue:
        new = accepted[asking] & ~seen
        seen |= new
        if free := new & ~taken:
            device = last = free & -free
            while True:
                mates[asking], device = device, mates[asking]
                owners[mates[asking]] = asking
                if asking == number:
                    return last
                asking = came_from[asking]
        for position in each(new):
            owner = owners[1 << position]
            if owner not in came_from and owner != number:
                came_from[owner] = asking
                queue.append(owner)
    return 0


def _circles(accepted: Sequence[int], mates: Sequence[int], numbers: Sequence[int]) -> Iterator[list[int]]:
    """The strongly connected components of some requests (Tarjan); they accept no devices but those of one another."""
    owners = {mates[number]: number for number in numbers}
    index: dict[int, int] = {}
    lowest: dict[int, int] = {}
    path: list[int] = []
    inside = 0
    """The devices of the requests on the path."""
    for start in numbers:
        if start in index:
            continue
        calls: list[tuple[int, int]] = [(start, accepted[start])]
        while calls:
            number, rest = calls.pop()
            if number not in index:
                index[number] = lowest[number] = len(index)
                path.append(number)
                inside |= mates[number]
            while rest:
                device = rest & -rest
                rest ^= device
                owner = owners[device]
                if owner not in index:
                    calls += [(number, rest | device), (owner, accepted[owner])]
                    break
                if device & inside:
                    lowest[number] = min(lowest[number], lowest[owner])
            else:
                if lowest[number] == index[number]:
                    members = path[path.index(number) :]
                    del path[-len(members) :]
                    for member in members:
                        inside &= ~mates[member]
                    yield members
