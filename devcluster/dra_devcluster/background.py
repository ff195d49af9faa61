"""Tasks and loops beside the caller's own: their end, a loop in a thread, and waiting until something is observed."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


async def cancelled(*tasks: asyncio.Future[Any]) -> None:
    """Cancel the tasks, and return when all have ended. Their errors are dropped."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def in_thread(make: Callable[[], AbstractAsyncContextManager[T]], name: str) -> Iterator[T]:
    """What ``make`` makes, entered and left on a loop of its own in a thread; tasks that are left over are ended."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name=name, daemon=True)
    thread.start()
    try:
        manager = make()
        entered = asyncio.run_coroutine_threadsafe(manager.__aenter__(), loop).result()
        try:
            yield entered
        finally:
            asyncio.run_coroutine_threadsafe(manager.__aexit__(None, None, None), loop).result()
    finally:
        asyncio.run_coroutine_threadsafe(_end_tasks(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _end_tasks() -> None:
    """End what is left on the loop: connections whose TLS handshake is under way belong to no server yet.

    asyncio loses the socket of one whose handshake is ended before it began.
    """
    await _turns()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await cancelled(*others)
    await _turns()


async def _turns() -> None:
    """Some iterations of the loop, in which connections notice their beginning or their end."""
    for _ in range(10):
        await asyncio.sleep(0)


WAIT_POLL_SECONDS = 0.05


def eventually(look: Callable[[], Any], seconds: float = 30.0) -> Any:
    """The first answer of ``look`` that is true. An async test awaits it; a test without a loop is blocked meanwhile.

    ``look`` may be a coroutine function. An AssertionError of it counts as "not yet"; what else it raises is raised.
    After ``seconds`` an AssertionError says what was seen last.
    """
    __tracebackhide__ = True
    waiting = _first(look, seconds)
    return waiting if _in_a_loop() else asyncio.run(waiting)


def _in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def _first(look: Callable[[], Any], seconds: float) -> Any:
    __tracebackhide__ = True
    deadline = time.monotonic() + seconds
    while True:
        try:
            seen = look()
            if inspect.isawaitable(seen):
                seen = await seen
            if seen:
                return seen
        except AssertionError as error:
            seen = error
        if time.monotonic() > deadline:
            raise AssertionError(f"{_named(look)}: not observed within {seconds:g} s; seen last: {seen!r}")
        await asyncio.sleep(WAIT_POLL_SECONDS)


def _named(look: Callable[[], Any]) -> str:
    return getattr(look, "__qualname__", repr(look)).rpartition("<locals>.")[2]
