"""Requests that each need devices of their own: which of them can be in an assignment that serves all requests?

The textbook filter (Régin): find one assignment, a matching of requests and devices. A device that stays free in it can
be given to any request that accepts it. A device that was assigned can be given to another request only if its owner
finds another one: along a chain of owners that ends at a free device, or around a circle of owners, that is, within a
strongly connected component of the graph "accepts a device of". What no such change leads to is in no assignment.

Request r0 accepts {d0}, r1 {d0, d1}, r2 {d1, d2, d3}. The assignment r0-d0, r1-d1, r2-d2 leaves d3 free. r1 cannot have
d0: its owner r0 accepts no other. r2 cannot have d1: its owner r1 would need d0. So r1 keeps {d1}, r2 {d2, d3}.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dra_ledger.basics import each


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
