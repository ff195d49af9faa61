"""One decision at a time, short ones before long ones, writes beside each other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from controllers_world import idle
from dra_operator.cache import Key
from dra_operator.controllers import WorkQueue
from dra_operator.controllers.settings import TimeSettings, TimeSlices
from dra_operator.controllers.workers import (
    DISPATCH_STRETCH_SECONDS,
    Decided,
    Dispatcher,
    Failures,
    Postponed,
    level_after,
    rest_after,
)
from prometheus_client import CollectorRegistry

pytestmark = pytest.mark.real_time

TURNS = TimeSlices()
Decide = Callable[[str], Awaitable[Decided | Postponed]]


@asynccontextmanager
async def dispatching(
    decide: Decide, *names: str, most: int = 5, is_vain: Callable[[str], bool] = lambda _: False
) -> AsyncIterator[WorkQueue]:
    queue = WorkQueue(firm=True)
    queue.add(*(Key("placement", name) for name in names))
    times, failures = TimeSettings(workers={"placement": most}, time_slices=TURNS), Failures(CollectorRegistry())
    dispatcher = Dispatcher(queue, decide, times, failures, lambda: None, lambda result, seconds: None, is_vain)
    task = asyncio.create_task(dispatcher.run())
    try:
        async with asyncio.timeout(60):
            yield queue
    finally:
        task.cancel()
        await asyncio.wait((task,))
        queue.close()


@asynccontextmanager
async def counted_turns() -> AsyncIterator[Callable[[], int]]:
    """How many turns the event loop has made inside the block."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    task = asyncio.create_task(count())
    try:
        yield lambda: turns
    finally:
        task.cancel()
        await asyncio.wait((task,))


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - the dispatcher needs the turns of the loop that this gives it
        await asyncio.sleep(0)


async def test_hard_decisions_hold_up_no_easy_one() -> None:
    """Sixty that never end; what is asked for later is decided first all the same."""
    decided: list[str] = []
    turns = 0

    async def decide(name: str) -> Decided | Postponed:
        nonlocal turns
        if name.startswith("hard"):
            turns += 1
            return Postponed(TURNS.turn * turns)
        decided.append(name)
        return Decided()

    async with dispatching(decide, *(f"hard-{number}" for number in range(60))) as queue:
        await until(lambda: turns > 60)
        before = turns
        queue.add(*(Key("placement", f"easy-{number}") for number in range(20)))
        await until(lambda: len(decided) == 20)
        assert turns <= before + 1  # the one that was being worked on


async def test_the_decision_that_took_least_so_far_goes_on_first() -> None:
    spent = {"long": 5 * TURNS.turn, "short": TURNS.turn}
    order: list[str] = []

    async def decide(name: str) -> Decided | Postponed:
        order.append(name)
        return Postponed(spent[name]) if order.count(name) == 1 else Decided()

    async with dispatching(decide, "long", "short") as queue:
        await idle(queue)
    assert order == ["long", "short", "short", "long"]


async def pieces_before(hard: int, *, pieces: int) -> int:
    """How many pieces of hard pods of namespace ``a`` are worked on until a pod of ``b`` is decided on."""
    done: list[str] = []

    async def decide(name: str) -> Decided | Postponed:
        done.append(name)
        spent = TURNS.turn * done.count(name)
        return Decided(spent=spent) if name == "b/pod" and done.count(name) == pieces else Postponed(spent)

    async with dispatching(decide, *(f"a/{number}" for number in range(hard))) as queue:
        await until(lambda: len(done) >= 3)
        before = len(done)
        queue.add(Key("placement", "b/pod"))
        await until(lambda: done.count("b/pod") == pieces)
    last = len(done) - done[::-1].index("b/pod")
    return last - before - pieces


@pytest.mark.parametrize("pieces", [1, 5])
async def test_a_thousand_hard_pods_of_a_namespace_cost_another_one_no_more_than_one_does(pieces: int) -> None:
    one, thousand = await pieces_before(1, pieces=pieces), await pieces_before(1000, pieces=pieces)
    assert thousand <= one + 1


async def test_hard_pods_of_two_namespaces_have_the_same_time() -> None:
    done: list[str] = []

    async def decide(name: str) -> Decided | Postponed:
        done.append(name)
        return Postponed(TURNS.turn * done.count(name))

    async with dispatching(decide, *(f"a/{number}" for number in range(100)), "b/pod"):
        await until(lambda: len(done) >= 40)
    assert 18 <= done[:40].count("b/pod") <= 22


