"""Sets of devices as whole numbers: bit i stands for the i-th device."""

from __future__ import annotations

from collections.abc import Iterator


def each(bits: int) -> Iterator[int]:
    """The numbers of the devices in a set, ascending."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest
