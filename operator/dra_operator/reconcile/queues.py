"""One queue per concern: claims that cannot be made must not hold up devices that are to be given back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dra_operator.cluster import Concern, Key

from .queue import WorkQueue


class WorkQueues:
    """Hands each key to the queue of its concern."""

    def __init__(self, queues: Mapping[Concern, WorkQueue]) -> None:
        self._queues = queues

    def of(self, concern: Concern) -> WorkQueue:
        """The queue of one concern."""
        return self._queues[concern]

    def add(self, keys: Iterable[Key]) -> None:
        """Have the keys looked at."""
        for key in keys:
            self._queues[key.concern].add((key,))

    async def idle(self) -> None:
        """Wait until nothing is ready and no worker is busy in any of them."""
        while not all(queue.is_idle for queue in self._queues.values()):
            for queue in self._queues.values():
                await queue.idle()

    @property
    def is_quiet(self) -> bool:
        """Nothing to do, nothing being done, and nothing that comes back by itself."""
        return all(queue.is_quiet for queue in self._queues.values())

    def close(self) -> None:
        """Forget all timers."""
        for queue in self._queues.values():
            queue.close()
