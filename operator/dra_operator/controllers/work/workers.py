"""Several workers on one queue: each takes a key, hands it to the controller, and reports back.

After any error of a controller, the key comes back after its back-off and the worker takes the next one, so that an
object that cannot be handled does not delay others.

Many keys need nothing but a look, which waits for nothing. So a worker pauses after ``WORK_STRETCH_SECONDS`` of such
keys, divided among the workers: ten thousand keys at once do not keep the event loop from other work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from dra_operator.controllers.shared.logbook import enter_attempt, new_attempt

from .failures import Failures
from .queue import WorkQueue

WORK_STRETCH_SECONDS = 0.005  # seconds

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
        resumed = time.perf_counter()
        while True:
            had_to_wait = not self._queue.depth
            key = await self._queue.get()
            if had_to_wait:
                resumed = time.perf_counter()
            enter_attempt(new_attempt())
            self._failures.report(self._queue, key, await error_of(self._handle(key.object)))
            self._after()
            if time.perf_counter() - resumed > WORK_STRETCH_SECONDS / self._count:
                await asyncio.sleep(0)  # with no key in hand: a pause changes the order of no two
                resumed = time.perf_counter()


async def error_of(work: Awaitable[None]) -> Exception | None:
    """The error that the work raised, if any."""
    try:
        await work
    except Exception as error:
        return error
    return None
