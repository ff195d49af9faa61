"""A thread with an event loop of its own, for what must not wait for a decision: the Lease, probes, the port.

Decisions are Python and hold the interpreter for 5 ms at a time at most, whatever they decide about: another thread has
its turn then. What runs here only reads what the operator's loop writes, or asks that loop (``main_loop``).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")
logger = logging.getLogger(__name__)


class Aside:
    """An async context manager, entered and left on the operator's loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="aside", daemon=True)

    async def __aenter__(self) -> Self:
        self._thread.start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join)

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine that runs there. A cancellation reaches it."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
                self._loop.run_until_complete(asyncio.wait((task,)))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()
