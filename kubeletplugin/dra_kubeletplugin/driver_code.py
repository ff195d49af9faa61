"""What comes out of a driver's own code. It may raise anything, and only what ends the task itself ends more than it.

``CancelledError`` is not always a cancellation of ours: a driver that awaits a task of its own which was cancelled
raises it as well, and so does a library that closes a generator with ``GeneratorExit``. Taken for a cancellation it
would end the call without an answer, and the kubelet would wait until its deadline. Taken for a failure it costs the
claim that it is about.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final, TypeVar

from .errors import ClaimError

T = TypeVar("T")
ENDINGS: Final = (asyncio.CancelledError, GeneratorExit)


def is_ending() -> bool:
    """Whether the running task is being cancelled or closed from outside."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop any more: the coroutine is being closed
        return True
    return task is None or task.cancelling() > 0


async def answer_of(call: Awaitable[T]) -> T:
    """What the driver answers. Raises what it raises, and ClaimError for an ending that is its own."""
    try:
        return await call
    except ENDINGS as error:
        if is_ending():
            raise
        raise ClaimError(
            f"the driver raised {type(error).__name__}, although nothing cancelled the call: await tasks of its own "
            "with asyncio.wait, or catch it"
        ) from error


def readable(text: str) -> str:
    """The text as UTF-8 can have it: a lone surrogate, as of a file name that is no UTF-8, becomes an escape."""
    return text.encode("utf-8", "backslashreplace").decode()
