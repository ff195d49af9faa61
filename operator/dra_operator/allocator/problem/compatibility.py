"""Compatibility groups: devices that draw on one counter set need a group in common (kubernetes-1.37.md section 9)."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence

from dra_operator.allocator.basics.bits import each
from dra_operator.allocator.published.compatibility_table import CompatibilityTable, Groups, narrowed

from .ledger import Ledger, Request


class Compatibility(Ledger):
    """The groups that all devices of one pool have in common, allocated ones included, on each counter set.

    ``already_allocated`` are devices that may be shared further, and are not asked again (K37-CG-07); only devices that
    allow multiple allocations (``shareable``) can be.
    """

    lasting = True

    def __init__(
        self,
        table: CompatibilityTable,
        offset: int,
        common: Mapping[str, Groups],
        shareable: int,
        already_allocated: int,
    ) -> None:
        self._table = table
        self._offset = offset
        self._shareable = shareable
        self._already_allocated = already_allocated
        self._holders: dict[int, int] = {}
        self._common = [dict(common)]
        self._closed = [self._incompatible()]

    def __str__(self) -> str:
        return "a compatibility group in common"

    def copy(self) -> Compatibility:
        """The same groups for a search of its own. Nothing is taken from these yet."""
        return Compatibility(self._table, self._offset, self._common[0], self._shareable, self._already_allocated)

    def admit(self, devices: int, request: Request) -> int:
        return devices & (~self._closed[-1] | self._already_allocated)

    def take(self, device: int, request: Request) -> None:
        if not self._counts(device):
            return
        if self._shareable >> device & 1:
            self._holders[device] = self._holders.get(device, 0) + 1
            if self._holders[device] > 1:
                return
            self._already_allocated |= 1 << device
        self._common.append(narrowed(self._common[-1], self._table.of[device - self._offset]))
        self._closed.append(self._incompatible())

    def give_back(self, device: int, request: Request) -> None:
        if not self._counts(device):
            return
        if self._shareable >> device & 1:
            self._holders[device] -= 1
            if self._holders[device]:
                return
            del self._holders[device]
            self._already_allocated &= ~(1 << device)
        self._common.pop()
        self._closed.pop()

    def state(self) -> Hashable:
        return (frozenset(self._common[-1].items()), self._already_allocated)

    def tells_apart(self, devices: int, requests: Sequence[Request]) -> Iterator[int]:
        """Devices by their groups; shareable ones also by whether they are allocated."""
        for _, members in self._table.kinds:
            members <<= self._offset
            yield members
            yield from (1 << device for device in each(members & self._shareable))

    def alike_now(self, device: int, others: int) -> int:
        return others

    def treats(self, request: Request) -> Hashable:
        return None

    def _counts(self, device: int) -> bool:
        """The device draws on counters, and was not allocated before this search."""
        if device - self._offset not in self._table.of:
            return False
        return not self._already_allocated >> device & 1 or device in self._holders

    def _incompatible(self) -> int:
        """The devices that have no group in common with what is allocated."""
        common, bits = self._common[-1], 0
        for membership, devices in self._table.kinds:
            if any(set_ in common and not common[set_] & groups for set_, groups in membership):
                bits |= devices << self._offset
        return bits
