"""Looks that a change may be worth for many keys come in rounds, which take half of the time at most."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest
from dra_operator.cache import Key
from dra_operator.controllers import WorkQueue
from dra_operator.controllers.fairness import MOST_REST_SECONDS, Fairness
from history_kit.clock import VirtualLoop

A, B, YOUNG = (Key("placement", f"ns/{name}") for name in ("a", "b", "young"))


def in_no_time(story: Callable[[], Awaitable[None]]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(story())  # type: ignore[arg-type]


class Begun:
    """The rounds so far; ``held`` keys are not in line."""

    def __init__(self) -> None:
        self.rounds: list[list[Key]] = []
        self.held: set[Key] = set()

    def __call__(self, keys: Sequence[Key]) -> list[Key]:
        self.rounds.append(list(keys))
        return [key for key in keys if key not in self.held]


@pytest.mark.parametrize(("took", "rest"), [(3.0, 3.0), (100.0, MOST_REST_SECONDS)])
def test_what_is_wanted_during_a_round_is_for_the_next_one_after_a_rest(took: float, rest: float) -> None:
    async def story() -> None:
        begun = Begun()
        rounds = Fairness(asyncio.get_running_loop(), begun)
        for key in (A, B, A):
            rounds.want(key)
        await asyncio.sleep(0.001)
        assert begun.rounds == [[A, B]]
        assert rounds.is_quiet
        rounds.looked_at(A, took, took)
        rounds.want(A)
        await asyncio.sleep(200)
        assert len(begun.rounds) == 1, "one key of the round was not looked at yet"
        assert not rounds.is_quiet
        rounds.looked_at(B, 0.0, 0.0)
        await asyncio.sleep(rest - 0.01)
        assert len(begun.rounds) == 1
        await asyncio.sleep(0.02)
        assert begun.rounds[1:] == [[A]]

    in_no_time(story)


def test_a_change_after_the_rest_is_answered_at_once() -> None:
    async def story() -> None:
        begun = Begun()
        rounds = Fairness(asyncio.get_running_loop(), begun)
        for number in range(1, 4):
            rounds.want(A)
            await asyncio.sleep(0.001)
            assert len(begun.rounds) == number
            rounds.looked_at(A, 1.0, 1.0)
            await asyncio.sleep(1.001)

    in_no_time(story)


def test_a_round_does_not_wait_for_keys_that_are_held_or_looked_at_anyway() -> None:
    async def story() -> None:
        begun = Begun()
        begun.held = {A}
        rounds = Fairness(asyncio.get_running_loop(), begun)
        rounds.want(A)
        await asyncio.sleep(0.001)
        rounds.want(B)
        rounds.want(YOUNG)
        rounds.unwant(YOUNG)
        await asyncio.sleep(0.001)
        assert begun.rounds == [[A], [B]]
        rounds.close()

    in_no_time(story)


async def work(queue: WorkQueue, seconds: float, order: list[str], wanted: Sequence[Key] = ()) -> None:
    """Look at each key for so long, as the dispatcher does; these keys are wanted again meanwhile, in rounds."""
    while True:
        key = await queue.get()
        await asyncio.sleep(seconds)
        if queue.fairness.looked_at(key, seconds, seconds):
            queue.fairness.charge(key, seconds)
        order.append(key.object)
        queue.add(*wanted, wide=True)
        queue.done(key)


def test_younger_keys_have_their_turn_though_older_ones_are_wanted_all_the_time() -> None:
    """By their rank, the older ones would always come first."""

    async def story() -> None:
        queue = WorkQueue(rank=lambda key: (key.object,))
        order: list[str] = []
        worker = asyncio.create_task(work(queue, 0.1, order, [A, B]))
        queue.add(A, B, wide=True)
        await asyncio.sleep(0.05)
        queue.add(YOUNG)
        await asyncio.sleep(1.0)
        worker.cancel()
        assert order[:3] == ["ns/a", "ns/b", "ns/young"]
        assert len(order) < 8

    in_no_time(story)


async def test_a_key_that_is_wanted_otherwise_as_well_is_handed_out_once() -> None:
    queue = WorkQueue()
    queue.add(A, wide=True)
    queue.add(A)
    assert not queue.is_idle
    key = await queue.get()
    assert key == A
    queue.add(A, wide=True)  # for the next round, which begins while a worker has it
    await asyncio.sleep(0.01)
    queue.done(key)
    assert await queue.get() == A
    queue.fairness.looked_at(key, 0.0, 0.0)
    queue.done(key)
    await asyncio.sleep(0.01)
    assert queue.is_quiet


async def test_a_weak_look_is_not_enough_for_a_round() -> None:
    queue = WorkQueue()
    queue.add(A, wide=True)
    queue.add(A, weak=True)
    await asyncio.sleep(0.01)
    assert not queue.is_weak(await queue.get())


def test_a_namespace_with_many_keys_in_a_round_lets_others_go_before_the_rest() -> None:
    """Each look is cheap, and by their rank all of them would come first."""

    async def story() -> None:
        queue = WorkQueue(rank=lambda key: (key.object,))
        order: list[str] = []
        worker = asyncio.create_task(work(queue, 0.001, order))
        queue.add(*(Key("placement", f"many/{number:04}") for number in range(1000)), wide=True)
        await asyncio.sleep(0.01)
        queue.add(Key("placement", "other/pod"))
        await asyncio.sleep(2.0)
        worker.cancel()
        assert len(order) == 1001
        assert 200 < order.index("other/pod") < 300

    in_no_time(story)
