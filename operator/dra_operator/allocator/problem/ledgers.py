"""Ledgers: what a search holds of single devices while it tries, and what pruning may assume.

A ``Ledger`` answers which of some devices may be taken now (``admit``, on sets, so that a check costs the same for one
device and for a thousand), records that a device was taken, and gives it back. ``give_back`` is the exact inverse of
``take``, last taken first returned. What depends on the allocated state and the request alone is no ledger but a
filter (``problem``), applied once before the search.

These three methods make a complete feature. All others only make the search faster, by what pruning may assume. Their
defaults are safe: nothing is interchangeable, nothing lasts, nothing is bounded. A ledger's claims must be true, or
answers change; ``tests/allocator/test_ledgers.py`` compares.

Counters and groups belong to the pool. A device is charged to it once, however many shares of it are taken
(``ChargedOnce``): ``Counters`` for shared counters (allocator.md section 10), ``Compatibility`` for devices that draw
on one counter set and need a group in common (kubernetes-1.37.md section 9). ``CapacityShares`` are of the device,
if it allows multiple allocations (allocator.md section 9). Constraints are in ``constraints``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import ClassVar, Protocol

from dra_api.values import Quantity
from dra_ledger.basics import each
from dra_ledger.columns import Column
from dra_ledger.counters import Block, Charges, CompatibilityTable, CounterGroups, CounterKind, Groups, narrowed

from dra_operator.allocator.claim_program import Alternative


class Request(Protocol):
    """What a ledger sees of a request: one alternative on one node."""

    @property
    def claim(self) -> int:
        """Its claim."""

    @property
    def number(self) -> int:
        """Position among all alternatives of the problem."""

    @property
    def usable(self) -> int:
        """Devices that it may take at all."""

    @property
    def name(self) -> str:
        """The request in results and messages."""

    @property
    def alternative(self) -> Alternative:
        """All that it asks for."""

    @property
    def amounts(self) -> Mapping[int, Mapping[str, Quantity]]:
        """What one share of a device consumes, for devices that allow multiple allocations."""


class SharedCounters(Protocol):
    """Amounts that devices draw from common counters. Taking devices never makes more available."""

    @property
    def offset(self) -> int:
        """The number of the first device: the sets in ``blocks`` count from there."""

    @property
    def left(self) -> Sequence[int]:
        """The remaining amount of each counter."""

    @property
    def blocks(self) -> Sequence[Block]:
        """The counters in independent parts, with the devices that draw on them."""

    @property
    def kinds(self) -> Sequence[tuple[CounterKind, ...]]:
        """The kinds of each counter; amounts of one kind may be added up."""

    @property
    def groups(self) -> Sequence[tuple[Charges, int]]:
        """The devices by what they draw."""

    @property
    def costs_by_kind(self) -> Sequence[tuple[Mapping[CounterKind, int], int]]:
        """The devices by what they draw of each kind."""

    @property
    def already_charged(self) -> int:
        """Devices that draw nothing more."""

    def left_by_name(self) -> Mapping[str, int]:
        """The remaining amounts of all counters of one name."""

    def cost_by_name(self, device: int) -> Mapping[str, int]:
        """What a device draws of all counters of one name; nothing if that may already be charged."""


class ConsumableCapacity(Protocol):
    """Amounts that requests consume of a device itself. Taking a device never makes more available."""

    def left(self, device: int) -> Mapping[str, int]:
        """The remaining amount of each capacity of a device, in billionths."""


class Ledger(ABC):
    """One feature: what taking devices does to later choices."""

    @abstractmethod
    def admit(self, devices: int, request: Request) -> int:
        """Return the devices, of the given ones, that may be taken now."""

    @abstractmethod
    def take(self, device: int, request: Request) -> None:
        """Records an admitted device."""

    @abstractmethod
    def give_back(self, device: int, request: Request) -> None:
        """Undoes the latest ``take``, which was of this device."""

    # --- what it means ---

    ends_attempt: ClassVar[bool] = False
    """If it refuses a device to a request for all devices, the attempt ends with an error; this text says what the
    device lacks."""

    def __str__(self) -> str:
        """What all devices must have, for errors and refusals."""
        return type(self).__name__

    def may_fail(self, request: Request) -> bool:
        """Taking some device for the request ends the attempt with an error."""
        return False

    # --- what pruning may take for granted ---

    lasting: ClassVar[bool] = False
    """A device that is refused stays refused to that request until something is given back."""
    agrees_on: Column | None = None
    """All devices taken have a value of this attribute in common."""
    differs_in: Column | None = None
    """No two devices taken have a value of this attribute in common, and each has some value."""

    @property
    def shared_counters(self) -> SharedCounters | None:
        """A device is only admitted when the counters suffice for what it draws."""
        return None

    @property
    def consumable_capacity(self) -> ConsumableCapacity | None:
        """A device is only admitted when what is left of it suffices for the amounts of the request."""
        return None

    def state(self) -> Hashable:
        """All that later answers depend on: equal states give equal answers."""
        # Equal to no other state: without a promise of the ledger no failure is remembered.
        return object()

    def tells_apart(self, devices: int, requests: Sequence[Request]) -> Iterable[int]:
        """Sets of devices. Two devices in the same sets can be exchanged in all that was and will be taken."""
        # Each in a set of its own: without a promise of the ledger no two devices are interchangeable.
        return (1 << device for device in each(devices))

    def alike_now(self, device: int, others: int) -> int:
        """The other devices that neither ``tells_apart`` nor what was taken so far distinguishes from the device."""
        return 0

    def treats(self, request: Request) -> Hashable:
        """Equal for two requests that can be exchanged in all that was and will be taken."""
        return request.number


Consumption = tuple[Mapping[int, Mapping[str, Quantity]], int]


def consumptions(requests: Iterable[Request]) -> list[Consumption]:
    """What a share of each device consumes, and the devices of which such shares may be taken; each once."""
    found: dict[int, Consumption] = {}
    for request in requests:
        # Compared by identity: requests with one offer share a mapping, and a comparison costs more than it saves.
        amounts, usable = found.get(id(request.amounts), (request.amounts, 0))
        if amounts:
            found[id(amounts)] = amounts, usable | request.usable
    return list(found.values())


class ChargedOnce(Ledger):
    """Charges a device with the first share that is taken of it, and gives that back with the last one.

    ``charged`` are the devices that are charged at all, by their numbers in the pool, of which the first one is
    ``offset`` on the node. ``already_charged`` are charged by the allocated state, and may be shared further for
    nothing; only devices that allow multiple allocations (``shareable``) can be.
    """

    lasting = True

    def __init__(self, charged: Container[int], offset: int, shareable: int, already_charged: int) -> None:
        self._charged = charged
        self.offset = offset
        """The number of the pool's first device on the node."""
        self._shareable = shareable
        self._already_charged = already_charged
        self._holders: dict[int, int] = {}
        self._closed = 0
        """Devices that cannot be charged now."""

    def admit(self, devices: int, request: Request) -> int:
        # A further share of a charged device costs nothing, even if its counters are used up (allocator.md section 10).
        return devices & (~self._closed | self._already_charged)

    def take(self, device: int, request: Request) -> None:
        if not self._counts(device):
            return
        if self._shareable >> device & 1:
            self._holders[device] = self._holders.get(device, 0) + 1
            # A further share: the device was charged with the first one (allocator.md section 10).
            if self._holders[device] > 1:
                return
            # From now on further shares cost nothing, even if its counters are exhausted meanwhile.
            self._already_charged |= 1 << device
        self._charge(device, -1)

    def give_back(self, device: int, request: Request) -> None:
        if not self._counts(device):
            return
        if self._shareable >> device & 1:
            self._holders[device] -= 1
            # Other shares are left, and the charge stays with them.
            if self._holders[device]:
                return
            del self._holders[device]
            self._already_charged &= ~(1 << device)
        self._charge(device, 1)

    def tells_apart(self, devices: int, requests: Sequence[Request]) -> Iterator[int]:
        """Devices by what they are charged; shareable ones also by whether they are."""
        for members in self._alike():
            yield members
            yield from (1 << device for device in each(members & self._shareable))

    def alike_now(self, device: int, others: int) -> int:
        return others

    def treats(self, request: Request) -> Hashable:
        return None

    def _counts(self, device: int) -> bool:
        """The device is charged, and not by the allocated state."""
        if device - self.offset not in self._charged:
            return False
        # A search marks what it takes as charged too; ``_holders`` tells that from what the allocated state has
        # charged.
        return not self._already_charged >> device & 1 or device in self._holders

    @abstractmethod
    def _charge(self, device: int, sign: int) -> None:
        """Charge the device (-1), or undo its charge (1), which was the latest; ``_closed`` follows."""

    @abstractmethod
    def _alike(self) -> Iterable[int]:
        """The devices that are charged, in sets that are charged the same."""


