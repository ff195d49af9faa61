"""The shared counters of a pool, and which of its devices may be allocated together.

Counters are numbered through all sets of a pool (allocator.md section 10). Compatibility groups belong to a counter set
(kubernetes-1.37.md section 9): a device without groups on a set is in a group of its own kind there, with all others
without groups (K37-CG-03).

A driver may publish a device smaller, under another name or not at all while a claim holds it, as dynamic partitioning
does. The claim's draws stay drawn: ``Drawn`` remembers them from before the change. The draws of a device that was
never seen, or from a counter that is gone, are unknown. So nothing is left of the counters that it may have drawn
from, until the claim gives it back.

While slices of an older generation are there, nobody can tell by which generation a claim got its device. Then the
device in use draws the larger amount. So the order in which the objects came changes no answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Final, NamedTuple

from dra_api.resource import Device, DeviceCounterConsumption

from .basics import each
from .slices import Slice

Charges = tuple[tuple[int, int], ...]
"""(number of the counter, billionths) for each counter that a device consumes."""

CounterKind = str | frozenset[str]
"""A counter name, whatever its set, or several names that are counted together."""


Groups = frozenset[str]
WITHOUT_GROUPS: Final[Groups] = frozenset({""})
"""No group has this name."""

Membership = tuple[tuple[str, Groups], ...]
"""The groups of a device on each counter set from which it draws."""

CounterName = tuple[str, str]
"""(set, counter)"""


class Drawn(NamedTuple):
    """What a device drew by slices that are gone, or of older generations."""

    amounts: Mapping[CounterName, int]
    """In billionths."""
    beside: Mapping[CounterName, frozenset[CounterName]]
    """The counters that were there together with one from which it drew: none of them is that one under a new name."""
    groups: Mapping[str, Groups]
    """Its compatibility groups on each set."""

    @classmethod
    def of(cls, consumption: Iterable[DeviceCounterConsumption], counters: frozenset[CounterName]) -> Drawn:
        """Return what a device draws whose generation has these counters."""
        drawn = amounts(consumption)
        beside = {name: counters if name in counters else frozenset() for name in drawn}
        return cls(drawn, beside, dict(_membership(consumption)))

    def and_(self, other: Drawn) -> Drawn:
        """Return the larger amount of each counter: the device drew one of the two. The order does not matter."""
        more = {name: max(amount, self.amounts.get(name, 0)) for name, amount in other.amounts.items()}
        beside = {name: others | self.beside.get(name, frozenset()) for name, others in other.beside.items()}
        return Drawn(
            {**self.amounts, **more},
            {**self.beside, **beside},
            narrowed(self.groups, other.groups.items()),
        )


def note_drawn(drawn: dict[str, Drawn], name: str, record: Drawn) -> None:
    """Note one more thing that a device may have drawn."""
    known = drawn.get(name)
    drawn[name] = known.and_(record) if known is not None else record


NOTHING_DRAWN: Final[Mapping[str, Drawn]] = {}


class CounterTable:
    """Counters numbered through all sets of a pool.

    Counts all slices of the generation, also those for other nodes, since their devices draw on the same
    counters. Slices that the node sees come first: of two devices with one name theirs counts, also when it
    consumes nothing.
    ``fault`` names the first set that is defined twice, or device that consumes from nowhere; empty if there is none.

    ``drawn``: what devices in use may have drawn as they were published otherwise, by name. ``minds_unknown``: devices
    in use that are neither published nor in ``drawn`` may have drawn from any counter.
    """

    def __init__(
        self, slices: Iterable[Slice], drawn: Mapping[str, Drawn] = NOTHING_DRAWN, *, minds_unknown: bool = False
    ) -> None:
        self.names: list[tuple[str, str]] = []
        self.values: list[int] = []
        self.charges: dict[str, Charges] = {}
        """What each device draws as it is published."""
        self.in_use = self.charges
        """The same of devices in use, with ``drawn``."""
        self.fault = ""
        self._sets: dict[str, str] = {}
        """The slice of each set."""
        self._minds_unknown = minds_unknown
        self._lost: dict[str, list[int]] = {}
        """The counters from which a device may draw, because one that it drew from has gone. By device."""
        slices = list(slices)
        numbers = self._number([s for s in slices if s.has_counters])
        for slice_ in slices:
            for device in slice_.devices:
                if device.consumes_counters or numbers:
                    self._charge(slice_.name, device, numbers)
        if numbers and drawn:
            self.in_use = dict(self.charges)
            for name, record in drawn.items():
                self._keep_drawn(name, record, numbers)

    def _keep_drawn(self, name: str, drawn: Drawn, numbers: dict[CounterName, int]) -> None:
        """Charge a device in use its draws, where they are more than it is published to draw."""
        charges = dict(self.charges.get(name, ()))
        lost: set[int] = set()
        for key, amount in drawn.amounts.items():
            number = numbers.get(key)
            if number is not None:
                charges[number] = max(charges.get(number, 0), amount)
            elif amount > 0:
                lost |= {number for other, number in numbers.items() if other not in drawn.beside[key]}
        self.in_use[name] = tuple(charges.items())
        if lost:
            self._lost[name] = sorted(lost)

    def _number(self, slices: list[Slice]) -> dict[CounterName, int]:
        numbers: dict[CounterName, int] = {}
        for slice_ in slices:
            for counter_set in slice_.spec.shared_counters or ():
                if counter_set.name in self._sets:
                    by = " and ".join(f"slice {name}" for name in (self._sets[counter_set.name], slice_.name))
                    self._complain(f"counter set {counter_set.name} is defined twice, by {by}")
                self._sets[counter_set.name] = slice_.name
                for name, counter in (counter_set.counters or {}).items():
                    numbers[counter_set.name, name] = len(self.values)
                    self.names.append((counter_set.name, name))
                    self.values.append(counter.value.nanos)
        return numbers

    def _complain(self, fault: str) -> None:
        self.fault = self.fault or fault

    def _complain_of(self, device: Device, slice_: str, what: str) -> None:
        self._complain(f"device {device.name} (slice {slice_}) consumes {what}")

    def _charge(self, slice_: str, device: Device, numbers: dict[CounterName, int]) -> None:
        charges: dict[int, int] = {}
        for consumed in device.consumes_counters or ():
            set_ = consumed.counter_set
            if set_ not in self._sets:
                self._complain_of(device, slice_, f"from counter set {set_}, which no slice of the pool defines")
            for name, counter in (consumed.counters or {}).items():
                number = numbers.get((set_, name))
                if number is None:
                    self._complain_of(device, slice_, f"counter {name} of counter set {set_}, which does not have it")
                    continue
                charges[number] = charges.get(number, 0) + counter.value.nanos
        self.charges.setdefault(device.name, tuple(charges.items()))

    def available(self, charged: Iterable[str]) -> list[int]:
        """What is left of each counter when these devices are allocated; may be negative."""
        left = list(self.values)
        closed: list[int] = []
        for name in charged:
            known = self.in_use.get(name)
            if known is None:
                if self._minds_unknown:
                    closed = list(range(len(left)))
                continue
            for number, amount in known:
                left[number] -= amount
            if self._lost:
                closed += self._lost.get(name, ())
        for number in closed:
            left[number] = min(left[number], 0)
        return left

    def unknown(self, charged: Iterable[str]) -> list[str]:
        """Return the devices with unknown draws from counters of the pool, sorted."""
        if not self.values or not self._minds_unknown:
            return []
        return sorted(name for name in charged if name not in self.in_use or self._lost.get(name))


def amounts(consumption: Iterable[DeviceCounterConsumption]) -> dict[CounterName, int]:
    """Return the draws from each counter, in billionths."""
    found: dict[CounterName, int] = {}
    for one in consumption:
        for name, counter in (one.counters or {}).items():
            key = (one.counter_set, name)
            found[key] = found.get(key, 0) + counter.value.nanos
    return found


class Block(NamedTuple):
    """Devices and counters that are independent of other blocks."""

    groups: list[tuple[Charges, int]]
    devices: int
    counters: tuple[int, ...]


class CounterGroups:
    """The consuming devices of a view by what they consume; fixed for the life of the view.

    What only bounds need is computed on demand, because most decisions need no bounds.
    """

    def __init__(self, names: Sequence[str], groups: Sequence[tuple[Charges, int]]) -> None:
        self.names = names
        """The name of each counter, whatever its set."""
        self.groups = groups
        self.of = {device: index for index, (_, devices) in enumerate(groups) for device in each(devices)}
        touching: dict[int, set[int]] = {}
        for index, (charges, _) in enumerate(groups):
            for number, _ in charges:
                touching.setdefault(number, set()).add(index)
        self.near = [sorted(set().union(*(touching[number] for number, _ in charges))) for charges, _ in groups]
        """For each group those that draw on any of its counters."""

    @cached_property
    def kinds(self) -> list[tuple[CounterKind, ...]]:
        """The kinds that each counter is of."""
        return _kinds(self.names, self.groups)

    @cached_property
    def blocks(self) -> list[Block]:
        """The counters in independent blocks."""
        return _blocks(self.groups)

    @cached_property
    def costs(self) -> list[tuple[dict[CounterKind, int], int]]:
        """What devices consume, summed over all sets for each kind of counter, and the devices that do."""
        devices: dict[frozenset[tuple[CounterKind, int]], int] = {}
        for charges, group in self.groups:
            costs = frozenset(self._by_kind(charges).items())
            devices[costs] = devices.get(costs, 0) | group
        return [(dict(costs), group) for costs, group in devices.items()]

    def _by_kind(self, charges: Charges) -> dict[CounterKind, int]:
        costs: dict[CounterKind, int] = {}
        for number, amount in charges:
            for kind in self.kinds[number]:
                costs[kind] = costs.get(kind, 0) + amount
        return costs


def _kinds(names: Sequence[str], groups: Sequence[tuple[Charges, int]]) -> list[tuple[CounterKind, ...]]:
    """Counters of one name in all sets are one kind, and so are names from which devices take equal amounts.

    The memory of a GPU in eighths may have a counter for each eighth. What a partition takes of one of them says
    little, what it takes of all together says much.
    """
    most: dict[str, int] = {}
    for charges, _ in groups:
        for number, amount in charges:
            most[names[number]] = max(amount, most.get(names[number], 0))
    alike: dict[int, frozenset[str]] = {}
    for name, amount in most.items():
        alike[amount] = alike.get(amount, frozenset()) | {name}
    return [(name, alike[most[name]]) if len(alike.get(most.get(name, 0), ())) > 1 else (name,) for name in names]


def _blocks(groups: Sequence[tuple[Charges, int]]) -> list[Block]:
    """Groups that draw on a common counter are in one block."""
    members: dict[int, list[int]] = {}
    block_of: dict[int, int] = {}
    """The block of each counter, by the number of some group in it."""
    for index, (charges, _) in enumerate(groups):
        members[index] = [index]
        joined = {index, *(block_of[number] for number, _ in charges if number in block_of)}
        largest = max(joined, key=lambda block: len(members[block]))
        for block in joined - {largest}:
            members[largest] += (moved := members.pop(block))
            block_of.update((number, largest) for group in moved for number, _ in groups[group][0])
        block_of.update((number, largest) for number, _ in charges)
    return [_block([groups[index] for index in sorted(indexes)]) for indexes in members.values()]


def _block(groups: list[tuple[Charges, int]]) -> Block:
    devices = 0
    for _, group in groups:
        devices |= group
    return Block(groups, devices, tuple(sorted({number for charges, _ in groups for number, _ in charges})))


class CompatibilityTable:
    """The groups of the devices of one pool, those for other nodes included (K37-CG-05).

    Slices that the node sees come first: of two devices with one name theirs counts. ``drawn`` as in ``CounterTable``.
    """

    def __init__(self, slices: Iterable[Slice], devices: Sequence[Device], drawn: Mapping[str, Drawn]) -> None:
        self.is_idle = True
        """No device has groups, so that all are compatible."""
        self._memberships: dict[str, Membership] = {}
        for slice_ in slices:
            for device in slice_.devices:
                if device.consumes_counters:
                    self._memberships.setdefault(device.name, _membership(device.consumes_counters))
                    self.is_idle &= not has_groups(device)
        for name, record in drawn.items():
            known = narrowed(dict(self._memberships.get(name, ())), record.groups.items())
            self._memberships[name] = tuple(sorted(known.items()))
            self.is_idle &= all(groups == WITHOUT_GROUPS for groups in record.groups.values())
        kinds: dict[Membership, int] = {}
        self.of: dict[int, Membership] = {}
        """The membership of those devices of the node that draw on counters, by their number in the pool."""
        for number, device in enumerate(devices):
            if device.consumes_counters:
                membership = self.of[number] = _membership(device.consumes_counters)
                kinds[membership] = kinds.get(membership, 0) | 1 << number
        self.kinds = list(kinds.items())
        """The devices of the node that are in the same groups."""

    def common(self, allocated: Iterable[str]) -> dict[str, Groups]:
        """The groups that all allocated devices have in common on each set from which any of them draws."""
        found: dict[str, Groups] = {}
        for name in allocated:
            found = narrowed(found, self._memberships.get(name, ()))
        return found


def narrowed(common: Mapping[str, Groups], membership: Iterable[tuple[str, Groups]]) -> dict[str, Groups]:
    """The common groups once a device is allocated as well."""
    return {**common, **{set_: common.get(set_, groups) & groups for set_, groups in membership}}


def has_groups(device: Device) -> bool:
    """Whether the device has any group on any set."""
    return any(consumption.compatibility_groups for consumption in device.consumes_counters or ())


def _membership(consumption: Iterable[DeviceCounterConsumption]) -> Membership:
    return tuple(
        sorted((one.counter_set, frozenset(one.compatibility_groups or ()) or WITHOUT_GROUPS) for one in consumption)
    )
