"""The filter keeps exactly what is in some assignment of different devices to all requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from dra_ledger.basics import each
from dra_operator.allocator.pruning.bounds import Need, _roomy, assignable
from hypothesis import given, settings
from hypothesis import strategies as st
from rounds import fewer


def assignments(accepted: Sequence[int], taken: int = 0) -> Iterator[tuple[int, ...]]:
    """All ways to give each request a device of its own."""
    if not accepted:
        yield ()
        return
    for device in each(accepted[0] & ~taken):
        for rest in assignments(accepted[1:], taken | 1 << device):
            yield (1 << device, *rest)


@settings(max_examples=fewer(300))
@given(st.lists(st.integers(0, 63), max_size=6))
def test_what_is_kept_is_what_some_assignment_uses(accepted: list[int]) -> None:
    kept = [0] * len(accepted)
    found = False
    for assignment in assignments(accepted):
        found = True
        kept = [old | device for old, device in zip(kept, assignment, strict=True)]
    assert assignable(accepted) == (kept if found else None)


@pytest.mark.parametrize(
    ("accepted", "expected"),
    [
        pytest.param([], [], id="no requests"),
        pytest.param([0b1, 0b11, 0b1110], [0b1, 0b10, 0b1100], id="the example of the module"),
        pytest.param([0b11, 0b11, 0b111], [0b11, 0b11, 0b100], id="two of two take both"),
        pytest.param([0b111, 0b111], [0b111, 0b111], id="a free device lets all move"),
        pytest.param([0b1, 0b1], None, id="two of one"),
        pytest.param([0b1, 0b10, 0b11], None, id="three of two"),
    ],
)
def test_devices_that_others_cannot_do_without_are_left_to_them(
    accepted: list[int], expected: list[int] | None
) -> None:
    assert assignable(accepted) == expected


def test_many_requests_that_push_one_another_along() -> None:
    size = 200
    accepted = [0b11 << number for number in range(size)]
    assert assignable([*accepted, 1]) == [0b10 << number for number in range(size)] + [1]


@settings(max_examples=fewer(300))
@given(st.lists(st.tuples(st.integers(1, 63), st.integers(1, 3)), max_size=4))
def test_nothing_is_searched_where_each_need_has_room_beside_those_that_compete(wanted: list[tuple[int, int]]) -> None:
    """The answer would be the same, and take many times as long on each node."""
    needs = [Need(devices, number) for devices, number in wanted]
    for need in needs:
        competing = sum(other.number for other in needs if other.devices & need.devices)
        if competing > need.devices.bit_count():
            assert not _roomy(needs)
            return
    assert _roomy(needs)
