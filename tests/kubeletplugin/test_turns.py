"""Whose turn it is: within a process, between instances, and after a call was given up (PH-07, PH-10)."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import sys
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest
from dra_kubeletplugin import ClaimError
from dra_kubeletplugin.claims import calls
from dra_kubeletplugin.claims.calls import Turns
from waiting import becomes

Work = Callable[[], Awaitable[None]]


def soon(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


async def in_turn(turns: Turns, work: Work) -> None:
    await turns.run("work", (), work)


async def while_deciding(turns: Turns, work: Work) -> None:
    async with turns.deciding():
        await work()


@pytest.mark.parametrize(("serialize", "enter"), [(True, in_turn), (False, while_deciding)], ids=["work", "devices"])
async def test_an_instance_with_many_calls_does_not_keep_another_one_out(
    tmp_path: Path, serialize: bool, enter: Callable[[Turns, Work], Awaitable[None]]
) -> None:
    busy, other = (Turns(serialize=serialize, folder=tmp_path) for _ in range(2))
    order: list[str] = []
    done = False

    async def work(name: str) -> None:
        order.append(name)
        await asyncio.sleep(0.003)  # between two works the file is free for a moment only

    async def caller() -> None:
        while not done:
            await enter(busy, partial(work, "busy"))

    callers = [asyncio.create_task(caller()) for _ in range(4)]
    waits = []
    for _ in range(8):
        asked = len(order)
        await becomes(lambda asked=asked: len(order) > asked + 1)  # type: ignore[misc]  # binds the loop variable
        asked = len(order)
        await asyncio.wait_for(enter(other, partial(work, "other")), 30)
        waits.append(order.index("other", asked) - asked)
    done = True
    await asyncio.gather(*callers)
    assert max(waits) <= 3, "the work that ran, and the calls that were before it"


@pytest.mark.parametrize("serialize", [True, False], ids=["serialised", "one claim at a time"])
async def test_a_call_that_waits_for_work_without_end_says_so_before_the_kubelet_gives_it_up(
    tmp_path: Path, serialize: bool
) -> None:
    """People saw that a deadline was exceeded, and not whose work was in the way."""
    first, second = (Turns(serialize=serialize, folder=tmp_path) for _ in range(2))
    begun, end = asyncio.Event(), asyncio.Event()

    async def hanging() -> None:
        begun.set()
        await end.wait()

    async def quick() -> str:
        return "done"

    call = asyncio.create_task(first.run("prepare of claim default/a", ["a"], hanging))
    await begun.wait()
    with pytest.raises(ClaimError, match="has waited 0 s for prepare of claim default/a, at work for 0 s"):
        await first.run("unprepare of claim default/a", ["a"], quick, until=soon(0.05))
    with pytest.raises(ClaimError, match="has waited 0 s for another instance of the driver; if that does"):
        await second.run("unprepare of claim default/a", ["a"], quick, until=soon(0.05))
    if not serialize:
        assert await first.run("prepare of claim default/b", ["b"], quick, until=soon(30)) == "done"
    end.set()
    await call
    assert await second.run("unprepare of claim default/a", ["a"], quick, until=soon(30)) == "done"


async def test_work_in_a_thread_keeps_the_turn_when_its_call_is_cancelled(tmp_path: Path) -> None:
    first, second = (Turns(serialize=True, folder=tmp_path) for _ in range(2))
    begun, finish = asyncio.Event(), threading.Event()
    order: list[str] = []

    def blocking() -> None:
        finish.wait(30)
        order.append("the thread")

    async def slow() -> None:
        begun.set()
        await asyncio.to_thread(blocking)

    async def quick() -> None:
        order.append("the next")

    call = asyncio.create_task(first.run("slow work", (), slow))
    await begun.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    following = [asyncio.create_task(turns.run("quick work", (), quick)) for turns in (first, second)]
    await asyncio.sleep(0.05)  # time in which they would overtake it
    assert order == []
    finish.set()
    await asyncio.wait_for(asyncio.gather(*following), 30)
    assert order == ["the thread", "the next", "the next"]


@pytest.mark.parametrize("serialize", [True, False], ids=["serialised", "one claim at a time"])
async def test_work_that_a_process_leaves_behind_in_a_thread_keeps_its_turn_while_the_process_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serialize: bool
) -> None:
    """Otherwise the other instance says "unprepared" while this one still prepares."""
    monkeypatch.setattr("dra_kubeletplugin.claims.calls._GRACE_SECONDS", 0.05)
    begun, finish = threading.Event(), threading.Event()

    def blocking() -> None:
        begun.set()
        finish.wait(30)

    async def slow() -> None:
        await asyncio.to_thread(blocking)

    async def ending() -> None:
        first = Turns(serialize=serialize, folder=tmp_path)
        call = asyncio.create_task(first.run("prepare of claim default/a", ["a"], slow))
        await asyncio.to_thread(begun.wait, 30)
        call.cancel()
        await first.stop()

    async def quick() -> None: ...

    process = threading.Thread(target=asyncio.run, args=[ending()])  # to the end of its loop, as a process
    process.start()
    try:
        await asyncio.to_thread(begun.wait, 30)
        other = Turns(serialize=serialize, folder=tmp_path)
        waiting = asyncio.create_task(other.run("unprepare of claim default/a", ["a"], quick))
        await asyncio.sleep(0.5)  # in which the first one has long given up
        assert not waiting.done()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    finally:
        finish.set()
        await asyncio.to_thread(process.join)


async def test_a_driver_that_swallows_its_cancellation_does_not_keep_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dra_kubeletplugin.claims.calls._GRACE_SECONDS", 0.05)
    turns, begun, go = Turns(serialize=True, folder=None), asyncio.Event(), asyncio.Event()

    async def stubborn() -> None:
        begun.set()
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue

    call = asyncio.create_task(turns.run("prepare of claim default/a", (), stubborn))
    await begun.wait()
    await asyncio.wait_for(turns.stop(), 30)
    go.set()
    await call


@pytest.mark.parametrize("reason", [errno.ENOSPC, errno.EROFS], ids=os.strerror)
async def test_on_a_disk_without_room_for_its_lock_file_a_claim_is_worked_on_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: int
) -> None:
    """Unpreparing must be possible there."""
    turns = Turns(serialize=False, folder=tmp_path)

    async def work() -> None: ...

    await turns.run("tidying", (), work)  # as at the start
    opened = os.open

    def full(path: str, flags: int, *more: int, **named: int) -> int:
        is_refused = flags & os.O_RDWR if reason == errno.EROFS else not os.path.exists(path)
        if flags & os.O_CREAT and is_refused:
            raise OSError(reason, os.strerror(reason), path)
        return opened(path, flags, *more, **named)

    monkeypatch.setattr("os.open", full)
    begun, end = asyncio.Event(), asyncio.Event()

    async def holding() -> None:
        begun.set()
        await end.wait()

    first = asyncio.create_task(turns.run("unprepare", ["a"], holding))
    await asyncio.wait_for(begun.wait(), 20)
    second = asyncio.create_task(turns.run("unprepare", ["b"], work))
    await asyncio.sleep(0.05)  # in which it would run
    assert not second.done()
    with pytest.raises(ClaimError, match="0 s for another instance of the driver or unprepare, at work for 0 s; if"):
        await turns.run("unprepare", ["c"], work, until=soon(0.05))
    end.set()
    await asyncio.wait_for(asyncio.gather(first, second), 30)


async def test_work_keeps_its_result_when_the_disk_has_become_read_only_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim's lock file stays, and serves the next call."""

    def refuse(path: Path, missing_ok: bool = False) -> NoReturn:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    async def work() -> str:
        monkeypatch.setattr(Path, "unlink", refuse)
        return "done"

    turns = Turns(serialize=False, folder=tmp_path)
    for _ in range(2):
        assert await asyncio.wait_for(turns.run("unprepare", ["a"], work), 30) == "done"
    assert len([name for name in os.listdir(tmp_path) if name.startswith("claim-")]) == 1


