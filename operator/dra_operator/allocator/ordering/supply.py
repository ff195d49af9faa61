"""What a node's devices could still serve, class by class of the mix.

A node consists of *units*: a device, or the partitions of one device, which draw on common counters. Each unit says how
much of it is idle, in thousandths of a device, and how many requests of each class it would still take. The sums over
all units are the ``Totals`` of the node. What an allocation takes changes only the units of its devices, so what it
destroys is found by looking at these.

**Partitions.** A unit that has partitions is filled with one class alone, the lowest free placement first, which is as
many as there can be where placements of a class are equally large. A placement counts less if a rival of about the same
size needs the same place (``contested``), so that it is used up before those that have no rival. To that is added

- a part of what the departure of each occupied partition would add: a unit that would serve a request after one
  departure is worth more than one that needs two;
- a bonus if the unit serves the class at all, since which unit serves the next request matters more than how many it
  could serve after that; it grows with the root of how many the whole unit serves;
- a small constant, so that what is nearly used up does not outweigh everything else.

Units that are alike share one kind on all nodes, and what was counted of their states.

**Rivals.** A 3g can lie in either half of a GPU, a 4g in the low one alone. While the low half is free, a 4g may come
first: for 3g it is worth less than the high half, which stays free of 4g. So a 3g takes low halves before the high ones
are used up, the sooner the more of the mix are 3g and 4g. A class is a *rival* of another at a placement on two
conditions. None of its requests fits into the unit once the placement is taken, although some would after another
placement of the class. A request of the rival takes the room of just one request of the class. So small partitions
have no rivals among the large ones: they are to keep clear of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from math import isqrt
from typing import Any, Final, NamedTuple

from dra_ledger.basics import Memo, each
from dra_ledger.counters import Block, Charges
from dra_ledger.inventory import NodeView, Offer

from dra_operator.allocator.ordering.mix import DEVICE_THOUSANDTHS, REQUEST_THOUSANDTHS, WEIGHT_SUM, Mix, Totals, summed
from dra_operator.allocator.problem.node_state import Domain, NodeState
from dra_operator.allocator.problem.problem import offer

RIVALRY_THOUSANDTHS: Final = 3600
"""What a placement counts less, times the shares of both rivals in what the mix asks for: 900 where each is a half."""

Placed = list[list[int]]
"""For each class the placements that fit beside each other."""


def contested(whole: Placed, after: Mapping[int, Placed], asked: Sequence[int]) -> list[dict[int, int]]:
    """For each class the placements that have rivals, and what they count less, in thousandths.

    ``whole``: what an empty unit has room for; ``after``: for what is left of it once a placement is taken; ``asked``:
    how much of a unit each class asks for, times how often.
    """
    # A mix may ask for nothing of this kind of unit.
    all_squared = sum(asked) ** 2 or 1
    found = []
    for number in range(len(whole)):
        less = {}
        for placement, rivals in rivals_of(number, whole, after).items():
            product = asked[number] * sum([asked[it] for it in rivals])
            if count := RIVALRY_THOUSANDTHS * product // all_squared:
                less[placement] = count
        found.append(less)
    return found


def rivals_of(number: int, whole: Placed, after: Mapping[int, Placed]) -> dict[int, set[int]]:
    """Of a class, the placements that have rivals, and which classes these are."""
    room = len(whole[number])
    others = [
        other
        for other, placements in enumerate(whole)
        if other != number and placements and room - len(after[placements[0]][number]) == 1
    ]
    shut_out = {
        placement: {other for other in others if not after[placement][other]}
        for placement in whole[number]
        # For placements beyond ``DEPARTING_DEVICES`` nothing was worked out.
        if placement in after
    }
    # A class that no placement leaves room for is shut out whatever is chosen: it is no reason for one placement rather
    # than another.
    everywhere = set.intersection(*shut_out.values()) if shut_out else set()
    return {placement: its - everywhere for placement, its in shut_out.items() if its - everywhere}


DEPARTURE_THOUSANDTHS: Final = 100
"""What counts of the requests that the departure of a partition would add."""
BONUS_THOUSANDTHS: Final = 700
"""What counts in addition where a unit serves a class at all, for a class that a whole unit serves once."""
CONSTANT_THOUSANDTHS: Final = 240
"""What each unit counts for each class in any state."""
DEPARTING_DEVICES: Final = 16
"""Occupied partitions whose departure is weighed: a unit has more only if its driver means harm."""

State = tuple[int, tuple[int, ...]]
"""The partitions that are free, as bits, and what is left of each counter."""


class PartitionedKind:
    """Equal units. Partitions are numbered from the lowest of the unit, counters in the order of the unit."""

    _MOST_STATES: Final = 4096

    def __init__(
        self,
        charges: Mapping[int, Charges],
        values: Sequence[int],
        classes: Sequence[Sequence[int]],
        weights: Sequence[int],
    ) -> None:
        self._charges, self._values, self._classes = charges, values, classes
        """What each partition takes of counters, all of each counter, and which partitions each class could take."""
        self._all = sum([1 << device for device in charges])
        self._known: Memo[State, Totals] = Memo(self._MOST_STATES)
        self._placed: Memo[State, Placed] = Memo(self._MOST_STATES)
        self._whole = self._placements((self._all, tuple(values)))
        self._less = self._contested(weights)
        """What placements count less, in thousandths."""
        counted = [len(found) * REQUEST_THOUSANDTHS for found in self._whole]
        self._bonus = [
            BONUS_THOUSANDTHS * isqrt((all_of - sum(less.values())) * 10**3) // 10**3
            for all_of, less in zip(counted, self._less, strict=True)
        ]

    def totals(self, state: State) -> Totals:
        """Of a unit in a state."""
        known = self._known.get(state)
        return self._known.put(state, self._count(state)) if known is None else known

    @property
    def whole(self) -> Totals:
        """Of a unit of which nothing is taken; ``takes`` are requests alone."""
        takes = tuple([len(found) * REQUEST_THOUSANDTHS for found in self._whole])
        return self.totals((self._all, tuple(self._values)))._replace(takes=takes)

    def without(self, state: State, taken: Iterable[int]) -> State:
        """The state after these partitions are taken."""
        for device in taken:
            state = self._moved(state, device, -1)
        return state

    def _moved(self, state: State, device: int, sign: int) -> State:
        free, left = state[0], list(state[1])
        for number, amount in self._charges[device]:
            left[number] += sign * amount
        return (free | 1 << device if sign > 0 else free & ~(1 << device)), tuple(left)

    def _count(self, state: State) -> Totals:
        # An overdrawn counter has less than nothing left.
        idle = max(0, self._part(enumerate(state[1])))
        placed = self._placements(state)
        usable = [sum([self._part(self._charges[it]) for it in found]) for found in placed]
        # What is idle where no request of the class fits is lost to the class.
        lost = [0 if found else idle for found in placed]
        counted = self._counted(placed)
        takes = [
            CONSTANT_THOUSANDTHS + count + (bonus if found else 0)
            for found, count, bonus in zip(placed, counted, self._bonus, strict=True)
        ]
        # What would come back if this partition were free again: states that are one departure from a fit are worth
        # more.
        for device, _ in zip(each(self._all & ~state[0]), range(DEPARTING_DEVICES), strict=False):
            after = self._counted(self._placements(self._moved(state, device, 1)))
            for number, count in enumerate(after):
                takes[number] += (count - counted[number]) * DEPARTURE_THOUSANDTHS // REQUEST_THOUSANDTHS
        served = tuple(map(len, placed))
        return Totals(idle, tuple(usable), tuple(lost), tuple(takes), int(idle == DEVICE_THOUSANDTHS), 1, served)

    def _counted(self, placed: Placed) -> list[int]:
        """For each class what its placements count, in thousandths of a request."""
        return [
            len(found) * REQUEST_THOUSANDTHS - sum([less[it] for it in found if it in less])
            for found, less in zip(placed, self._less, strict=True)
        ]

    def _contested(self, weights: Sequence[int]) -> list[dict[int, int]]:
        empty = (self._all, tuple(self._values))
        firsts = {it for found in self._whole for it in found[:DEPARTING_DEVICES]}
        after = {it: self._placements(self._moved(empty, it, -1)) for it in firsts}
        asked = [
            weight * self._part(self._charges[found[0]]) if found else 0
            for weight, found in zip(weights, self._whole, strict=True)
        ]
        return contested(self._whole, after, asked)

    def _part(self, amounts: Iterable[tuple[int, int]]) -> int:
        values = self._values
        # A driver may publish a counter of zero.
        part = sum([amount * DEVICE_THOUSANDTHS // (values[number] or 1) for number, amount in amounts])
        return part // (len(values) or 1)

    def _placements(self, state: State) -> Placed:
        known = self._placed.get(state)
        return self._placed.put(state, [self._filled(it, state) for it in self._classes]) if known is None else known

    def _filled(self, devices: Sequence[int], state: State) -> list[int]:
        """Those that fit beside each other, the first one first."""
        free, left = state[0], list(state[1])
        found = []
        for device in devices:
            charges = self._charges[device]
            if free >> device & 1 and all(amount <= left[number] for number, amount in charges):
                found.append(device)
                for number, amount in charges:
                    left[number] -= amount
        return found


FREE_STATE: Final = (-1,)
"""What is left of a device that is not shared, and not taken."""
GONE_STATE: Final = (-2,)
"""What is left of one that is taken whole."""
WORTH_KEY: Final = "worth"
"""Under which is kept what a node is worth to each class if nothing is taken."""
FULL_WEIGHT: Final = WEIGHT_SUM // 100
"""Of partitions, a class that is asked for as often as this, or more often, counts in full."""
WEIGHED_DEVICES: Final = 256
"""Devices of a node that are looked at, and partitions of a unit: a node has more only if its driver means harm."""

Taken = tuple[int, Mapping[str, int] | None]
"""A device, and what is taken of each capacity; None if it is taken whole."""


class Kind(NamedTuple):
    """What counts of a device that is its own unit; equal devices of all nodes share one, and what was counted."""

    classes: tuple[tuple[tuple[tuple[str, int], ...], int] | None, ...]
    """For each class what a request takes of the device, in billionths and in thousandths; None if it cannot."""
    capacity: tuple[tuple[str, int], ...]
    counted: Memo[tuple[int, ...], Totals]
    """By what is left. What was dropped is counted again: the new object equals the old one, and less is shared."""

    def totals(self, left: tuple[int, ...]) -> Totals:
        """Of a device of which so much is left."""
        known = self.counted.get(left)
        return self.counted.put(left, _count(self, left)) if known is None else known


class Kinds:
    """The kinds of devices of a cluster, for one mix; with it goes all that was counted for the mix."""

    _MOST: Final = 4096
    _MOST_NODES: Final = 16_384
    _MOST_PARTITIONED: Final = 64
    _MOST_LEFT: Final = 1024
    """Amounts that are left of a kind of device: each claim on a shared device may ask for another."""
    _KEPT: Final = 256
    """What is kept of a node."""

    def __init__(self, mix: Mix) -> None:
        self.mix = mix
        self.sketches: Memo[Hashable, Any] = Memo(self._MOST)
        """Of nodes that are alike, with their units; kept for ``sketch``, which knows their type."""
        self._known: dict[object, Kind] = {}
        self._partitioned: Memo[Hashable, PartitionedKind] = Memo(self._MOST_PARTITIONED)
        self._views: Memo[str, tuple[NodeView, Memo[Hashable, Any]]] = Memo(self._MOST_NODES)

    def kept(self, view: NodeView) -> Memo[Hashable, Any]:
        """What was found out about a node, whatever is allocated, and about units of partitions by their state."""
        known = self._views.get(view.name)
        # A view lasts while the slices of its node do, so all that was found out about it does.
        if known is None or known[0] is not view:
            known = self._views.put(view.name, (view, Memo(self._KEPT)))
        return known[1]

    def of(self, node: NodeState, offers: Sequence[Offer], device: int) -> Kind:
        """The kind of a device."""
        capacity = node.view.devices[device].capacity or {}
        whole = tuple([(name, it.value.nanos) for name, it in capacity.items()])
        classes = tuple([_share(offered, device, dict(whole)) for offered in offers])
        known = self._known.get((classes, whole))
        if known is None:
            # Emptied rather than trimmed: kinds are shared by all nodes, and soon made again.
            if len(self._known) >= self._MOST:
                self._known.clear()
            known = self._known[classes, whole] = Kind(classes, whole, Memo(self._MOST_LEFT))
        return known

    def of_block(self, view: NodeView, place: int, block: Block, offers: Sequence[Offer]) -> PartitionedKind:
        """The kind of a unit that has partitions."""
        pool, lowest = view.pools[place], _lowest(block)
        numbers = {number: place for place, number in enumerate(block.counters)}
        # Numbered from the lowest partition of the unit, so that equal units of all nodes have one kind.
        charges = {
            device - lowest: tuple([(numbers[number], amount) for number, amount in charged])
            for charged, devices in block.groups
            for device in each(devices)
        }
        values = tuple([pool.counters.values[number] for number in block.counters])
        first = view.offsets[place] + lowest
        classes = tuple([_first(it.usable >> first & block.devices >> lowest) for it in offers])
        key = (tuple(sorted(charges.items())), values, classes)
        known = self._partitioned.get(key)
        if known is None:
            weights = [it.weight for it in self.mix.classes]
            known = self._partitioned.put(key, PartitionedKind(charges, values, classes, weights))
        return known


def _share(offered: Offer, device: int, whole: Mapping[str, int]) -> tuple[tuple[tuple[str, int], ...], int] | None:
    if not offered.usable >> device & 1:
        return None
    amounts = tuple([(name, it.nanos) for name, it in offered.shares.get(device, {}).items() if it.nanos])
    return amounts, max(
        [amount * DEVICE_THOUSANDTHS // (whole[name] or 1) for name, amount in amounts], default=DEVICE_THOUSANDTHS
    )


def _lowest(block: Block) -> int:
    return (block.devices & -block.devices).bit_length() - 1


def _first(devices: int) -> tuple[int, ...]:
    return tuple([device for device, _ in zip(each(devices), range(WEIGHED_DEVICES), strict=False)])


class _Unit(NamedTuple):
    """The partitions of one device."""

    place: int
    """Of their pool."""
    block: Block
    first: int
    """The number of the first one."""
    kind: PartitionedKind


class NodeSupply:
    """The units of one node as the allocated state leaves it."""

    def __init__(self, node: NodeState, kinds: Kinds) -> None:
        self._node, self.mix, self._kept = node, kinds.mix, kinds.kept(node.view)
        view = node.view
        known: tuple[list[Offer], list[Kind]] | None = self._kept.get(())
        if known is None:
            offers = [offer(node, Domain(it.alternative, 0, 0)) for it in kinds.mix.classes]
            known = (
                offers,
                [kinds.of(node, offers, device) for device in range(min(len(view.devices), WEIGHED_DEVICES))],
            )
            self._kept.put((), known)
        self._offers, self._kinds = known
        self._blocks: dict[int, _Unit] = {}
        """Of each partition."""
        for place in node.places(view.consuming) if view.consuming else ():
            for block in view.pools[place].counter_groups.blocks:
                unit_of = self._unit_of(place, block, kinds)
                self._blocks.update(dict.fromkeys(each(block.devices << view.offsets[place]), unit_of))
        self._now: dict[int, Totals] = {}
        """Each unit as it is."""
        for device in range(len(self._kinds)):
            unit = self.unit(device)
            # Once for each unit: its partitions share the rest of it.
            if unit not in self._now:
                self._now[unit] = self._changed(device, ())
        self.units = tuple(self._now.values())
        """As they are; of devices that are their own unit, the same object if they are equal and it is still kept."""
        self.totals = summed(self.units, len(kinds.mix.classes))
        # Only partitions are weighed by what gets scarcer (``depleted``).
        self._worth = self._worths() if self._blocks else ()
        self._scarcity = tuple([self._scarce(number, 0) for number in range(len(self._worth))])

    @property
    def has_partitions(self) -> bool:
        """Some units have partitions, or there are more devices than are looked at."""
        return bool(self._blocks) or len(self._node.view.devices) > WEIGHED_DEVICES

    def scarcer(self, number: int, less: int) -> int:
        """By how much a class of the mix gets scarcer if a node with partitions serves so much less of it."""
        return self._scarce(number, less) - self._scarcity[number]

    def _scarce(self, number: int, less: int) -> int:
        """By the square of what is left to serve: the last requests weigh most."""
        return self._worth[number] // ((self.totals.takes[number] - less) ** 2 or 1)

    def _worths(self) -> tuple[int, ...]:
        """What counts of each class: the cube of what the node would serve if nothing were taken.

        Times what the class could use of all devices, squared: a class whose requests leave half of a device idle has
        more refused by nature, and less is gained where it is spared.
        """
        worth: tuple[int, ...] | None = self._kept.get(WORTH_KEY)
        if worth is None:
            units = {self.unit(device): device for device in range(len(self._kinds))}
            # One device of each unit stands for it: all of them lead to the same kind.
            whole = summed([self._whole(device) for device in units.values()], len(self.mix.classes))
            worth = tuple(
                [
                    min(it.weight, FULL_WEIGHT) * takes**3 * usable**2
                    for it, takes, usable in zip(self.mix.classes, whole.takes, whole.usable, strict=True)
                ]
            )
            self._kept.put(WORTH_KEY, worth)
        return worth

    def _whole(self, device: int) -> Totals:
        found = self._blocks.get(device)
        if found is not None:
            return found.kind.whole
        kind = self._kinds[device]
        is_shared = self._node.shareable >> device & 1
        return kind.totals(tuple([amount for _, amount in kind.capacity]) if is_shared else FREE_STATE)

    def is_partition(self, device: int) -> bool:
        """It shares counters with others."""
        return device in self._blocks

    def without(self, taken: Sequence[Taken]) -> Totals:
        """The totals after an allocation."""
        by_unit: dict[int, list[Taken]] = {}
        for each_taken in taken:
            by_unit.setdefault(self.unit(each_taken[0]), []).append(each_taken)
        units = dict(self._now)
        for unit, its in by_unit.items():
            # Devices beyond ``WEIGHED_DEVICES`` are not weighed, so nothing changes for them.
            if unit in units:
                units[unit] = self._changed(its[0][0], its)
        return summed(list(units.values()), len(self.mix.classes))

    def of_unit(self, device: int, taken: Sequence[Taken]) -> Totals:
        """The unit of a device, after these were taken of it."""
        # Most questions are about a unit from which this decision has taken nothing yet.
        now = self._now.get(self.unit(device))
        return now if now is not None and not taken else self._changed(device, taken)

    def state(self, device: int) -> object:
        """Equal only for two devices of the same kind that have the same left; different for partitions."""
        if device in self._blocks or device >= len(self._kinds):
            return device
        return id(self._kinds[device]), id(self._now[device])

    def unit(self, device: int) -> int:
        """The number of a device's unit: that of its first device."""
        found = self._blocks.get(device)
        return device if found is None else found.first

    def _changed(self, device: int, taken: Sequence[Taken]) -> Totals:
        found = self._blocks.get(device)
        return self._of_device(device, taken) if found is None else self._of_partitions(found, taken)

    def _of_device(self, device: int, taken: Iterable[Taken]) -> Totals:
        node = self._node
        if device >= len(self._kinds):
            return summed((), len(self.mix.classes))
        kind = self._kinds[device]
        bit = 1 << device
        # A device that is not shared is either free or gone; its amounts do not matter.
        if node.in_use & bit or any(amounts is None for _, amounts in taken):
            left: tuple[int, ...] = GONE_STATE
        elif node.shareable & bit:
            amounts = node.left(device) if node.consumed & bit else dict(kind.capacity)
            for _, its in taken:
                for name, amount in (its or {}).items():
                    amounts[name] -= amount
            left = tuple(amounts.values())
        else:
            left = FREE_STATE
        return kind.totals(left)

    def _unit_of(self, place: int, block: Block, kinds: Kinds) -> _Unit:
        view = self._node.view
        first = view.offsets[place] + _lowest(block)
        kind: PartitionedKind | None = self._kept.get(first)
        if kind is None:
            kind = self._kept.put(first, kinds.of_block(view, place, block, self._offers))
        return _Unit(place, block, first, kind)

    def _of_partitions(self, unit: _Unit, taken: Iterable[Taken]) -> Totals:
        left = self._node.counters(unit.place).left
        # Shifted to the numbers of the kind. They begin at the lowest partition of any unit.
        free = (unit.block.devices >> _lowest(unit.block)) & ~(self._node.in_use >> unit.first)
        state = (free, tuple([left[number] for number in unit.block.counters]))
        return unit.kind.totals(unit.kind.without(state, [device - unit.first for device, _ in taken]))


