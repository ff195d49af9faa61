"""Waiting for a condition instead of sleeping for a time, and work beside a block."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from dra_kube import NotFound

T = TypeVar("T")


class NotObserved(AssertionError):
    """What a test waited for did not come; the message has the last thing that was seen instead."""


def _now() -> float:
    """The time of the loop, which may be a virtual one."""
    return asyncio.get_running_loop().time()


async def until(what: str, look: Callable[[], Awaitable[T | None]], seconds: float = 60.0) -> T:
    """The first answer of ``look`` that is neither None nor False. Raises NotObserved."""
    began = _now()
    deadline = began + seconds
    last: T | AssertionError | None = None
    while True:
        try:
            last = seen = await look()
            if seen is not None and seen is not False:
                return seen
        except AssertionError as error:
            last = error
        if _now() > deadline:
            raise NotObserved(f"{what}: not observed within {seconds:.0f} s, but {last!r}")
        # Each look is a request: who waits long looks less often, and leaves the processors to others.
        await asyncio.sleep(min(0.4, 0.05 + (_now() - began) / 10))


async def gone(what: str, get: Callable[[], Awaitable[object]], seconds: float = 60.0) -> None:
    """Wait until ``get`` raises NotFound. Raises NotObserved."""

    async def is_gone() -> bool:
        try:
            await get()
        except NotFound:
            return True
        return False

    await until(f"{what} gone", is_gone, seconds)


async def becomes(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait until a condition about the test's own process or files is true. Raises NotObserved."""
    deadline = _now() + seconds
    while not condition():
        if _now() > deadline:
            raise NotObserved(f"{inspect.getsource(condition).strip()}: not true within {seconds:.0f} s")
        await asyncio.sleep(0.01)


async def stays(what: str, look: Callable[[], Awaitable[Any]], seconds: float) -> None:
    """``look`` answers something true all the time. Raises NotObserved at the first answer that is not."""
    deadline = _now() + seconds
    while _now() < deadline:
        seen = await look()
        if not seen:
            raise NotObserved(f"{what}: did not stay so, but {seen!r}")
        await asyncio.sleep(0.1)


@asynccontextmanager
async def meanwhile(*work: Coroutine[Any, Any, object]) -> AsyncIterator[None]:
    """Run the coroutines beside the block until it ends; none may end before. Raises what one of them failed with."""
    tasks = [asyncio.create_task(it) for it in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.result()
                raise AssertionError(f"{task.get_coro()} ended by itself")
