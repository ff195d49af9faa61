"""Several workers on one queue: each takes a key, hands it to its concern's reconciler, and reports back.

Whatever a reconciler raises, the key comes back after its back-off and the worker goes on: an object that cannot be
handled costs its own retries and nobody else's time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from dra_kube import Conflict, KubeError

from dra_operator.cluster import Concern, Key

from .errors import PlacementFailed, ReconcileError
from .queue import WorkQueue

logger = logging.getLogger(__name__)

Handler = Callable[[str], Awaitable[None]]


class Workers:
    """``run`` works for ever; ``after`` is called after every handled key; ``started`` is set when all are there."""

    def __init__(
        self, queue: WorkQueue, handlers: Mapping[Concern, Handler], count: int, after: Callable[[], None]
    ) -> None:
        self._queue, self._handlers, self._count, self._after = queue, handlers, count, after
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
            error = await self._handle(key)
            if error is None:
                self._queue.done(key)
            else:
                _tell(key, error, self._queue.retry(key))
            self._after()

    async def _handle(self, key: Key) -> Exception | None:
        try:
            await self._handlers[key.concern](key.object)
        except Exception as error:
            return error
        return None


def _tell(key: Key, error: Exception, seconds: float) -> None:
    if isinstance(error, Conflict | PlacementFailed):
        logger.debug("%s: %s; again in %.3g s", key, error, seconds)
    elif isinstance(error, KubeError | ReconcileError):
        logger.warning("%s: %s; again in %.3g s", key, error, seconds)
    else:
        logger.error("%s: unexpected %r; again in %.3g s", key, error, seconds, exc_info=error)
