"""Waits until connections that are being closed are closed, so that none outlives the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_TURNS = 100
"""Of the event loop, at most; four were enough for each state of a connection that was tried."""


async def until_closed(are_closed: Callable[[], bool]) -> None:
    """Let the event loop turn: transports close their sockets in its next turns, whatever the other side does."""
    for _ in range(_TURNS):
        if are_closed():
            return
        await asyncio.sleep(0)
