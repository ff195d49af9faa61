"""What a search holds while it tries: the dynamic features behind one small interface.

A ``Ledger`` answers which of some devices may be taken now (``admit``, on sets, so that a check costs the
same for one device and for a thousand), records that a device was taken, and gives it back. ``give_back``
is the exact inverse of ``take``: after any balanced sequence, last taken first returned, ``state`` is what
it was before. Everything that only depends on the allocated state and the request is no ledger but a
filter (``domain``), applied once before the search.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Protocol

from dra_api.quantity import Quantity

from dra_operator.allocator.basics.bits import each
from dra_operator.allocator.published.counter_table import Block, Charges, CounterGroups, Kind


class Taker(Protocol):
    """The side of a request that ledgers look at."""

    @property
    def amounts(self) -> Mapping[int, Mapping[str, Quantity]]:
        """What one share of a device consumes, for devices that allow multiple allocations."""


class Ledger(Protocol):
    """One dynamic feature."""

    def admit(self, devices: int, taker: Taker) -> int:
        """Those of the devices that may be taken now."""

    def take(self, device: int, taker: Taker) -> None:
        """Records an admitted device."""

    def give_back(self, device: int, taker: Taker) -> None:
        """Undoes the latest ``take`` of the device."""

    def state(self) -> Hashable:
        """Everything that later answers depend on."""


class Shares:
    """Capacity of devices that allow multiple allocations (section 9).

    ``start`` tells what the allocated state leaves of a device. Filters have already dropped devices on
    which not even the first share fits, so only devices shared in this call need a look.
    """

    def __init__(self, start: Callable[[int], dict[str, int]]) -> None:
        self._start = start
        self._left: dict[int, dict[str, int]] = {}
        self._shared = 0
        self._holders: dict[int, int] = {}

    def left(self, device: int) -> dict[str, int]:
        """What is left of each capacity of a device at the moment."""
        known = self._left.get(device)
        if known is None:
            known = self._left[device] = self._start(device)
        return known

    def admit(self, devices: int, taker: Taker) -> int:
        for device in each(devices & self._shared):
            left = self._left[device]
            if any(amount.nanos > left[name] for name, amount in taker.amounts[device].items()):
                devices &= ~(1 << device)
        return devices

    def take(self, device: int, taker: Taker) -> None:
        if device not in taker.amounts:
            return
        self._move(device, taker, -1)
        self._holders[device] = self._holders.get(device, 0) + 1
        self._shared |= 1 << device

    def give_back(self, device: int, taker: Taker) -> None:
        if device not in taker.amounts:
            return
        self._move(device, taker, 1)
        self._holders[device] -= 1
        if not self._holders[device]:
            del self._holders[device]
            self._shared &= ~(1 << device)

    def state(self) -> Hashable:
        return tuple((device, *self._left[device].values()) for device in each(self._shared))

    def _move(self, device: int, taker: Taker, sign: int) -> None:
        left = self.left(device)
        for name, amount in taker.amounts[device].items():
            left[name] += sign * amount.nanos


class Counters:
    """Shared counters of one pool (section 10).

    ``paid`` are devices that are charged already and may be shared further for nothing; only devices that
    allow multiple allocations (``shareable``) can be. A counter that the allocated state has overdrawn closes
    the whole pool, also for devices that do not consume it: section 10 asks for all counters of the pool
    (AL-14 would only look at consumed ones).
    """

    def __init__(self, groups: CounterGroups, offset: int, left: list[int], shareable: int, paid: int) -> None:
        self._groups = groups
        self.offset = offset
        """The number of the pool's first device on the node."""
        self.left = left
        """What is left of each counter at the moment."""
        self._shareable = shareable << offset
        self._paid = paid << offset
        self._holders: dict[int, int] = {}
        self._overdrawn = min(left, default=0) < 0
        self._closed = 0
        """Devices that what is left does not suffice for."""
        self._check(range(len(groups.groups)))

    @property
    def blocks(self) -> Sequence[Block]:
        """The counters in blocks, with devices as the pool numbers them."""
        return self._groups.blocks

    @property
    def kinds(self) -> Sequence[tuple[Kind, ...]]:
        """The kinds that each counter is of."""
        return self._groups.kinds

    @cached_property
    def groups(self) -> list[tuple[Charges, int]]:
        """The consuming devices by what they consume."""
        return [(charges, devices << self.offset) for charges, devices in self._groups.groups]

    @property
    def paid(self) -> int:
        """Devices that are charged already, and may be shared further."""
        return self._paid

    def admit(self, devices: int, taker: Taker) -> int:
        return devices & (~self._closed | self._paid)

    def take(self, device: int, taker: Taker) -> None:
        if not self._pays(device):
            return
        if self._shareable >> device & 1:
            self._holders[device] = self._holders.get(device, 0) + 1
            if self._holders[device] > 1:
                return
            self._paid |= 1 << device
        self._charge(device, -1)

    def give_back(self, device: int, taker: Taker) -> None:
        if not self._pays(device):
            return
        if self._shareable >> device & 1:
            self._holders[device] -= 1
            if self._holders[device]:
                return
            del self._holders[device]
            self._paid &= ~(1 << device)
        self._charge(device, 1)

    def state(self) -> Hashable:
        return (tuple(self.left), self._paid)

    def left_by_name(self) -> dict[str, int]:
        """What is left, summed over all sets for each counter name."""
        left: dict[str, int] = {}
        for name, amount in zip(self._groups.names, self.left, strict=True):
            left[name] = left.get(name, 0) + max(0, amount)
        return left

    @cached_property
    def costs_by_kind(self) -> list[tuple[dict[Kind, int], int]]:
        """The consuming devices by what they consume, summed over all sets for each kind of counter."""
        return [(costs, devices << self.offset) for costs, devices in self._groups.costs]

    def _pays(self, device: int) -> bool:
        """The device consumes counters, and the allocated state has not charged them yet."""
        if device - self.offset not in self._groups.of:
            return False
        return not self._paid >> device & 1 or device in self._holders

    def _charge(self, device: int, sign: int) -> None:
        group = self._groups.of[device - self.offset]
        for number, amount in self._groups.groups[group][0]:
            self.left[number] += sign * amount
        self._check(self._groups.near[group])

    def _check(self, groups: Iterable[int]) -> None:
        """Opens and closes groups by what is left of their counters."""
        left = self.left
        for index in groups:
            charges, devices = self._groups.groups[index]
            if self._overdrawn or any(amount > left[number] for number, amount in charges):
                self._closed |= devices << self.offset
            else:
                self._closed &= ~(devices << self.offset)
