"""Who gives up a seat."""

from __future__ import annotations

from dra_ledger.predicates import InWork


class Work:
    def __init__(self) -> None:
        self.is_down = False

    def put_down(self) -> None:
        self.is_down = True


def test_the_greediest_tenant_gives_up_its_oldest_work() -> None:
    seats, modest, greedy = InWork(3), Work(), [Work() for _ in range(4)]
    seats.entered(modest, "modest")
    for one in greedy:
        seats.entered(one, "greedy")
    assert not modest.is_down
    assert [one.is_down for one in greedy] == [True, True, False, False]


def test_what_is_done_leaves_its_seat() -> None:
    seats, first, second, third = InWork(2), Work(), Work(), Work()
    seats.entered(first, "a")
    seats.entered(second, "a")
    seats.left(first)
    seats.entered(third, "a")
    assert not second.is_down