CLAIMS = [
    ("one claim", ["a"], ["a"], False),
    ("two claims", ["a"], ["b"], True),
    ("calls with a claim in common", ["a", "b"], ["c", "b"], False),
    ("a claim, and all claims", ["a"], [], False),
    ("a uid that is no name of a file", ["../a/" + "x" * 300], ["../a/" + "x" * 300], False),
]


@pytest.mark.parametrize(("one", "other", "together"), [c[1:] for c in CLAIMS], ids=[c[0] for c in CLAIMS])
async def test_what_two_instances_may_do_at_once_when_not_serialised(
    tmp_path: Path, one: list[str], other: list[str], together: bool
) -> None:
    old, new = (Turns(serialize=False, folder=tmp_path) for _ in range(2))
    begun, end = asyncio.Event(), asyncio.Event()

    async def holding() -> None:
        begun.set()
        await end.wait()

    async def quick() -> bool:
        return not end.is_set()

    first = asyncio.create_task(old.run("the old instance's", one, holding))
    await begun.wait()
    second = asyncio.create_task(new.run("the new instance's", other, quick))
    await (asyncio.wait_for(asyncio.wait([second]), 30) if together else asyncio.sleep(0.05))  # in which it would run
    end.set()
    await asyncio.wait_for(first, 30)
    assert await asyncio.wait_for(second, 30) is together
    assert set(os.listdir(tmp_path)) <= {"serialize.lock", "serialize.lock.queue"}, "none per claim"


