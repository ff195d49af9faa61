"""Which smaller numbers of devices are tried."""

from __future__ import annotations

from collections.abc import Sequence

from dra_operator.allocator import Refusal


def fewer(asked: int, refusal: Refusal) -> Sequence[int]:
    """Less than was asked for, the most first: as many as are left, one less, half, and one."""
    return sorted({count for count in (left(refusal), asked - 1, asked // 2, 1) if 0 < count < asked}, reverse=True)


def left(refusal: Refusal) -> int:
    """How many devices match and are not taken out by a check."""
    return refusal.matching - sum(tally.devices for tally in refusal.lost)