class Counters(ChargedOnce):
    """The counters of one pool.

    A counter that the allocated state has overdrawn closes the whole pool, also for devices that do not consume it:
    allocator.md section 10 asks for all counters of the pool (AL-14 would only look at consumed ones).
    """

    def __init__(
        self,
        groups: CounterGroups,
        offset: int,
        left: list[int],
        shareable: int,
        already_charged: int,
        *,
        closed: int | None = None,
    ) -> None:
        super().__init__(groups.of, offset, shareable, already_charged)
        self._groups = groups
        self.left = left
        """What is currently left of each counter."""
        # Only admitted devices are taken, and these overdraw nothing: a pool is closed from the start, or never.
        self._overdrawn = min(left, default=0) < 0
        self._closed = closed or 0
        """Devices that what is left does not suffice for; worked out unless it is given."""
        if closed is None:
            self._check(range(len(groups.groups)))

    def copy(self) -> Counters:
        """The same counters for a search of its own. Nothing is taken from these yet."""
        # Which devices are closed was worked out for the node; each search starts from there.
        return Counters(
            self._groups, self.offset, list(self.left), self._shareable, self._already_charged, closed=self._closed
        )

    @property
    def shared_counters(self) -> Counters:
        return self

    @property
    def blocks(self) -> Sequence[Block]:
        """The counters in blocks, with devices as the pool numbers them."""
        return self._groups.blocks

    @property
    def kinds(self) -> Sequence[tuple[CounterKind, ...]]:
        return self._groups.kinds

    @cached_property
    def groups(self) -> list[tuple[Charges, int]]:
        """The consuming devices by what they consume."""
        return [(charges, devices << self.offset) for charges, devices in self._groups.groups]

    @property
    def already_charged(self) -> int:
        """Devices that are charged already, and may be shared further."""
        return self._already_charged

    def __str__(self) -> str:
        return "shared counters"

    def state(self) -> Hashable:
        return (tuple(self.left), self._already_charged)

    def left_by_name(self) -> dict[str, int]:
        """What is left, summed over all sets for each counter name."""
        left: dict[str, int] = {}
        for name, amount in zip(self._groups.names, self.left, strict=True):
            # An overdrawn counter has nothing left; that it lacks more is not the fault of these requests.
            left[name] = left.get(name, 0) + max(0, amount)
        return left

    def cost_by_name(self, device: int) -> dict[str, int]:
        """What a device consumes, summed over all sets for each counter name; nothing of one that may be charged."""
        costs: dict[str, int] = {}
        group = self._groups.of.get(device - self.offset)
        # A shareable device may be charged by the time it is taken, so nothing is certain of its cost.
        if group is not None and not self._shareable >> device & 1:
            for number, amount in self._groups.groups[group][0]:
                costs[self._groups.names[number]] = costs.get(self._groups.names[number], 0) + amount
        return costs

    @cached_property
    def costs_by_kind(self) -> list[tuple[dict[CounterKind, int], int]]:
        """The consuming devices by what they consume, summed over all sets for each kind of counter."""
        return [(costs, devices << self.offset) for costs, devices in self._groups.costs]

    def _alike(self) -> Iterator[int]:
        return (members for _, members in self.groups)

    def _charge(self, device: int, sign: int) -> None:
        group = self._groups.of[device - self.offset]
        for number, amount in self._groups.groups[group][0]:
            self.left[number] += sign * amount
        # Only devices that draw on one of the same counters can open or close.
        self._check(self._groups.near[group])

    def _check(self, groups: Iterable[int]) -> None:
        """Opens or closes each group by what is left of its counters."""
        left, offset, closed, is_overdrawn = self.left, self.offset, self._closed, self._overdrawn
        table = self._groups.groups
        for index in groups:  # plain loops: this runs for each device that a search takes or gives back
            charges, devices = table[index]
            for number, amount in charges:
                if is_overdrawn or amount > left[number]:
                    closed |= devices << offset
                    break
            else:
                closed &= ~(devices << offset)
        self._closed = closed


class Compatibility(ChargedOnce):
    """The groups that all devices of one pool have in common, allocated ones included, on each counter set.

    A device that may be shared further is not asked again (K37-CG-07).
    """

    def __init__(
        self,
        table: CompatibilityTable,
        offset: int,
        common: Mapping[str, Groups],
        shareable: int,
        already_allocated: int,
    ) -> None:
        super().__init__(table.of, offset, shareable, already_allocated)
        self._table = table
        # A copy: the node keeps the groups for other searches.
        self._common = [dict(common)]
        self._closed = self._incompatible()
        self._history = [self._closed]
        """What was closed after each device that was taken, as ``_common`` is what they had in common."""

    def __str__(self) -> str:
        return "a compatibility group in common"

    def copy(self) -> Compatibility:
        """The same groups for a search of its own. Nothing is taken from these yet."""
        return Compatibility(self._table, self.offset, self._common[0], self._shareable, self._already_charged)

    def state(self) -> Hashable:
        return (frozenset(self._common[-1].items()), self._already_charged)

    def _charge(self, device: int, sign: int) -> None:
        # Stacks: what devices have in common cannot be found again from the one that is given back.
        if sign < 0:
            self._common.append(narrowed(self._common[-1], self._table.of[device - self.offset]))
            self._history.append(self._incompatible())
        else:
            self._common.pop()
            self._history.pop()
        self._closed = self._history[-1]

    def _alike(self) -> Iterator[int]:
        return (members << self.offset for _, members in self._table.kinds)

    def _incompatible(self) -> int:
        """The devices that have no group in common with what is allocated."""
        common, bits = self._common[-1], 0
        for membership, devices in self._table.kinds:
            # A counter set on which nobody draws yet asks for no group in common (K37-CG-02).
            if any(set_ in common and not common[set_] & groups for set_, groups in membership):
                bits |= devices << self.offset
        return bits


