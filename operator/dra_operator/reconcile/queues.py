"""One queue per concern, so that claims that cannot be made do not delay the release of devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from dra_operator.cluster import Concern, Key

from .queue import WorkQueue

NAMES: Final[Mapping[Concern, str]] = {
    "pod": "templates",
    "claim": "release",
    "place": "placement",
    "evict": "eviction",
    "rule": "taint-rules",
    "pools": "pool-status",
}
"""The concerns as logs, metrics and ``--concerns`` name them."""


class WorkQueues:
    """Hands each key to the queue of its concern."""

    def __init__(self, queues: Mapping[Concern, WorkQueue]) -> None:
        self._queues = queues

    def of(self, concern: Concern) -> WorkQueue:
        """The queue of one concern."""
        return self._queues[concern]

    def add(self, keys: Iterable[Key]) -> None:
        """Add the keys to their queues."""
        for key in keys:
            self._queues[key.concern].add((key,))

    def add_after(self, key: Key, seconds: float) -> None:
        """As that of the key's queue."""
        self._queues[key.concern].add_after(key, seconds)

    def all(self) -> Mapping[Concern, WorkQueue]:
        """Each concern with its queue."""
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
