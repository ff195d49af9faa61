"""Whose turn it is: within a process, between instances, and after a call was given up (PH-07, PH-10)."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from dra_kubeletplugin.lock import Turns
from waiting import becomes


async def test_an_instance_with_many_calls_does_not_keep_another_one_out(tmp_path: Path) -> None:
    busy, other = (Turns(serialize=True, file=tmp_path / "lock") for _ in range(2))
    order: list[str] = []
    done = False

    async def work(name: str) -> None:
        order.append(name)
        await asyncio.sleep(0.003)  # between two works the file is free for a moment only

    async def caller() -> None:
        while not done:
            await busy.run("busy", (), lambda: work("busy"))

    callers = [asyncio.create_task(caller()) for _ in range(4)]
    waits = []
    for _ in range(8):
        asked = len(order)
        await becomes(lambda asked=asked: len(order) > asked + 1)  # type: ignore[misc]  # binds the loop variable
        asked = len(order)
        await asyncio.wait_for(other.run("other", (), lambda: work("other")), 30)
        waits.append(order.index("other", asked) - asked)
    done = True
    await asyncio.gather(*callers)
    assert max(waits) <= 3, "the work that ran, and the calls that were before it"


async def test_work_in_a_thread_keeps_the_turn_when_its_call_is_cancelled(tmp_path: Path) -> None:
    first, second = (Turns(serialize=True, file=tmp_path / "lock") for _ in range(2))
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


async def test_an_error_of_work_that_nothing_waits_for_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    turns = Turns(serialize=True, file=None)
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

    turns = Turns(serialize=True, file=tmp_path / "missing" / "lock")
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            await turns.run("work", (), work)
