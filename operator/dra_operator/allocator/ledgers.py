"""What a search holds while it tries: the dynamic features behind one small interface.

A ``Ledger`` answers which of some devices may be taken now (``admit``, on sets, so that a check costs the
same for one device and for a thousand), records that a device was taken, and gives it back. ``give_back``
is the exact inverse of ``take``: after any balanced sequence, last taken first returned, ``state`` is what
it was before. Everything that only depends on the allocated state and the request is no ledger but a
filter (``domain``), applied once before the search.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Protocol

from dra_api.quantity import Quantity

from .node_view import each
from .pools import Charges


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

    ``left`` is what the allocated state leaves of each device. Filters have already dropped devices on
    which not even the first share fits, so only devices shared in this call need a look.
    """

    def __init__(self) -> None:
        self.left: dict[int, dict[str, int]] = {}
        self._shared = 0
        self._holders: dict[int, int] = {}

    def admit(self, devices: int, taker: Taker) -> int:
        for device in each(devices & self._shared):
            left = self.left[device]
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
        return tuple((device, *self.left[device].values()) for device in each(self._shared))

    def _move(self, device: int, taker: Taker, sign: int) -> None:
        left = self.left[device]
        for name, amount in taker.amounts[device].items():
            left[name] += sign * amount.nanos


class Counters:
    """Shared counters of one pool (section 10).

    ``groups`` are the devices by what they consume, ``paid`` those that are charged already and may be
    shared further for nothing; only devices that allow multiple allocations (``shareable``) can be.
    A counter that the allocated state has overdrawn closes the whole pool, also for devices that do not
    consume it: section 10 asks for all counters of the pool (AL-14 would only look at consumed ones).
    """

    def __init__(self, left: list[int], groups: Sequence[tuple[Charges, int]], shareable: int, paid: int) -> None:
        self._left = left
        self._groups = groups
        self._charges = {device: charges for charges, devices in groups for device in each(devices)}
        self._shareable = shareable
        self._paid = paid
        self._holders: dict[int, int] = {}
        self._overdrawn = min(left, default=0) < 0

    def admit(self, devices: int, taker: Taker) -> int:
        left = self._left
        for charges, group in self._groups:
            if devices & group and (self._overdrawn or any(amount > left[number] for number, amount in charges)):
                devices &= ~group | self._paid
        return devices

    def take(self, device: int, taker: Taker) -> None:
        bit = 1 << device
        if device not in self._charges or (self._paid & bit and device not in self._holders):
            return
        if bit & self._shareable:
            self._holders[device] = self._holders.get(device, 0) + 1
            if self._holders[device] > 1:
                return
            self._paid |= bit
        self._charge(device, -1)

    def give_back(self, device: int, taker: Taker) -> None:
        bit = 1 << device
        if device not in self._charges or (self._paid & bit and device not in self._holders):
            return
        if bit & self._shareable:
            self._holders[device] -= 1
            if self._holders[device]:
                return
            del self._holders[device]
            self._paid &= ~bit
        self._charge(device, 1)

    def state(self) -> Hashable:
        return (tuple(self._left), self._paid)

    def _charge(self, device: int, sign: int) -> None:
        for number, amount in self._charges[device]:
            self._left[number] += sign * amount