async def test_processes_never_work_on_one_claim_at_once(tmp_path: Path) -> None:
    """The lock of a claim is made and removed all the time, while others wait for it."""
    inside = most = 0

    async def work() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0.001)  # in which another one would come
        inside -= 1

    async def instance() -> None:
        turns = Turns(serialize=False, folder=tmp_path)
        for _ in range(20):
            await turns.run("work", ["a"], work)

    await asyncio.gather(*(instance() for _ in range(4)))
    assert most == 1


async def test_a_claim_is_free_again_when_the_process_that_held_it_is_killed(tmp_path: Path) -> None:
    code = f"""
import asyncio, sys
from pathlib import Path
from typing import NoReturn
from dra_kubeletplugin import ClaimError
from dra_kubeletplugin.claims import calls
from dra_kubeletplugin.claims.calls import Turns
async def work():
    print("holds it", flush=True)
    await asyncio.sleep(600)
asyncio.run(Turns(serialize=False, folder=Path({str(tmp_path)!r})).run("work", ["a"], work))
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    assert process.stdout
    assert await process.stdout.readline() == b"holds it\n"

    killed = False

    async def work() -> bool:
        return killed

    waiting = asyncio.create_task(Turns(serialize=False, folder=tmp_path).run("work", ["a"], work))
    await asyncio.sleep(0.05)  # in which it would overtake the process
    assert not waiting.done()
    killed = True
    process.kill()
    assert await asyncio.wait_for(waiting, 30)
    await process.wait()
    assert set(os.listdir(tmp_path)) == {"serialize.lock", "serialize.lock.queue"}


async def test_an_error_of_work_that_nothing_waits_for_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    turns = Turns(serialize=True, folder=None)
    go = asyncio.Event()

    async def fails() -> None:
        await go.wait()
        raise ZeroDivisionError("no memory left")

    call = asyncio.create_task(turns.run("prepare of claim default/a", (), fails))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    go.set()
    await becomes(lambda: "prepare of claim default/a failed after" in caplog.text)
    assert "Traceback" in caplog.text


async def test_a_lock_file_that_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    async def work() -> None:
        raise AssertionError("must not start")

    (tmp_path / "file").touch()
    turns = Turns(serialize=True, folder=tmp_path / "file")
    for _ in range(2):
        with pytest.raises(NotADirectoryError):
            await turns.run("work", (), work)


async def directly(turns: Turns, uids: list[str]) -> None:
    await turns.run("update", uids, _nothing)


async def in_a_task(turns: Turns, uids: list[str]) -> None:
    await asyncio.gather(directly(turns, uids))


async def in_a_thread(turns: Turns, uids: list[str]) -> None:
    loop = asyncio.get_running_loop()
    await asyncio.to_thread(lambda: asyncio.run_coroutine_threadsafe(directly(turns, uids), loop).result())


async def _nothing() -> None: ...


@pytest.mark.parametrize("serialize", [True, False])
@pytest.mark.parametrize("uids", [["a"], ["b"], []], ids=["its own claim", "another claim", "all claims"])
@pytest.mark.parametrize("ask", [directly, in_a_task, in_a_thread])
async def test_work_that_would_wait_for_itself_is_an_error(
    tmp_path: Path,
    serialize: bool,
    uids: list[str],
    ask: Callable[[Turns, list[str]], Awaitable[None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calls, "_OWN_WORK_SECONDS", 0.05)
    turns = Turns(serialize=serialize, folder=tmp_path)
    waits = serialize or uids != ["b"] or ask is directly

    async def prepare() -> None:
        if waits:
            with pytest.raises(
                ClaimError, match=r"update (cannot|could not) begin .* prepare of a: the driver asked .* has returned"
            ):
                await ask(turns, uids)
        else:
            await ask(turns, uids)  # different claims have turns of their own

    await asyncio.wait_for(turns.run("prepare of a", ["a"], prepare), 30)
    await asyncio.wait_for(directly(turns, uids), 30)  # nothing is held


@pytest.mark.parametrize("serialize", [True, False])
async def test_a_task_that_work_has_started_gets_its_turn_afterwards(tmp_path: Path, serialize: bool) -> None:
    turns = Turns(serialize=serialize, folder=tmp_path)
    order: list[str] = []
    tasks: list[asyncio.Task[None]] = []
    go = asyncio.Event()

    async def later() -> None:
        go.set()
        await turns.run("update", ["a"], update)

    async def update() -> None:
        order.append("update")

    async def prepare() -> None:
        tasks.append(asyncio.create_task(later()))
        await go.wait()
        await asyncio.sleep(0.03)
        order.append("prepare")

    await turns.run("prepare", ["a"], prepare)
    await asyncio.wait_for(tasks[0], 30)
    await asyncio.wait_for(turns.run("update", ["a"], update), 30)
    assert order == ["prepare", "update", "update"]


@pytest.mark.parametrize("serialize", [True, False])
async def test_a_removed_folder_of_lock_files_is_made_again(
    tmp_path: Path, serialize: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Each call failed until the plugin was restarted."""
    folder = tmp_path / "locks"
    folder.mkdir()
    first, second = (Turns(serialize=serialize, folder=folder) for _ in range(2))

    async def quick() -> str:
        async with first.deciding():
            return "done"

    assert await first.run("prepare", ["a"], quick) == "done"
    shutil.rmtree(folder)
    assert await first.run("prepare", ["a"], quick) == "done"
    assert "the folder" in caplog.text
    begun, end = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        begun.set()
        await end.wait()

    shutil.rmtree(folder)
    working = asyncio.create_task(first.run("prepare", ["a"], slow))
    await begun.wait()
    with pytest.raises(ClaimError, match="another instance of the driver"):
        await second.run("prepare", ["a"], quick, until=soon(0.1))
    end.set()
    await working
    assert await second.run("prepare", ["a"], quick) == "done"


async def test_who_waited_for_a_lock_file_that_was_removed_takes_the_new_one(tmp_path: Path) -> None:
    folder = tmp_path / "locks"
    folder.mkdir()
    first, second, third = (Turns(serialize=True, folder=folder) for _ in range(3))
    ends = [asyncio.Event() for _ in range(3)]
    running: set[int] = set()

    async def work(number: int) -> None:
        running.add(number)
        await ends[number].wait()
        running.remove(number)

    one = asyncio.create_task(first.run("1", ["a"], partial(work, 0)))
    await becomes(lambda: running == {0})
    two = asyncio.create_task(second.run("2", ["a"], partial(work, 1)))
    await asyncio.sleep(0.05)  # it waits for the file
    shutil.rmtree(folder)
    three = asyncio.create_task(third.run("3", ["a"], partial(work, 2)))
    await becomes(lambda: 2 in running)
    ends[0].set()
    await one
    await asyncio.sleep(0.05)
    assert running == {2}, "the second one has the lock of a file that nobody sees any more"
    ends[2].set()
    await becomes(lambda: running == {1})
    ends[1].set()
    await asyncio.gather(two, three)
