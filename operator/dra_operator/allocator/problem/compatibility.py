"""Compatibility groups: devices that draw on one counter set need a group in common (kubernetes-1.37.md section 9)."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping

from dra_ledger.counters import CompatibilityTable, Groups, narrowed

from .charged_once import ChargedOnce


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
            if any(set_ in common and not common[set_] & groups for set_, groups in membership):
                bits |= devices << self.offset
        return bits
