"""A loop in a thread, for callers that have no event loop or block their own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import TypeVar

T = TypeVar("T")


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
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others)
    await _turns()


async def _turns() -> None:
    """Some iterations of the loop, in which connections notice their beginning or their end."""
    for _ in range(10):
        await asyncio.sleep(0)
