"""Units that have partitions: which of them are free, and what the unit could still serve.

A unit is filled with one class alone, the lowest free placement first, which is as many as there can be where
placements of a class are equally large. A placement counts less if a rival of about the same size needs the same place
(``contested``), so that it is used up before those that have no rival. To that is added

- a part of what the departure of each occupied partition would add: a unit that would serve a request after one
  departure is worth more than one that needs two;
- a bonus if the unit serves the class at all, since which unit serves the next request matters more than how many it
  could serve after that; it grows with the root of how many the whole unit serves;
- a small constant, so that what is nearly used up does not outweigh everything else.

Units that are alike share one kind on all nodes, and what was counted of their states.

**Rivals.** A 3g can lie in either half of a GPU, a 4g in the low one alone. While the low half is free, a 4g may come
first: for 3g it is worth less than the high half, which stays free of 4g. So a 3g takes low halves before the high ones
are used up, the sooner the more of the mix are 3g and 4g. A class is a *rival* of another at a placement on two
conditions. None of its requests fits into the unit once the placement is taken, although some would after another
placement of the class. A request of the rival takes the room of just one request of the class. So small partitions
have no rivals among the large ones: they are to keep clear of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isqrt
from typing import Final

from dra_ledger.basics import Memo, each
from dra_ledger.counters import Charges

from dra_operator.allocator.ordering.mix import DEVICE_THOUSANDTHS, REQUEST_THOUSANDTHS, Totals

RIVALRY_THOUSANDTHS: Final = 3600
"""What a placement counts less, times the shares of both rivals in what the mix asks for: 900 where each is a half."""

Placed = list[list[int]]
"""For each class the placements that fit beside each other."""


def contested(whole: Placed, after: Mapping[int, Placed], asked: Sequence[int]) -> list[dict[int, int]]:
    """For each class the placements that have rivals, and what they count less, in thousandths.

    ``whole``: what an empty unit has room for; ``after``: for what is left of it once a placement is taken; ``asked``:
    how much of a unit each class asks for, times how often.
    """
    all_squared = sum(asked) ** 2 or 1
    found = []
    for number in range(len(whole)):
        less = {}
        for placement, rivals in rivals_of(number, whole, after).items():
            product = asked[number] * sum([asked[it] for it in rivals])
            if count := RIVALRY_THOUSANDTHS * product // all_squared:
                less[placement] = count
        found.append(less)
    return found


def rivals_of(number: int, whole: Placed, after: Mapping[int, Placed]) -> dict[int, set[int]]:
    """Of a class, the placements that have rivals, and which classes these are."""
    room = len(whole[number])
    others = [
        other
        for other, placements in enumerate(whole)
        if other != number and placements and room - len(after[placements[0]][number]) == 1
    ]
    shut_out = {
        placement: {other for other in others if not after[placement][other]}
        for placement in whole[number]
        if placement in after
    }
    everywhere = set.intersection(*shut_out.values()) if shut_out else set()
    return {placement: its - everywhere for placement, its in shut_out.items() if its - everywhere}


DEPARTURE_THOUSANDTHS: Final = 100
"""What counts of the requests that the departure of a partition would add."""
BONUS_THOUSANDTHS: Final = 700
"""What counts in addition where a unit serves a class at all, for a class that a whole unit serves once."""
CONSTANT_THOUSANDTHS: Final = 240
"""What each unit counts for each class in any state."""
DEPARTING_DEVICES: Final = 16
"""Occupied partitions whose departure is weighed: a unit has more only if its driver means harm."""

State = tuple[int, tuple[int, ...]]
"""The partitions that are free, as bits, and what is left of each counter."""


class PartitionedKind:
    """Equal units. Partitions are numbered from the lowest of the unit, counters in the order of the unit."""

    _MOST_STATES: Final = 4096

    def __init__(
        self,
        charges: Mapping[int, Charges],
        values: Sequence[int],
        classes: Sequence[Sequence[int]],
        weights: Sequence[int],
    ) -> None:
        self._charges, self._values, self._classes = charges, values, classes
        """What each partition takes of counters, all of each counter, and which partitions each class could take."""
        self._all = sum([1 << device for device in charges])
        self._known: Memo[State, Totals] = Memo(self._MOST_STATES)
        self._placed: Memo[State, Placed] = Memo(self._MOST_STATES)
        self._whole = self._placements((self._all, tuple(values)))
        self._less = self._contested(weights)
        """What placements count less, in thousandths."""
        counted = [len(found) * REQUEST_THOUSANDTHS for found in self._whole]
        self._bonus = [
            BONUS_THOUSANDTHS * isqrt((all_of - sum(less.values())) * 10**3) // 10**3
            for all_of, less in zip(counted, self._less, strict=True)
        ]

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
        counted = self._counted(placed)
        takes = [
            CONSTANT_THOUSANDTHS + count + (bonus if found else 0)
            for found, count, bonus in zip(placed, counted, self._bonus, strict=True)
        ]
        for device, _ in zip(each(self._all & ~state[0]), range(DEPARTING_DEVICES), strict=False):
            after = self._counted(self._placements(self._moved(state, device, 1)))
            for number, count in enumerate(after):
                takes[number] += (count - counted[number]) * DEPARTURE_THOUSANDTHS // REQUEST_THOUSANDTHS
        served = tuple(map(len, placed))
        return Totals(idle, tuple(usable), tuple(lost), tuple(takes), int(idle == DEVICE_THOUSANDTHS), 1, served)

    def _counted(self, placed: Placed) -> list[int]:
        """For each class what its placements count, in thousandths of a request."""
        return [
            len(found) * REQUEST_THOUSANDTHS - sum([less[it] for it in found if it in less])
            for found, less in zip(placed, self._less, strict=True)
        ]

    def _contested(self, weights: Sequence[int]) -> list[dict[int, int]]:
        empty = (self._all, tuple(self._values))
        firsts = {it for found in self._whole for it in found[:DEPARTING_DEVICES]}
        after = {it: self._placements(self._moved(empty, it, -1)) for it in firsts}
        asked = [
            weight * self._part(self._charges[found[0]]) if found else 0
            for weight, found in zip(weights, self._whole, strict=True)
        ]
        return contested(self._whole, after, asked)

    def _part(self, amounts: Iterable[tuple[int, int]]) -> int:
        values = self._values
        part = sum([amount * DEVICE_THOUSANDTHS // (values[number] or 1) for number, amount in amounts])
        return part // (len(values) or 1)

    def _placements(self, state: State) -> Placed:
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
