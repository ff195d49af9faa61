"""Units that have partitions: which of them are free, and what the unit could still serve.

A unit is filled with one class alone, the lowest free placement first, which is as many as there can be where
placements of a class are equally large. To that is added

- a part of what the departure of each occupied partition would add: a unit that would serve a request after one
  departure is worth more than one that needs two;
- a bonus if the unit serves the class at all, since which unit serves the next request matters more than how many it
  could serve after that; it grows with the root of how many the whole unit serves;
- a small constant, so that what is nearly used up does not outweigh everything else.

Units that are alike share one kind, on whatever node they are, and what was counted of their states.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isqrt
from typing import Final

from dra_operator.allocator.basics.bits import each
from dra_operator.allocator.basics.memo import Memo
from dra_operator.allocator.published.counter_table import Charges

from .totals import DEVICE_THOUSANDTHS, REQUEST_THOUSANDTHS, Totals

DEPARTURE_THOUSANDTHS: Final = 50
"""What counts of the requests that the departure of a partition would add."""
BONUS_THOUSANDTHS: Final = 1000
"""What counts in addition where a unit serves a class at all, for a class that a whole unit serves once."""
CONSTANT_THOUSANDTHS: Final = 170
"""What each unit counts for each class in any state."""
DEPARTING_DEVICES: Final = 16
"""Occupied partitions whose departure is weighed: a unit has more only if its driver means harm."""

State = tuple[int, tuple[int, ...]]
"""The partitions that are free, as bits, and what is left of each counter."""


class PartitionedKind:
    """Equal units. Partitions are numbered from the lowest of the unit, counters in the order of the unit."""

    _MOST_STATES: Final = 4096

    def __init__(self, charges: Mapping[int, Charges], values: Sequence[int], classes: Sequence[Sequence[int]]) -> None:
        self._charges, self._values, self._classes = charges, values, classes
        """What each partition takes of counters, all of each counter, and which partitions each class could take."""
        self._all = sum([1 << device for device in charges])
        self._known: Memo[State, Totals] = Memo(self._MOST_STATES)
        self._placed: Memo[State, list[list[int]]] = Memo(self._MOST_STATES)
        self._whole = self._placements((self._all, tuple(values)))
        self._bonus = [BONUS_THOUSANDTHS * isqrt(len(found) * 10**6) // 10**3 for found in self._whole]

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
        idle = max(0, self._part(enumerate(state[1])))
        placed = self._placements(state)
        usable = [sum([self._part(self._charges[it]) for it in found]) for found in placed]
        lost = [0 if found else idle for found in placed]
        takes = [
            CONSTANT_THOUSANDTHS + len(found) * REQUEST_THOUSANDTHS + (bonus if found else 0)
            for found, bonus in zip(placed, self._bonus, strict=True)
        ]
        for device, _ in zip(each(self._all & ~state[0]), range(DEPARTING_DEVICES), strict=False):
            after = self._placements(self._moved(state, device, 1))
            for number, found in enumerate(after):
                takes[number] += (len(found) - len(placed[number])) * DEPARTURE_THOUSANDTHS
        return Totals(idle, tuple(usable), tuple(lost), tuple(takes), int(idle == DEVICE_THOUSANDTHS), 1)

    def _part(self, amounts: Iterable[tuple[int, int]]) -> int:
        values = self._values
        part = sum([amount * DEVICE_THOUSANDTHS // (values[number] or 1) for number, amount in amounts])
        return part // (len(values) or 1)

    def _placements(self, state: State) -> list[list[int]]:
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
