"""Several workers on one queue: each takes a key, hands it to the reconciler, and reports back.

After any error of a reconciler, the key comes back after its back-off and the worker takes the next one, so that an
object that cannot be handled does not delay others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from .failures import Failures
from .logbook import enter_attempt, new_attempt
from .queue import WorkQueue

Handler = Callable[[str], Awaitable[None]]


class Workers:
    """``run`` works until cancelled; ``after`` is called after every handled key; ``started`` is set when all workers
    run."""

    def __init__(
        self, queue: WorkQueue, handle: Handler, count: int, failures: Failures, after: Callable[[], None]
    ) -> None:
        self._queue, self._handle, self._count = queue, handle, count
        self._failures, self._after = failures, after
        self.started = asyncio.Event()

    async def run(self) -> None:
        """Start all workers; ends only by cancellation."""
        async with asyncio.TaskGroup() as group:
            for number in range(self._count):
                group.create_task(self._work(), name=f"worker {number}")
            self.started.set()

    async def _work(self) -> None:
        while True:
            key = await self._queue.get()
            enter_attempt(new_attempt())
            self._failures.report(self._queue, key, await error_of(self._handle(key.object)))
            self._after()


async def error_of(work: Awaitable[None]) -> Exception | None:
    """The error that the work raised, if any."""
    try:
        await work
    except Exception as error:
        return error
    return None
