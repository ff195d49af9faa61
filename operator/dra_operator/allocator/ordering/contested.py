"""Placements that a class shares with a rival, in a unit that has partitions.

A 3g can lie in either half of a GPU, a 4g in the low one alone. While the low half is free, a 4g may come first: for 3g
it is worth less than the high half, which stays free of 4g. So a 3g takes low halves before the high ones are used up,
the sooner the more of the mix are 3g and 4g.

A class is a *rival* of another at a placement if none of its requests fits into the unit once the placement is taken,
although some would after another placement of the class, and if a request of the rival takes the room of just one
request of the class. So small partitions have no rivals among the large ones: they are to keep clear of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

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