class CapacityShares(Ledger):
    """What is left of each device. ``start`` gives what the allocated state leaves of one.

    Filters have already dropped devices on which not even the first share fits, so only devices shared in this
    call need a look.
    """

    lasting = True

    def __init__(self, shareable: int, start: Callable[[int], dict[str, int]]) -> None:
        self._shareable = shareable
        self._start = start
        self._left: dict[int, dict[str, int]] = {}
        self._shared = 0
        self._holders: dict[int, int] = {}

    @property
    def consumable_capacity(self) -> CapacityShares:
        return self

    def left(self, device: int) -> dict[str, int]:
        """What is currently left of each capacity of a device."""
        known = self._left.get(device)
        if known is None:
            known = self._left[device] = self._start(device)
        return known

    def __str__(self) -> str:
        return "consumable capacity"

    def admit(self, devices: int, request: Request) -> int:
        # On all others the first share fits: a filter has seen to it.
        for device in each(devices & self._shared):
            left = self._left[device]
            if any(amount.nanos > left[name] for name, amount in request.amounts[device].items()):
                devices &= ~(1 << device)
        return devices

    def take(self, device: int, request: Request) -> None:
        if device not in request.amounts:
            return
        self._move(device, request, -1)
        self._holders[device] = self._holders.get(device, 0) + 1
        self._shared |= 1 << device

    def give_back(self, device: int, request: Request) -> None:
        if device not in request.amounts:
            return
        self._move(device, request, 1)
        self._holders[device] -= 1
        if not self._holders[device]:
            del self._holders[device]
            self._shared &= ~(1 << device)

    def state(self) -> Hashable:
        return tuple((device, *self._left[device].values()) for device in each(self._shared))

    def tells_apart(self, devices: int, requests: Sequence[Request]) -> Iterator[int]:
        """Devices by what a share consumes of them."""
        for amounts, usable in consumptions(requests):
            groups: dict[tuple[tuple[str, int], ...], int] = {}
            # Only usable devices: the amounts of the others distinguish nothing.
            for device in each(usable):
                if device in amounts:
                    key = tuple((name, amount.nanos) for name, amount in amounts[device].items())
                    groups[key] = groups.get(key, 0) | 1 << device
            yield from groups.values()

    def alike_now(self, device: int, others: int) -> int:
        # A share takes the same of each of them, but of one more may be left than of another.
        if self._shareable >> device & 1:
            mine = self.left(device)
            for other in each(others):
                if self.left(other) != mine:
                    others &= ~(1 << other)
        return others

    def treats(self, request: Request) -> Hashable:
        # Requests with the same amounts take the same of each device, and share one mapping.
        return id(request.amounts)

    def _move(self, device: int, request: Request, sign: int) -> None:
        left = self.left(device)
        for name, amount in request.amounts[device].items():
            left[name] += sign * amount.nanos
