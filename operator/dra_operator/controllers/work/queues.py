"""One queue per controller, so that claims that cannot be made do not delay the release of devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dra_operator.cache import Controller, Key

from .queue import WorkQueue


class WorkQueues:
    """Hands each key to the queue of its controller."""

    def __init__(self, queues: Mapping[Controller, WorkQueue]) -> None:
        self._queues = queues

    def of(self, controller: Controller) -> WorkQueue:
        """The queue of one controller."""
        return self._queues[controller]

    def add(self, keys: Iterable[Key]) -> None:
        """Add the keys to their queues."""
        for key in keys:
            self._queues[key.controller].add((key,))

    def add_after(self, key: Key, seconds: float) -> None:
        """As that of the key's queue."""
        self._queues[key.controller].add_after(key, seconds)

    def all(self) -> Mapping[Controller, WorkQueue]:
        """Each controller with its queue."""
        return self._queues

    async def idle(self) -> None:
        """Wait until nothing is ready and no worker is busy in any of them."""
        while not all(queue.is_idle for queue in self._queues.values()):
            for queue in self._queues.values():
                await queue.idle()

    @property
    def is_quiet(self) -> bool:
        """Nothing is to be done, nothing is being done, and no key comes back by itself."""
        return all(queue.is_quiet for queue in self._queues.values())

    def close(self) -> None:
        """Forget all timers."""
        for queue in self._queues.values():
            queue.close()
