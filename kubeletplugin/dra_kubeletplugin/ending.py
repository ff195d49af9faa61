"""A process that is to end does end, whatever its driver does.

A thread cannot be stopped, and Python waits for all of them when it ends; a driver may also block the event loop, or
swallow its cancellation. So a thread of its own ends the process after some seconds, with exit code 1, and shows where
each thread is. What was begun keeps its record, and the next process, or the other instance, does it again.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import threading
from collections.abc import Coroutine
from typing import Any

_END_SECONDS = 15.0
"""Half of the time that a kubelet gives to a pod. Stopping takes twice 5 s where work is stuck."""

log = logging.getLogger(__name__)


def end_soon() -> threading.Timer:
    """End the process in a while, unless the answer is cancelled."""
    timer = threading.Timer(_END_SECONDS, _end)
    timer.daemon = True
    timer.start()
    return timer


def run_to_the_end(main: Coroutine[Any, Any, None]) -> None:
    """``asyncio.run``, which does not wait for ever for threads when ``main`` has ended."""
    timers: list[threading.Timer] = []

    async def bounded() -> None:
        try:
            await main
        finally:
            timers.append(end_soon())

    try:
        asyncio.run(bounded())
    finally:
        for timer in timers:
            timer.cancel()


def _end() -> None:
    log.critical(
        "the process should have ended %.0f s ago, but the driver is still at work (stacks below): ending now; the "
        "next process repeats that work",
        _END_SECONDS,
    )
    faulthandler.dump_traceback(all_threads=True)
    os._exit(1)
