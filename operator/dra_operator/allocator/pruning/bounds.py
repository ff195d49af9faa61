"""Bounds over all remaining requests: necessary conditions that are cheap to check.

Here: a flow from requests to devices and partitions, one from requests to the values of ``distinctAttribute``, and the
bound for several ``matchAttribute`` constraints over one attribute. The requests of one such constraint are a group:
all of its devices come from one value. Several groups may share a value as long as it has enough devices for all of
them. Whether there are values for all groups is a flow again. ``aggregate_bounds`` has the bounds for counters and
capacities.

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

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from dra_ledger.basics import each
from dra_ledger.columns import Column

from dra_operator.allocator.problem.ledgers import Ledger
from dra_operator.allocator.problem.problem import NodeProblem
from dra_operator.allocator.pruning.aggregate_bounds import AggregateBounds, CounterBounds, OpenRequest, Sharing
from dra_operator.allocator.pruning.symmetry import split
from dra_operator.allocator.search import Remaining


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
    # A need that cannot be met even alone needs no flow to show it.
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
            # Seen before, or the need has all that it can use of it: it wants different devices.
            if supply in came_from or used[need].get(supply, 0) >= most:
                continue
            came_from[supply] = (need, via)
            if room[supply]:
                _shift(supply, came_from, used, users)
                room[supply] -= 1
                return True
            # Nothing is left of it, but one who uses it may find another supply instead.
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
    # Backwards along the chains: who can have a movable device may leave its own, which becomes movable.
    while True:
        moving = [number for number in fixed if accepted[number] & movable]
        if not moving:
            break
        fixed = [number for number in fixed if not accepted[number] & movable]
        for number in moving:
            movable |= mates[number]
    found = [devices & movable for devices in accepted]
    # The others can only change devices with each other, within a circle.
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
            # Back along the chain: each takes the device that was found for it, and leaves its own to the one that
            # asked.
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
        # A stack of its own: claims of many requests would exceed Python's limit of recursion.
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
                    # The owner first. Then the same device once more: how low the owner reached counts for this
                    # request.
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


def match_groups_suffice(remaining: Remaining, opened: Sequence[OpenRequest], several: int) -> bool:
    """False only when the groups of some attribute certainly cannot all find a value."""
    return all(
        len(groups) < 2 or _find_values(column, groups, remaining)
        for column, groups in _by_column(remaining, opened, several).items()
    )


def _by_column(
    remaining: Remaining, opened: Sequence[OpenRequest], several: int
) -> dict[Column, list[list[OpenRequest]]]:
    """The groups of each attribute; no request is in two of them, and no device can serve two requests."""
    members: dict[tuple[Ledger, Column], list[OpenRequest]] = {}
    for request in opened:
        # Requests that may get the same device do not compete for it: they prove nothing about values.
        if not request.admin and not request.devices(remaining) & several:
            for ledger in request.bound:
                if ledger.agrees_on is not None:
                    members.setdefault((ledger, ledger.agrees_on), []).append(request)
    groups: dict[Column, list[list[OpenRequest]]] = {}
    for (_, column), group in members.items():
        others = groups.setdefault(column, [])
        # A request under two constraints on one attribute would be counted in two groups, which its devices serve
        # together.
        if not any(request is other for other_group in others for other in other_group for request in group):
            others.append(group)
    return groups


def _find_values(column: Column, groups: Sequence[Sequence[OpenRequest]], remaining: Remaining) -> bool:
    having = list(column.having.values())
    needs = [sum(request.need(remaining) for request in group) for group in groups]
    values = [_values(having, group, remaining) for group in groups]
    together = 0
    for group in groups:
        for request in group:
            together |= request.devices(remaining)
    supplies = []
    for position, devices in enumerate(having):
        # A value holds most groups if the smallest go first.
        fitting = sorted(need for need, possible in zip(needs, values, strict=True) if possible >> position & 1)
        supplies.append(LimitedSupply(1 << position, _fit(fitting, (devices & together).bit_count())))
    return feasible([Need(possible, 1) for possible in values], supplies)


def _values(having: Sequence[int], group: Sequence[OpenRequest], remaining: Remaining) -> int:
    """The positions of the values with enough devices for each request of a group."""
    return sum(
        1 << position
        for position, devices in enumerate(having)
        if all(
            any(
                (remaining[domain.number] & devices).bit_count() >= need for domain, need in request.ruled_in(remaining)
            )
            for request in group
        )
    )


def _fit(needs: Sequence[int], room: int) -> int:
    """How many of the needs, smallest first, find room together."""
    for count, need in enumerate(needs):
        room -= need
        if room < 0:
            return count
    return len(needs)


class Bounds:
    """Each method is False only when the remaining requests certainly cannot all be served.

    The checks also remove devices that are in no solution.
    """

    def __init__(self, problem: NodeProblem) -> None:
        self._problem = problem
        self._sharing = Sharing(problem)
        self.several = self._sharing.several
        """Devices that several requests may get."""
        self._counter_bounds = [
            CounterBounds(problem, ledger, ledger.shared_counters)
            for ledger in problem.ledgers
            if ledger.shared_counters is not None
        ]
        self._aggregates = AggregateBounds(problem, self._counter_bounds, self.several)

    def suffice(self, remaining: Remaining, opened: list[OpenRequest]) -> bool:
        """All bounds hold; sums are the quickest to look at."""
        if not self._aggregates.counters_suffice(remaining, opened) or not self._aggregates.capacity_suffices(
            remaining, opened
        ):
            return False
        if not self.devices_suffice(remaining, opened) or not match_groups_suffice(remaining, opened, self.several):
            return False
        distinct = {
            ledger: ledger.differs_in for request in opened for ledger in request.bound if ledger.differs_in is not None
        }
        return all(self.values_suffice(ledger, column, remaining, opened) for ledger, column in distinct.items())

    def devices_suffice(self, remaining: Remaining, opened: list[OpenRequest]) -> bool:
        """The matching bound over ordinary requests, and over all requests of each claim that has others.

        Other claims may have what admin access takes, but no other request of its own claim may.
        """
        # All claims together: an ordinary request finds what any other has taken in use.
        if not self._devices_suffice(remaining, [request for request in opened if not request.admin]):
            return False
        return all(
            self._devices_suffice(remaining, [request for request in opened if request.claim == claim])
            for claim in {request.claim for request in opened if request.admin}
        )

    def _devices_suffice(self, remaining: Remaining, requests: Sequence[OpenRequest]) -> bool:
        needs = _needs(((request.devices(remaining), request.need(remaining)) for request in requests), self.several)
        together = 0
        for need in needs:
            together |= need.devices
        # The quick answer for most nodes. Not for partitions: however many there are, they exclude each other.
        if not together & self._problem.view.consuming and _roomy(needs):
            return True
        # One device for one request: here the textbook filter is exact, and leaves the domains smaller.
        if not together & (self._problem.view.consuming | self.several):
            return _give_own_devices(remaining, requests)
        numbers = {domain.number for request in requests for domain, _ in request.ruled_in(remaining)}
        return feasible(needs, self._supplies(together, {need.devices for need in needs}, numbers))

    def one_is_left(self, devices: int, remaining: Remaining, opened: list[OpenRequest]) -> bool:
        """Whether the requests may leave one of these devices unused."""
        shareable = self._problem.node.shareable
        # Who takes a share leaves the device to others.
        if devices & shareable:
            return True
        wanted = [(request.devices(remaining), request.need(remaining)) for request in opened if not request.admin]
        # As if one more request wanted one of them: where all can be served with it, one may be left.
        needs = _needs([*wanted, (devices, 1)], shareable)
        together = 0
        for need in needs:
            together |= need.devices
        parts = split([together & ~shareable], {need.devices for need in needs})
        supplies = [LimitedSupply(1 << device, len(self._problem.domains)) for device in each(together & shareable)]
        return feasible(needs, supplies + [LimitedSupply(part, part.bit_count()) for part in parts])

    def _supplies(self, together: int, wanted: set[int], numbers: set[int]) -> list[LimitedSupply]:
        """What the devices can supply; plain devices that the same requests want count together.

        A ledger limits nothing when some of the alternatives take devices without it.
        """
        unlimited = not numbers.isdisjoint(self._sharing.outside)
        supplies = [
            LimitedSupply(1 << device, len(self._problem.domains) if unlimited else self._sharing.most(device))
            for device in each(together & self.several)
        ]
        single = together & ~self.several
        for counter_bound in self._counter_bounds:
            if not numbers.isdisjoint(counter_bound.outside):
                continue
            for devices, limit in counter_bound.bottlenecks(single):
                supplies.append(LimitedSupply(devices, limit))
                # What a bottleneck limits must not count as plain devices as well.
                single &= ~devices
        supplies.extend(LimitedSupply(devices, devices.bit_count()) for devices in split([single], wanted))
        return supplies

    def values_suffice(self, ledger: Ledger, column: Column, remaining: Remaining, opened: list[OpenRequest]) -> bool:
        """Each device of the requests in scope needs a value of its own."""
        # Shares of a device have its values in common, so that only one of them can be taken (section 8): here no
        # device counts for several requests.
        having = list(column.having.values())
        scope = [request for request in opened if ledger in request.bound]
        wanted = ((_positions(having, request.devices(remaining)), request.need(remaining)) for request in scope)
        return feasible(_needs(wanted, 0), [LimitedSupply(1 << position, 1) for position in range(len(having))])


def _give_own_devices(remaining: Remaining, requests: Sequence[OpenRequest]) -> bool:
    """Keeps the devices that are in some assignment of different devices to all requests; False if there is none."""
    accepted: list[int] = []
    for request in requests:
        accepted += [request.devices(remaining)] * request.need(remaining)
    found = assignable(accepted)
    if found is None:
        return False
    position = 0
    for request in requests:
        need = request.need(remaining)
        # Devices that are in no assignment leave the domain: the requests behind see them no more.
        if need and found[position] != accepted[position] and not request.keep(found[position], remaining):
            return False
        position += need
    return True


def _positions(sets: Iterable[int], devices: int) -> int:
    """Which of the sets have any of the devices, as a bit set."""
    return sum(1 << position for position, members in enumerate(sets) if members & devices)


def _needs(wanted: Iterable[tuple[int, int]], several: int) -> list[Need]:
    """What is wanted of the same devices is one need, unless two requests may get the same device."""
    apart: list[Need] = []
    together: dict[int, int] = {}
    for devices, count in wanted:
        if devices & several:
            apart.append(Need(devices, count))
        elif count:
            together[devices] = together.get(devices, 0) + count
    return apart + [Need(devices, count) for devices, count in together.items()]


def _roomy(needs: Sequence[Need]) -> bool:
    """Whether each need finds enough devices, whatever the competing needs take."""
    # Most often all that is wanted is less than the smallest set, and the sums below need not be made.
    if sum(need.number for need in needs) <= min((need.devices.bit_count() for need in needs), default=0):
        return True
    return all(
        sum(other.number for other in needs if other.devices & need.devices) <= need.devices.bit_count()
        for need in needs
    )