def _count(kind: Kind, left: tuple[int, ...]) -> Totals:
    """What a device that has so much left could serve."""
    is_whole, amounts = left == FREE_STATE, {name: it for (name, _), it in zip(kind.capacity, left, strict=False)}
    parts = (
        [amounts[name] * DEVICE_THOUSANDTHS // (all_of or 1) for name, all_of in kind.capacity]
        if left not in (FREE_STATE, GONE_STATE)
        else []
    )
    idle = (
        0 if left == GONE_STATE else DEVICE_THOUSANDTHS if is_whole else max(0, min(parts, default=DEVICE_THOUSANDTHS))
    )
    usable, lost, served = [], [], []
    for share in kind.classes:
        number, size = 0, DEVICE_THOUSANDTHS
        if share is not None and left != GONE_STATE:
            size = share[1]
            number = 1 if is_whole else max(0, min([amounts[name] // it for name, it in share[0]], default=1))
        usable.append(number * size)
        lost.append(0 if number else idle)
        served.append(number)
    # In thousandths, as units with partitions count: the totals of a node add both up.
    takes = tuple([number * REQUEST_THOUSANDTHS for number in served])
    whole = int(idle == DEVICE_THOUSANDTHS)
    return Totals(idle, tuple(usable), tuple(lost), takes, whole, 1, tuple(served))


def supply_of(node: NodeState, kinds: Kinds) -> NodeSupply:
    """The supply of a node; kept with the state of the node."""
    version = kinds.mix.version
    known: NodeSupply | None = node.supplies.get(version)
    if known is None:
        known = NodeSupply(node, kinds)
        node.supplies.put(version, known)
    return known
