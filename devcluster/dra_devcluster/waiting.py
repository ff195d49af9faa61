"""Waiting in a test until something is observed, instead of sleeping."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

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
