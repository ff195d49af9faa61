"""How much of a room whole things of certain sizes can fill at most."""

from __future__ import annotations

from math import gcd
from typing import Final

from dra_api.cache import Cache

FINEST_ROOM_UNITS: Final = 4096
"""Rooms of more units (of the sizes' greatest common divisor) are only rounded to whole units."""


KEPT_SUM_BYTES: Final = 4 << 20
_known: Final[Cache[tuple[int, frozenset[int]], int]] = Cache(KEPT_SUM_BYTES, lambda key, _: 512 + 128 * len(key[1]))


def largest_sum(room: int, sizes: frozenset[int]) -> int:
    """The largest sum up to ``room`` of any number of things of these sizes, or a little more than that."""
    known = _known.get((room, sizes))
    return _known.put((room, sizes), _largest_sum(room, sizes)) if known is None else known


def _largest_sum(room: int, sizes: frozenset[int]) -> int:
    fitting = [size for size in sizes if 0 < size <= room]
    if not fitting:
        return 0
    unit = gcd(*fitting)
    units = room // unit
    if min(fitting) == unit or units > FINEST_ROOM_UNITS:
        return units * unit
    reachable = 1  # bit i: a sum of i units
    for size in fitting:
        step = size // unit
        while step <= units:  # one, two, four, ... more of this size: any number of them
            reachable |= reachable << step
            step *= 2
        reachable &= (2 << units) - 1
    return unit * (reachable.bit_length() - 1)
