"""What can be filled with things of certain sizes."""

from __future__ import annotations

import pytest
from dra_operator.allocator.pruning.aggregate_bounds import FINEST_ROOM_UNITS, largest_sum
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("room", "sizes", "filled"),
    [
        (10, {4}, 8),
        (10, {6, 3}, 9),
        (10, {4, 6}, 10),
        (7, {5, 3}, 6),
        (10, {11}, 0),
        (10, set(), 0),
        (0, {1}, 0),
        (-5, {1}, 0),
        (10, {0, 4}, 8),
        (10 * 2**30, {4 * 2**30}, 8 * 2**30),
    ],
)
def test_the_largest_sum_of_whole_things(room: int, sizes: set[int], filled: int) -> None:
    assert largest_sum(room, frozenset(sizes)) == filled


def test_a_room_of_very_many_units_is_rounded_only() -> None:
    assert largest_sum(2 * FINEST_ROOM_UNITS + 1, frozenset({2 * FINEST_ROOM_UNITS, 3})) == 2 * FINEST_ROOM_UNITS + 1


@given(st.integers(0, 60), st.frozensets(st.integers(1, 20), max_size=4))
def test_it_is_what_trying_all_sums_finds(room: int, sizes: frozenset[int]) -> None:
    reachable = {0}
    for _ in range(room):
        reachable |= {total + size for total in reachable for size in sizes if total + size <= room}
    assert largest_sum(room, sizes) == max(reachable)
