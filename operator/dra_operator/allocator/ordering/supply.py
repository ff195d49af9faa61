"""What a node's devices could still serve, class by class of the mix.

A node consists of *units*: a device, or the partitions of one device, which draw on common counters. Each unit says how
much of it is idle, in thousandths of a device, and how many requests of each class it would still take. The sums over
all units are the ``Totals`` of the node. What an allocation takes changes only the units of its devices, so what it
destroys is found by looking at these.

A unit that has partitions is filled with one class alone, the lowest free placement first, which is as many as there
can be where placements of a class are equally large.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from dra_operator.allocator.basics.bits import each
from dra_operator.allocator.basics.memo import Memo
from dra_operator.allocator.problem.domain import Domain
from dra_operator.allocator.problem.filters import offer
from dra_operator.allocator.problem.node_state import NodeState
from dra_operator.allocator.published.counter_table import Block, Charges
from dra_operator.allocator.published.node_view import NodeView, Offer

from .mix import Mix

DEVICE_THOUSANDTHS: Final = 1000
"""Thousandths of a device."""
FREE_STATE: Final = (-1,)
"""What is left of a device that is not shared, and not taken."""
GONE_STATE: Final = (-2,)
"""What is left of one that is taken whole."""
WEIGHED_DEVICES: Final = 256
"""Devices of a node that are looked at, and partitions of a unit: a node has more only if its driver means harm."""

Taken = tuple[int, Mapping[str, int] | None]
"""A device, and what is taken of each capacity; None if it is taken whole."""


class Totals(NamedTuple):
    """Of units, or of a whole node. ``usable`` and ``lost``: by class, in thousandths of a device."""

    idle: int
    usable: tuple[int, ...]
    """What requests of the class alone could still take."""
    lost: tuple[int, ...]
    """What is idle on units that cannot serve the class."""
    takes: tuple[int, ...]
    """How many requests of a single device of the class could be served."""
    whole: int = 0
    """Units of which nothing is taken."""
    units: int = 0


class Kind(NamedTuple):
    """What counts of a device that is its own unit; equal devices of all nodes share one, and what was counted."""

    classes: tuple[tuple[tuple[tuple[str, int], ...], int] | None, ...]
    """For each class what a request takes of the device, in billionths and in thousandths; None if it cannot."""
    capacity: tuple[tuple[str, int], ...]
    counted: dict[tuple[int, ...], Totals]
    """By what is left."""


class Kinds:
    """The kinds of devices of a cluster, for one mix; with it goes all that was counted for the mix."""

    _MOST: Final = 4096
    _KEPT: Final = 256
    """What is kept of a node."""

    def __init__(self, mix: Mix) -> None:
        self.mix = mix
        self.sketches: Memo[Hashable, Any] = Memo(self._MOST)
        """Of nodes that are alike, with their units; kept for ``sketch``, which knows their type."""
        self._known: dict[object, Kind] = {}
        self._views: WeakKeyDictionary[NodeView, Memo[Hashable, Any]] = WeakKeyDictionary()

    def kept(self, view: NodeView) -> Memo[Hashable, Any]:
        """What was found out about a node, whatever is allocated, and about units of partitions by their state."""
        known = self._views.get(view)
        if known is None:
            known = self._views[view] = Memo(self._KEPT)
        return known

    def of(self, node: NodeState, offers: Sequence[Offer], device: int) -> Kind:
        """The kind of a device."""
        capacity = node.view.devices[device].capacity or {}
        whole = tuple([(name, it.value.nanos) for name, it in capacity.items()])
        classes = tuple([_share(offered, device, dict(whole)) for offered in offers])
        known = self._known.get((classes, whole))
        if known is None:
            if len(self._known) >= self._MOST:
                self._known.clear()
            known = self._known[classes, whole] = Kind(classes, whole, {})
        return known


def _share(offered: Offer, device: int, whole: Mapping[str, int]) -> tuple[tuple[tuple[str, int], ...], int] | None:
    if not offered.usable >> device & 1:
        return None
    amounts = tuple([(name, it.nanos) for name, it in offered.shares.get(device, {}).items() if it.nanos])
    return amounts, max(
        [amount * DEVICE_THOUSANDTHS // (whole[name] or 1) for name, amount in amounts], default=DEVICE_THOUSANDTHS
    )


class Supply:
    """The units of one node as the allocated state leaves it."""

    def __init__(self, node: NodeState, kinds: Kinds) -> None:
        self._node, self._mix, self._kept = node, kinds.mix, kinds.kept(node.view)
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
        self._blocks: dict[int, tuple[int, Block]] = {}
        """Of each partition the place of its pool, and its unit."""
        for place in node.places(view.consuming) if view.consuming else ():
            for block in view.pools[place].counter_groups.blocks:
                self._blocks.update(dict.fromkeys(each(block.devices << view.offsets[place]), (place, block)))
        self._now: dict[int, Totals] = {}
        """Each unit as it is."""
        for device in range(len(self._kinds)):
            unit = self.unit(device)
            if unit not in self._now:
                self._now[unit] = self._changed(device, ())
        self.units = tuple(self._now.values())
        """As they are; of devices that are their own unit, the same object if they are equal."""
        self.totals = _sum(self.units, len(kinds.mix.classes))

    @property
    def has_partitions(self) -> bool:
        """Some units have partitions, or there are more devices than are looked at."""
        return bool(self._blocks) or len(self._node.view.devices) > WEIGHED_DEVICES

    def without(self, taken: Sequence[Taken]) -> Totals:
        """The totals after an allocation."""
        by_unit: dict[int, list[Taken]] = {}
        for each_taken in taken:
            by_unit.setdefault(self.unit(each_taken[0]), []).append(each_taken)
        units = dict(self._now)
        for unit, its in by_unit.items():
            if unit in units:
                units[unit] = self._changed(its[0][0], its)
        return _sum(list(units.values()), len(self._mix.classes))

    def of_unit(self, device: int, taken: Sequence[Taken]) -> Totals:
        """The unit of a device, after these were taken of it."""
        now = self._now.get(self.unit(device))
        return now if now is not None and not taken else self._changed(device, taken)

    def state(self, device: int) -> object:
        """Equal for two devices of the same kind that have the same left; different for partitions."""
        if device in self._blocks or device >= len(self._kinds):
            return device
        return id(self._kinds[device]), id(self._now[device])

    def unit(self, device: int) -> int:
        """The number of a device's unit: that of its first device."""
        found = self._blocks.get(device)
        if found is None:
            return device
        place, block = found
        return self._node.view.offsets[place] + (block.devices & -block.devices).bit_length() - 1

    def _changed(self, device: int, taken: Sequence[Taken]) -> Totals:
        found = self._blocks.get(device)
        return self._of_device(device, taken) if found is None else self._of_block(*found, taken)

    def _of_device(self, device: int, taken: Iterable[Taken]) -> Totals:
        node = self._node
        if device >= len(self._kinds):
            return _sum((), len(self._mix.classes))
        kind = self._kinds[device]
        bit = 1 << device
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
        known = kind.counted.get(left)
        if known is None:
            known = kind.counted[left] = _count(kind, left)
        return known

    def _of_block(self, place: int, block: Block, taken: Iterable[Taken]) -> Totals:
        node, view = self._node, self._node.view
        offset, counters = view.offsets[place], node.counters(place)
        charges = view.pools[place].counter_groups
        left = list(counters.left)
        free = block.devices & ~(node.in_use >> offset)
        for device, _ in taken:
            free &= ~(1 << device - offset)
            for number, amount in charges.groups[charges.of[device - offset]][0]:
                left[number] -= amount
        state = (place, block.counters, free, tuple([left[number] for number in block.counters]))
        known: Totals | None = self._kept.get(state)
        if known is None:
            known = self._count_block(place, block, free, left)
            self._kept.put(state, known)
        return known

    def _count_block(self, place: int, block: Block, free: int, left: Sequence[int]) -> Totals:
        pool, offset = self._node.view.pools[place], self._node.view.offsets[place]
        all_of = pool.counters.values
        drawn = {device: charges for charges, devices in block.groups for device in each(devices)}
        number_of = len(block.counters)

        def part(amounts: Iterable[tuple[int, int]]) -> int:
            return sum(amount * DEVICE_THOUSANDTHS // (all_of[number] or 1) for number, amount in amounts) // number_of

        idle = max(0, part([(number, left[number]) for number in block.counters]))
        usable, lost, takes = [], [], []
        for offered in self._offers:
            found = _filled([drawn[it] for it in _first(offered, offset, free)], left)
            usable.append(sum(part(charges) for charges in found))
            lost.append(0 if found else idle)
            takes.append(len(found))
        return Totals(idle, tuple(usable), tuple(lost), tuple(takes), int(idle == DEVICE_THOUSANDTHS), 1)


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
    usable, lost, takes = [], [], []
    for share in kind.classes:
        number, size = 0, DEVICE_THOUSANDTHS
        if share is not None and left != GONE_STATE:
            size = share[1]
            number = 1 if is_whole else max(0, min([amounts[name] // it for name, it in share[0]], default=1))
        usable.append(number * size)
        lost.append(0 if number else idle)
        takes.append(number)
    return Totals(idle, tuple(usable), tuple(lost), tuple(takes), int(idle == DEVICE_THOUSANDTHS), 1)


def _sum(units: Sequence[Totals], classes: int) -> Totals:
    none = (0,) * classes
    if not units:
        return Totals(0, none, none, none)
    idle, usable, lost, takes, whole, number = zip(*units, strict=True)
    return Totals(sum(idle), _added(usable), _added(lost), _added(takes), sum(whole), sum(number))


def _added(rows: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(map(sum, zip(*rows, strict=True)))


def supply_of(node: NodeState, kinds: Kinds) -> Supply:
    """The supply of a node; kept with the state of the node."""
    version = kinds.mix.version
    known: Supply | None = node.supplies.get(version)
    if known is None:
        known = Supply(node, kinds)
        node.supplies.put(version, known)
    return known


def _first(offered: Offer, offset: int, free: int) -> list[int]:
    return [device for device, _ in zip(each(offered.usable >> offset & free), range(WEIGHED_DEVICES), strict=False)]


def _filled(placements: Sequence[Charges], left: Sequence[int]) -> list[Charges]:
    """Those that fit beside each other, the first one first."""
    rest = dict(enumerate(left))
    found = []
    for charges in placements:
        if all(amount <= rest[number] for number, amount in charges):
            found.append(charges)
            for number, amount in charges:
                rest[number] -= amount
    return found


def wasted(mix: Mix, totals: Totals, *, lost: int, unused: int) -> int:
    """What of the idle devices is in vain for the mix: exact, in thousandths of a device times weights.

    For each class, ``lost`` counts what is idle on units that cannot serve it, ``unused`` what it could not use in all.
    """
    waste = 0
    for number, it in enumerate(mix.classes):
        waste += it.weight * (lost * totals.lost[number] + unused * (totals.idle - totals.usable[number]))
    return waste
