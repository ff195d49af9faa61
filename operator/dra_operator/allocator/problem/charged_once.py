"""Ledgers of what a device means to its pool once, however many shares of it are taken."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Container, Hashable, Iterable, Iterator, Sequence

from dra_ledger.basics import each

from .ledger import Ledger, Request


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
        return devices & (~self._closed | self._already_charged)

    def take(self, device: int, request: Request) -> None:
        if not self._counts(device):
            return
        if self._shareable >> device & 1:
            self._holders[device] = self._holders.get(device, 0) + 1
            if self._holders[device] > 1:
                return
            self._already_charged |= 1 << device
        self._charge(device, -1)

    def give_back(self, device: int, request: Request) -> None:
        if not self._counts(device):
            return
        if self._shareable >> device & 1:
            self._holders[device] -= 1
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
        return not self._already_charged >> device & 1 or device in self._holders

    @abstractmethod
    def _charge(self, device: int, sign: int) -> None:
        """Charge the device (-1), or undo its charge (1), which was the latest; ``_closed`` follows."""

    @abstractmethod
    def _alike(self) -> Iterable[int]:
        """The devices that are charged, in sets that are charged the same."""
