"""Waiting for what a driver does, with a finding when it does not come."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from dra_driver_test.errors import Finding

from .limits import Limits

T = TypeVar("T")
ATTEMPTS = 3


async def eventually(what: str, look: Callable[[], Awaitable[T | None]], seconds: float, limits: Limits) -> T:
    """The first answer that is neither None nor False. Raises Finding after so many seconds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        seen = await look()
        if seen is not None and seen is not False:
            return seen
        if loop.time() > deadline:
            raise Finding(f"{what}: not within {seconds:g} s")
        await asyncio.sleep(limits.tick)


async def attempts(work: Callable[[], Awaitable[object]]) -> None:
    """Do the work again when it found something, as a busy machine may be the reason. Raises the last Finding."""
    for number in range(ATTEMPTS):
        try:
            await work()
        except Finding:
            if number == ATTEMPTS - 1:
                raise
        else:
            return
