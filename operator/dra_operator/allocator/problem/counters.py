"""Shared counters, from which devices of a pool draw (allocator.md section 10)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import cached_property

from dra_ledger.counters import (
    Block,
    Charges,
    CounterGroups,
    CounterKind,
)

from .charged_once import ChargedOnce


class Counters(ChargedOnce):
    """The counters of one pool.

    A counter that the allocated state has overdrawn closes the whole pool, also for devices that do not consume it:
    section 10 asks for all counters of the pool (AL-14 would only look at consumed ones).
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
        self._overdrawn = min(left, default=0) < 0
        self._closed = closed or 0
        """Devices that what is left does not suffice for; worked out unless it is given."""
        if closed is None:
            self._check(range(len(groups.groups)))

    def copy(self) -> Counters:
        """The same counters for a search of its own. Nothing is taken from these yet."""
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
        """The kinds that each counter is of."""
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
            left[name] = left.get(name, 0) + max(0, amount)
        return left

    def cost_by_name(self, device: int) -> dict[str, int]:
        """What a device consumes, summed over all sets for each counter name; nothing of one that may be charged."""
        costs: dict[str, int] = {}
        group = self._groups.of.get(device - self.offset)
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