async def test_thousands_of_decisions_that_come_to_nothing_do_not_wait_for_the_loop() -> None:
    async def decide(name: str) -> Decided:
        return Decided()

    async with dispatching(decide, *map(str, range(3000))) as queue, counted_turns() as turns:
        await idle(queue)
        assert turns() < 1000


async def test_the_loop_has_its_turn_between_decisions_that_take_time() -> None:
    async def decide(name: str) -> Decided:
        end = time.perf_counter() + DISPATCH_STRETCH_SECONDS
        while time.perf_counter() < end:
            pass
        return Decided()

    async with dispatching(decide, *map(str, range(20))) as queue, counted_turns() as turns:
        await idle(queue)
        assert turns() >= 20


async def test_work_of_many_short_turns_has_as_much_time_as_decisions() -> None:
    """As Kopf does, which takes three turns of the loop for each new object."""
    decisions = 0

    def busy(seconds: float) -> None:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            pass

    async def decide(name: str) -> Decided:
        nonlocal decisions
        decisions += 1
        busy(DISPATCH_STRETCH_SECONDS)
        return Decided()

    async with dispatching(decide, *map(str, range(100))):
        for _ in range(100):
            busy(DISPATCH_STRETCH_SECONDS / 50)
            await asyncio.sleep(0)
        assert decisions < 20


@pytest.mark.parametrize(("spent", "rests"), [(TURNS.turn / 2, False), (TURNS.turn * 2, True)])
async def test_what_took_longer_than_its_turn_rests_whatever_happens(spent: float, rests: bool) -> None:
    decisions = 0

    async def decide(name: str) -> Decided:
        nonlocal decisions
        decisions += 1
        return Decided(spent=spent)

    async with dispatching(decide, "pod") as queue:
        await idle(queue)
        queue.add(Key("placement", "pod"))
        await idle(queue)
        assert decisions == (1 if rests else 2)
        await until(lambda: decisions == 2)
    assert rest_after(TURNS, 1.0) == TURNS.rest


async def test_decisions_run_ahead_of_the_writes_only_so_far() -> None:
    written = asyncio.Event()
    decided: list[str] = []

    async def decide(name: str) -> Decided:
        decided.append(name)
        return Decided(follow_up)

    async def follow_up() -> None:
        await written.wait()

    async with dispatching(decide, *"abcdef", most=3) as queue:
        for _ in range(50):
            await asyncio.sleep(0)
        assert decided == ["a", "b", "c"]
        written.set()
        await idle(queue)
        assert decided == [*"abcdef"]


async def test_a_decision_that_fails_is_tried_again_and_holds_up_nothing() -> None:
    failures = [ValueError("a bug")]
    decided: list[str] = []

    async def decide(name: str) -> Decided:
        if name == "bad" and failures:
            raise failures.pop()
        decided.append(name)
        return Decided()

    async with dispatching(decide, "bad", "good", most=1):
        await until(lambda: len(decided) == 2)
    assert decided == ["good", "bad"]


@pytest.mark.parametrize(
    ("turns", "spent", "rest", "level"),
    [
        (TimeSlices(), 0.02, 0.0, 1),
        (TimeSlices(), 0.1, 2.0, 5),
        (TimeSlices(turn=0.5), 0.1, 0.0, 1),
        (TimeSlices(rest=1.0), 0.1, 0.1, 5),
    ],
)
def test_turns_can_be_set(turns: TimeSlices, spent: float, rest: float, level: int) -> None:
    assert rest_after(turns, spent) == pytest.approx(rest)
    assert level_after(turns, spent) == level


async def test_a_weak_key_is_decided_about_unless_that_would_be_in_vain() -> None:
    decided: list[str] = []

    async def decide(key: str) -> Decided:
        decided.append(key)
        return Decided()

    async with dispatching(decide, most=1, is_vain=lambda key: key == "ns/vain") as queue:
        queue.add(*(Key("placement", name) for name in ("ns/vain", "ns/useful")), weak=True)
        queue.add(Key("placement", "ns/other"))
        await until(lambda: queue.is_idle)
        assert decided == ["ns/useful", "ns/other"]
        queue.add(Key("placement", "ns/vain"))
        await until(lambda: queue.is_idle)
    assert decided[2:] == ["ns/vain"]


async def test_a_weak_key_does_not_end_the_timer_that_the_decision_before_it_set() -> None:
    decided: list[str] = []

    async def decide(key: str) -> Decided:
        decided.append(key)
        if len(decided) == 1:
            queue.add(Key("placement", key), weak=True)
            queue.add_after(Key("placement", key), 0.01)
        return Decided()

    async with dispatching(decide, most=1) as queue:
        queue.add(Key("placement", "ns/a"))
        await until(lambda: queue.is_quiet)
    assert len(decided) == 3
