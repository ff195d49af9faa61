"""The work queue: one entry per key, one worker per key, back-off per key and per namespace."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from controllers_world import idle
from dra_kube import (
    Conflict,
    Forbidden,
    Invalid,
    KubeError,
    ServerError,
    TooManyRequests,
    Unreachable,
)
from dra_operator.cache import Key
from dra_operator.controllers import WorkQueue
from dra_operator.controllers.errors import (
    BindingFailed,
    BindingRefused,
    GenerationFailed,
    PlacementFailed,
)
from dra_operator.controllers.queue import KeyBackoff
from dra_operator.controllers.settings import BackoffSettings
from dra_operator.controllers.workers import Failures
from history_kit.clock import VirtualLoop
from prometheus_client import CollectorRegistry

A, B = Key("templates", "ns/a"), Key("release", "ns/b")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


async def test_a_key_that_waits_is_one_entry() -> None:
    queue = WorkQueue()
    queue.add(A, B, A)
    assert [await queue.get(), await queue.get()] == [A, B]
    assert queue.depth == 0


async def test_a_key_added_while_a_worker_has_it_comes_back_afterwards() -> None:
    queue = WorkQueue()
    queue.add(A)
    await queue.get()
    queue.add(A, A)
    assert queue.depth == 0  # no other worker gets it meanwhile
    queue.done(A)
    assert await queue.get() == A
    queue.done(A)
    assert queue.is_quiet


async def test_a_waiting_worker_gets_the_next_key() -> None:
    queue = WorkQueue()
    workers = [asyncio.create_task(queue.get()) for _ in range(2)]
    await asyncio.sleep(0)
    queue.add(A)
    queue.add(B)
    assert set(await asyncio.gather(*workers)) == {A, B}


async def test_a_cancelled_worker_takes_no_key_with_it() -> None:
    queue = WorkQueue()
    lazy, eager = asyncio.create_task(queue.get()), asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add(A)
    lazy.cancel()
    assert await asyncio.wait_for(eager, 30) == A


async def test_a_failed_key_comes_back_and_an_event_brings_it_back_sooner() -> None:
    queue = WorkQueue()
    queue.add(A)
    await queue.get()
    assert queue.retry(A) == BackoffSettings().first
    assert queue.depth == 0
    assert await queue.get() == A
    for _ in range(12):
        queue.retry(A)
        queue.add(A)  # an event: no waiting for the back-off
        assert queue.depth == 1
        await queue.get()
    queue.done(A)
    assert queue.failures(A) == 0
    queue.close()


async def test_clearing_up_after_a_failure_does_not_end_its_back_off() -> None:
    queue = WorkQueue(KeyBackoff(Clock(), BackoffSettings(first=0.001)), firm=True)
    queue.add(A)
    for pause in (0.001, 0.002, 0.004):
        await queue.get()
        assert queue.retry(A) == pause
        await queue.get()
        queue.add(A)
        queue.done(A, is_over=False)
    await queue.get()
    queue.done(A)
    assert queue.failures(A) == 0


async def test_a_failure_that_wakes_its_own_key_does_not_go_round_at_once() -> None:
    queue = WorkQueue()
    queue.add(A)
    await queue.get()
    queue.add(A)
    assert queue.retry(A) > 0
    assert queue.depth == 0
    assert not queue.is_quiet
    queue.close()


async def test_the_earliest_of_several_times_counts() -> None:
    queue = WorkQueue()
    queue.add_after(A, 1000)
    queue.add_after(A, 0.001)
    queue.add_after(A, 500)
    assert await asyncio.wait_for(queue.get(), 30) == A
    queue.done(A)
    assert queue.is_quiet


def test_waits_double_up_to_the_longest_and_start_anew_after_success() -> None:
    backoff = KeyBackoff(Clock(), BackoffSettings(rate=1e9))
    waits = [backoff.failed(A) for _ in range(2000)]  # 2.0**1024 is no float
    assert waits[:4] == pytest.approx([0.005, 0.01, 0.02, 0.04])
    assert max(waits) == waits[-1] == BackoffSettings().longest
    assert backoff.failed(B) == BackoffSettings().first
    backoff.succeeded(A)
    assert backoff.failed(A) == BackoffSettings().first


def test_all_keys_together_are_held_back_once_the_burst_is_used_up() -> None:
    clock = Clock()
    backoff = KeyBackoff(clock, BackoffSettings())
    waits = [backoff.failed(Key("templates", f"ns/{number}")) for number in range(BackoffSettings().burst + 10)]
    assert set(waits[: BackoffSettings().burst]) == {BackoffSettings().first}
    assert waits[-1] == pytest.approx(1.0)  # ten too many, at ten per second
    clock.now += 60
    assert backoff.failed(Key("templates", "ns/later")) == BackoffSettings().first


def test_ten_thousand_failing_keys_of_one_namespace_delay_no_key_of_another() -> None:
    backoff = KeyBackoff(Clock(), BackoffSettings())
    waits = [backoff.failed(Key("placement", f"a/{number}")) for number in range(10_000)]
    assert waits[-1] == pytest.approx((10_000 - BackoffSettings().burst) / BackoffSettings().rate)
    assert backoff.failed(Key("placement", "b/one")) == BackoffSettings().first


def test_namespaces_share_the_retries_evenly() -> None:
    backoff = KeyBackoff(Clock(), BackoffSettings())
    waits = [backoff.failed(Key("placement", f"{name}/{number}")) for number in range(1000) for name in "abcd"]
    for name in range(4):
        later = [wait for wait in waits[name::4] if wait > 1]
        assert later[8] - later[4] == pytest.approx(4 * 4 / BackoffSettings().rate)


def test_a_hundred_namespaces_are_not_a_hundred_times_as_many_retries() -> None:
    clock = Clock()
    backoff = KeyBackoff(clock, BackoffSettings())
    keys = [Key("placement", f"{name}/{number}") for name in range(100) for number in range(500)]
    waits = [backoff.failed(key) for key in keys]
    assert sum(100 < wait <= 101 for wait in waits) <= 5.5 * BackoffSettings().rate
    assert sum(wait <= 1 for wait in waits) <= 5.5 * (BackoffSettings().burst + BackoffSettings().rate)
    clock.now += 1e6  # all buckets are full again, and slow nobody down
    waits = [backoff.failed(Key("placement", f"later/{number}")) for number in range(BackoffSettings().burst + 10)]
    assert waits[-1] == pytest.approx(1.0)


# --- holds ---


async def next_time(queue: WorkQueue, clock: asyncio.AbstractEventLoop) -> float:
    """Seconds until the queue has a key."""
    began = clock.time()
    await asyncio.wait_for(queue.get(), 30)
    return clock.time() - began


async def test_in_a_firm_queue_no_change_ends_a_back_off_early() -> None:
    queue = WorkQueue(KeyBackoff(Clock(), BackoffSettings(first=0.05)), firm=True)
    queue.add(A)
    await queue.get()
    queue.add(A)  # while it is worked on
    assert queue.retry(A) == 0.05
    queue.add(A)  # while it waits
    assert queue.depth == 0
    assert await next_time(queue, asyncio.get_running_loop()) > 0.04
    queue.done(A)
    assert queue.is_quiet


@pytest.mark.parametrize("is_known_while", ["it is held", "a worker has it"])
async def test_the_back_off_of_an_object_ends_with_the_object(is_known_while: str) -> None:
    queue = WorkQueue(KeyBackoff(Clock(), BackoffSettings(first=1.0)), firm=True)
    queue.add(A)
    for _ in range(3):
        await queue.get()
        queue.retry(A)
        queue.forget(A)
        assert queue.depth == 1
    assert queue.failures(A) == 0
    await queue.get()
    if is_known_while == "a worker has it":
        queue.forget(A)
        assert queue.retry(A) == 1.0
    else:
        queue.done(A, rest=1000.0)
        queue.forget(A)
        assert queue.is_quiet
    queue.close()


async def test_a_pause_that_the_server_asks_for_is_kept() -> None:
    queue = WorkQueue(KeyBackoff(Clock(), BackoffSettings()))
    queue.add(A)
    await queue.get()
    queue.add(A)
    assert queue.retry(A, at_least=3.0) == 3.0
    queue.close()


@pytest.mark.parametrize("firm", [True, False])
@pytest.mark.parametrize("added", ["meanwhile", "afterwards", "never"])
async def test_a_key_that_rests_comes_back_only_if_it_is_wanted(added: str, firm: bool) -> None:
    queue = WorkQueue(firm=firm)
    queue.add(A)
    await queue.get()
    if added == "meanwhile":
        queue.add(A)
    queue.done(A, rest=0.05)
    assert queue.depth == 0
    if added == "afterwards":
        queue.add(A)
        assert queue.depth == (0 if firm else 1)
    if added == "never":
        assert queue.is_quiet
    else:
        assert await asyncio.wait_for(queue.get(), 30) == A
    queue.close()


# --- order ---


async def test_keys_come_in_the_order_of_their_rank_and_then_of_their_arrival() -> None:
    ranks = {"ns/a": 2, "ns/b": 1, "ns/c": 1, "ns/d": 0}
    queue = WorkQueue(rank=lambda key: (ranks[key.object],))
    queue.add(*(Key("placement", name) for name in ranks))
    assert [(await queue.get()).object for _ in ranks] == ["ns/d", "ns/b", "ns/c", "ns/a"]


async def test_postponed_keys_come_after_all_others_the_lowest_level_first() -> None:
    keys = [Key("placement", f"ns/{name}") for name in "abc"]
    queue = WorkQueue()
    queue.add(*keys)
    for level in (3, 1):
        queue.postpone(await queue.get(), level)
    assert [(await queue.get()).object for _ in keys] == ["ns/c", "ns/b", "ns/a"]


async def test_a_change_that_comes_while_a_key_is_postponed_brings_it_back_afterwards() -> None:
    queue = WorkQueue()
    queue.add(A)
    queue.postpone(await queue.get(), 1)
    queue.add(A)
    assert queue.depth == 1
    assert await queue.get() == A
    queue.done(A)
    assert await queue.get() == A
    queue.done(A)
    assert queue.is_quiet


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 20, 50])
async def test_a_namespace_whose_keys_take_long_leaves_workers_to_others(workers: int) -> None:
    queue = WorkQueue(workers=workers)
    queue.add(*(Key("templates", f"slow/{number}") for number in range(100)))
    crew = [asyncio.create_task(queue.get()) for _ in range(workers)]
    await _turns()
    taken = [worker.result() for worker in crew if worker.done()]
    assert len(taken) == max(1, workers * 2 // 3)
    assert not queue.is_idle
    others = [Key("templates", f"{namespace}/a") for namespace in ("b", "c", "d") if workers > 4]
    queue.add(*others)
    await _turns()
    assert [worker.result() for worker in crew if worker.done()][len(taken) :] == others
    for key in (*others, taken[0]):
        queue.done(key)
    crew.append(asyncio.create_task(queue.get()))
    await _turns()
    assert [worker.result().namespace for worker in crew if worker.done()][len(taken) + len(others) :] == ["slow"]
    for worker in crew:
        worker.cancel()


async def test_every_key_has_its_turn_whatever_the_shares() -> None:
    queue, seen = WorkQueue(workers=4), []

    async def work() -> None:
        while True:
            key = await queue.get()
            await asyncio.sleep(0)
            seen.append(key)
            queue.done(key)

    keys = [Key("templates", f"{namespace}/{number}") for namespace in "abc" for number in range(30)]
    queue.add(*keys)
    crew = [asyncio.create_task(work()) for _ in range(4)]
    await idle(queue)
    assert sorted(seen, key=str) == sorted(keys, key=str)
    for worker in crew:
        worker.cancel()


async def _turns() -> None:
    for _ in range(300):
        await asyncio.sleep(0)


async def test_a_key_is_weak_if_only_weak_adds_led_to_it() -> None:
    queue = WorkQueue(firm=True)
    queue.add(A, A, weak=True)
    key = await queue.get()
    assert queue.is_weak(key)
    queue.done(key)
    queue.add(A, weak=True)
    queue.add(A)
    key = await queue.get()
    assert not queue.is_weak(key)
    queue.done(key)
    queue.add(A)
    queue.add(A, weak=True)
    assert not queue.is_weak(await queue.get())
    assert queue.depth == 0


@pytest.mark.parametrize("adds", [(True,), (True, False), (False, True)])
async def test_what_came_while_a_worker_had_it_says_whether_it_is_weak(adds: tuple[bool, ...]) -> None:
    queue = WorkQueue(firm=True)
    queue.add(A)
    key = await queue.get()
    for weak in adds:
        queue.add(A, weak=weak)
    queue.done(key)
    assert queue.is_weak(await queue.get()) == all(adds)


async def test_the_work_on_a_key_that_was_put_aside_goes_on_whatever_comes_weakly() -> None:
    queue = WorkQueue(firm=True)
    queue.add(A)
    key = await queue.get()
    queue.postpone(key, 1)
    queue.add(A, weak=True)
    key = await queue.get()
    assert not queue.is_weak(key)
    queue.done(key)
    assert queue.is_weak(await queue.get())


async def test_a_failure_comes_back_as_an_ordinary_key() -> None:
    queue = WorkQueue(KeyBackoff(asyncio.get_running_loop().time, BackoffSettings(first=0.01)), firm=True)
    queue.add(A, weak=True)
    queue.retry(await queue.get())
    queue.add(A, weak=True)
    assert not queue.is_weak(await asyncio.wait_for(queue.get(), 30))


async def test_a_timer_outlasts_a_weak_look_and_strengthens_one_that_waits() -> None:
    queue = WorkQueue(firm=True)
    queue.add_after(A, 0.01)
    queue.add(A, weak=True)
    queue.done(await queue.get(), is_over=False)
    key = await asyncio.wait_for(queue.get(), 30)
    assert not queue.is_weak(key)
    queue.done(key)
    queue.add(A, weak=True)
    queue.add_after(A, 0.01)
    await asyncio.sleep(0.05)
    assert not queue.is_weak(await queue.get())
    assert queue.depth == 0


@pytest.mark.parametrize("firm", [True, False])
def test_no_timer_and_no_wish_outlasts_its_key(firm: bool) -> None:
    for seed in range(30):
        loop = VirtualLoop()
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(walk(loop, random.Random(seed), firm))
        finally:
            asyncio.set_event_loop(None)
            loop.close()


async def walk(loop: VirtualLoop, dice: random.Random, firm: bool) -> None:
    await Walk(loop, dice, firm).play()


class Walk:
    """Random calls. ``resting``: since when a key is wanted that rests after a long decision."""

    def __init__(self, loop: VirtualLoop, dice: random.Random, firm: bool) -> None:
        self.loop, self.dice, self.firm = loop, dice, firm
        self.queue = WorkQueue(KeyBackoff(loop.time, BackoffSettings(first=0.5, longest=8.0)), firm=firm)
        self.working: set[Key] = set()
        self.meanwhile: set[Key] = set()
        self.resting: dict[Key, float] = {}
        self.added, self.queue.add = self.queue.add, self.add  # type: ignore[method-assign]  # also by timers and rounds

    def add(self, *keys: Key, weak: bool = False, wide: bool = False) -> None:
        if not weak and not wide:
            self.meanwhile |= self.working.intersection(keys)
            held = self.queue._held.keys() & keys if self.firm else ()
            self.resting |= {key: self.loop.time() for key in held if self.queue._wanted.get(key, True)}
        self.added(*keys, weak=weak, wide=wide)

    async def play(self) -> None:
        queue, keys = self.queue, [Key("placement", f"{name}/pod") for name in "abc"]
        for _ in range(150):
            await self.step(self.dice.choice(keys))
            self.check()
        if self.dice.random() < 0.5:
            queue.close()
            assert not self.timers()
            return
        for key in list(self.working):
            self.end(key)
        while not queue.is_quiet or queue._held:
            await asyncio.sleep(10.0)
            while queue.depth:
                self.working.add(key := await queue.get())
                self.end(key)
        left = {name: kept for name, kept in vars(queue).items() if isinstance(kept, dict | set) and kept}
        assert not left | queue._backoff._failures
        assert not self.timers()

    async def step(self, key: Key) -> None:
        queue = self.queue
        match self.dice.randrange(10):
            case 0 | 1:
                queue.add(key)
            case 2:
                queue.add(key, weak=True)
            case 3:
                queue.add(key, wide=True)
            case 4:
                queue.add_after(key, self.dice.random())
            case 5 if queue.depth:
                self.working.add(await queue.get())
            case 6 if key in self.working:
                self.end(key)
            case 7 if key in self.working:
                self.working.remove(key)
                self.meanwhile.discard(key)
                queue.fairness.looked_at(key, 0.1, 0.1)
                queue.retry(key)
            case 8:
                (queue.forget if self.dice.random() < 0.3 else queue.cancel_timer)(key)
            case 9:
                await asyncio.sleep(self.dice.random())

    def end(self, key: Key) -> None:
        self.queue.fairness.looked_at(key, 0.1, 0.1)
        rest = self.dice.choice([0.0, 0.7])
        self.working.remove(key)
        if rest and key in self.meanwhile:
            self.resting[key] = self.loop.time()
        self.meanwhile.discard(key)
        self.queue.done(key, rest)

    def check(self) -> None:
        queue = self.queue
        self.resting = {key: since for key, since in self.resting.items() if key in queue._held}
        assert queue._resting == self.resting
        assert queue._wanted.keys() <= queue._held.keys()
        rounds = [queue.fairness._timer] if queue.fairness._timer is not None else []
        assert self.timers() == {*queue._timers.values(), *queue._held.values(), *rounds}

    def timers(self) -> set[asyncio.TimerHandle]:
        return {it for *_, it in self.loop._timers if not it.cancelled()}


def caused(error: Exception, by: Exception) -> Exception:
    error.__cause__ = by
    return error


def busy() -> KubeError:
    return TooManyRequests(429, "TooManyRequests", "busy")


@pytest.mark.parametrize(
    ("error", "longest"),
    [
        (busy(), 10),
        (Unreachable("no answer"), 10),
        (ServerError(500, "InternalError", "no"), 10),
        (Conflict(409, "Conflict", "changed"), 10),
        (PlacementFailed("the cluster changed"), 10),
        (caused(BindingFailed("cannot bind"), busy()), 10),
        (caused(GenerationFailed("cannot make it"), Unreachable("no answer")), 10),
        (ZeroDivisionError("a bug"), 1000),
        (caused(BindingRefused("cannot bind"), Forbidden(403, "Forbidden", "no")), 1000),
        (caused(GenerationFailed("cannot make it"), Invalid(422, "Invalid", "no")), 1000),
        (caused(BindingFailed("cannot bind"), TooManyRequests(429, "x", "busy", retry_after=30)), 30),
    ],
    ids=str,
)
async def test_a_server_that_may_answer_by_now_is_asked_every_ten_seconds_and_one_that_refuses_ever_more_seldom(
    error: Exception, longest: float
) -> None:
    """Eight failures in a row were followed by 13 s, and 17 by ten minutes, whatever had failed."""
    queue = WorkQueue(KeyBackoff(Clock(), BackoffSettings(first=0.05, longest=1000, rate=10_000)))
    failures, waits = Failures(CollectorRegistry()), []
    retry = queue.retry

    def noted(*given: Any) -> float:
        waits.append(retry(*given))
        return waits[-1]

    queue.retry = noted  # type: ignore[assignment, method-assign]
    for _ in range(20):
        queue.add(A)
        await queue.get()
        failures.report(queue, A, error)
    assert max(waits) == longest
    queue.close()
