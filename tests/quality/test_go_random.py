"""The generator gives the numbers of Go's ``math/rand``, as its documentation and its examples show them."""

from __future__ import annotations

from dra_operator.quality.trace import GoRandom


def test_seed_1_gives_the_numbers_that_every_program_in_go_began_with() -> None:
    random = GoRandom(1)
    assert [random.intn(100) for _ in range(5)] == [81, 87, 47, 59, 81]


def test_a_permutation_and_a_shuffle_have_every_item_once_and_follow_from_the_seed() -> None:
    for seed in (0, 1, 42, 2**40):
        order, items = GoRandom(seed).permutation(50), list(range(50))
        GoRandom(seed).shuffle(items)
        assert sorted(order) == sorted(items) == list(range(50))
        assert order == GoRandom(seed).permutation(50)
        assert order != GoRandom(seed + 1).permutation(50)
