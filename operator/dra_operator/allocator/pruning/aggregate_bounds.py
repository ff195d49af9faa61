"""What the remaining requests need (``OpenRequest``), and bounds by addition: what all of them take at least, against
what is left of counters and capacities.

A remainder counts only if the devices that may still be taken can use it: of 10Gi, shares of 4Gi use 8Gi. Requests that
could be served without drawing on a counter or capacity take nothing of it.

A device that allows multiple allocations is not always shared (``Sharing``): if the first share takes so much of some
capacity that no second one fits, the device counts like one that only one request can have.

Counters that no device uses together are independent: each GPU of a pool, cut into partitions, is a block of its own.
Between two calls a search changes one or two blocks, so results are kept per block, by what is left of its counters and
which of its devices are asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Final, NamedTuple, TypeVar

from dra_api.cache import Cache
from dra_ledger.basics import each
from dra_ledger.counters import Block, CounterKind

from dra_operator.allocator.problem.ledgers import ConsumableCapacity, Consumption, Ledger, SharedCounters, consumptions
from dra_operator.allocator.problem.node_state import Domain
from dra_operator.allocator.problem.problem import NodeProblem
from dra_operator.allocator.search import Remaining


class CapacityLedger(NamedTuple):
    """A ledger of consumable capacity, with what its requests consume."""

    ledger: Ledger
    capacity: ConsumableCapacity
    consumptions: list[Consumption]


def capacity_ledgers(problem: NodeProblem) -> list[CapacityLedger]:
    """The ledgers of consumable capacity."""
    return [
        CapacityLedger(ledger, ledger.consumable_capacity, consumptions(domains))
        for ledger, domains in problem.ledgers.items()
        if ledger.consumable_capacity is not None
    ]


class Sharing:
    """Upper bounds for the shares of one problem."""

    def __init__(self, problem: NodeProblem) -> None:
        self._problem = problem
        self._capacity_ledgers = capacity_ledgers(problem)
        self._least: dict[int, list[tuple[ConsumableCapacity, Mapping[str, int]]]] = {}
        self.outside = frozenset(
            number for one in self._capacity_ledgers for number in problem.outside(one.ledger, problem.node.shareable)
        )
        """Alternatives that may take devices without consuming anything of them."""
        self.several = sum(1 << device for device in self._find_several())
        """Devices that several requests may get.

        Devices that draw nothing more of shared counters count as well: they are free. If some requests consume
        nothing, all shareable devices count, because those requests get them whatever is left.
        """

    def most(self, device: int) -> int:
        """At most so many further shares of a device."""
        least = self._least.get(device)
        if least is None:
            least = self._least[device] = [(one.capacity, _least_share(one, device)) for one in self._capacity_ledgers]
        most = len(self._problem.domains)
        for capacity, amounts in least:
            left = capacity.left(device)
            # Each further share takes at least the least that any request would take.
            most = min([most, *(left[name] // amount for name, amount in amounts.items() if amount > 0)])
        return most

    def _find_several(self) -> Iterator[int]:
        shareable = self._problem.node.shareable
        # Some request takes shares without consuming anything: nothing limits how many get the device.
        if self.outside or self._problem.node.admin_exempt:
            return each(shareable)
        already_charged = 0
        for ledger in self._problem.ledgers:
            if ledger.shared_counters is not None:
                already_charged |= ledger.shared_counters.already_charged
        # What its counters are charged already costs nothing more; otherwise a second share must fit.
        return (device for device in each(shareable) if already_charged >> device & 1 or self.most(device) > 1)


def _least_share(limited: CapacityLedger, device: int) -> dict[str, int]:
    """The least that any request would consume of each capacity."""
    least: dict[str, int] = {}
    for amounts, usable in limited.consumptions:
        if usable >> device & 1:
            for name, amount in amounts.get(device, {}).items():
                least[name] = min(amount.nanos, least.get(name, amount.nanos))
    return least


class OpenRequest(NamedTuple):
    """One remaining request: any of its alternatives must find its need."""

    alternatives: tuple[tuple[Domain, int], ...]
    bound: frozenset[Ledger]
    """Ledgers comparing attributes that at least one device falls under, whichever alternative is used."""
    touching: frozenset[Ledger]
    """Ledgers comparing attributes of any alternative."""
    admin: bool
    """Some alternative has admin access, which requests of other claims do not limit."""

    @classmethod
    def of(cls, *alternatives: tuple[Domain, int]) -> OpenRequest:
        """A request with these alternatives and needs."""
        # An alternative that wants no device falls under no constraint.
        scopes = [frozenset(domain.comparing if need else ()) for domain, need in alternatives]
        admin = any(domain.alternative.admin for domain, _ in alternatives)
        return cls(alternatives, scopes[0].intersection(*scopes), frozenset().union(*scopes), admin)

    @property
    def claim(self) -> int:
        return self.alternatives[0][0].claim

    def ruled_in(self, remaining: Remaining) -> list[tuple[Domain, int]]:
        """The alternatives that are still possible."""
        return [(domain, need) for domain, need in self.alternatives if domain.number in remaining]

    def need(self, remaining: Remaining) -> int:
        """The least that the request takes."""
        return min(need for _, need in self.ruled_in(remaining))

    def devices(self, remaining: Remaining) -> int:
        """All devices that the request may still use."""
        devices = 0
        for domain, _ in self.alternatives:
            devices |= remaining.get(domain.number, 0)
        return devices

    def keep(self, devices: int, remaining: Remaining) -> bool:
        """Restricts the request to these devices; False if no alternative finds enough of them."""
        for domain, need in self.ruled_in(remaining):
            kept = remaining[domain.number] & devices
            if kept.bit_count() < need:
                del remaining[domain.number]
            else:
                remaining[domain.number] = kept
        return self.alive(remaining)

    def alive(self, remaining: Remaining) -> bool:
        """Some alternative finds enough devices."""
        for domain, need in self.alternatives:
            devices = remaining.get(domain.number)
            if devices is None:
                continue
            # All of nothing is enough where the release says so (``least``).
            if domain.alternative.everything:
                enough = bool(devices) or not domain.alternative.least
            else:
                enough = devices.bit_count() >= need
            if enough:
                return True
        return False


FINEST_ROOM_UNITS: Final = 4096
"""Rooms of more units (of the sizes' greatest common divisor) are only rounded to whole units."""


KEPT_SUM_BYTES: Final = 4 << 20
_known: Final[Cache[tuple[int, frozenset[int]], int]] = Cache(KEPT_SUM_BYTES, lambda key, _: 512 + 128 * len(key[1]))


def largest_sum(room: int, sizes: frozenset[int]) -> int:
    """The largest sum up to ``room`` of any number of things of these sizes, or a little more than that."""
    known = _known.get((room, sizes))
    return _known.put((room, sizes), _largest_sum(room, sizes)) if known is None else known


def _largest_sum(room: int, sizes: frozenset[int]) -> int:
    fitting = [size for size in sizes if 0 < size <= room]
    if not fitting:
        return 0
    unit = gcd(*fitting)
    units = room // unit
    # Every multiple of the unit can be reached, or they are too many to look at: then rounding down to the unit errs on
    # the large side, as a bound may.
    if min(fitting) == unit or units > FINEST_ROOM_UNITS:
        return units * unit
    reachable = 1  # bit i: a sum of i units
    for size in fitting:
        step = size // unit
        while step <= units:  # one, two, four, ... more of this size: any number of them
            reachable |= reachable << step
            step *= 2
        reachable &= (2 << units) - 1
    return unit * (reachable.bit_length() - 1)


Found = TypeVar("Found")
Limit = tuple[int, int]
"""Devices, and how many of them can be taken together at most."""


class CounterBounds:
    """Bounds for shared counters in their current state."""

    def __init__(self, problem: NodeProblem, ledger: Ledger, counters: SharedCounters) -> None:
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
        # Charged devices draw nothing more, and the blocks count devices from the pool's first.
        devices = (devices & ~self._counters.already_charged) >> self._counters.offset
        left = self._counters.left
        for block in self._counters.blocks:
            mine = devices & block.devices
            if mine:
                # All that the answer depends on: most choices leave most blocks as they were.
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
                # Each of its counters limits a device; one is enough for a bound, and the scarcest is the tightest.
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


Name = TypeVar("Name")


class AggregateBounds:
    """Each method is False only when the remaining requests certainly cannot all be served."""

    def __init__(self, problem: NodeProblem, counter_bounds: Sequence[CounterBounds], several: int) -> None:
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
        # Where admin access ignores allocations it draws on no counter (section 15): leaving it out asks for too
        # little, never for too much.
        ordinary = [request for request in opened if not request.admin]
        together = 0
        for request in ordinary:
            together |= request.devices(remaining)
        room = _total(room for counter_bound in self._counter_bounds for room in counter_bound.rooms(together))
        # Claims ask for many of the same: equal requests are looked at once.
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
        # Each request can be served by a device of which it consumes nothing.
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
            # A device that several requests may get can be charged already when this one gets it.
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


def _shares(problem: NodeProblem, limited: CapacityLedger) -> list[Share]:
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
            # Equal requests have one object of amounts on a node, which is looked at once.
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


def _drawing(problem: NodeProblem) -> list[Drawing]:
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
            # What one choice does without is not needed at all.
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
