"""What all controllers here are: a task that works off a queue of keys, which follow from changes of the store.

A key that is added twice is handled once.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Generic, Self, TypeVar

from dra_devcluster.apiserver.registry import Registry
from dra_devcluster.apiserver.store import Change, Collection
from dra_devcluster.background import cancelled

K = TypeVar("K")
log = logging.getLogger(__name__)


class Worker(Generic[K]):
    """Runs ``handle`` for every added key, one at a time; an async context manager."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        registry.store.listen(self.see)
        self._keys: dict[K, None] = {}
        self._later: dict[K, asyncio.TimerHandle] = {}
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def add(self, key: K) -> None:
        """Have the key handled soon; again if it is being handled now."""
        self._keys[key] = None
        self._wake.set()

    def add_later(self, key: K, seconds: float) -> None:
        """Have the key handled after ``seconds``, or earlier if an earlier call asked for that."""
        loop = asyncio.get_running_loop()
        due = loop.time() + max(0.0, seconds)
        waiting = self._later.get(key)
        if waiting is not None and waiting.when() <= due:
            return
        if waiting is not None:
            waiting.cancel()
        self._later[key] = loop.call_at(due, self._is_due, key)

    def _is_due(self, key: K) -> None:
        del self._later[key]
        self.add(key)

    def see(self, collection: Collection, change: Change) -> None:
        """Add the keys that a change of the store concerns."""
        raise NotImplementedError

    def handle(self, key: K) -> None:
        """Do what the current state asks for; must be repeatable."""
        raise NotImplementedError

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._keys:
                key = next(iter(self._keys))
                del self._keys[key]
                try:
                    self.handle(key)
                except Exception:  # one broken object must not stop the work on all others
                    log.exception("%s: %s failed", type(self).__name__, key)
                await asyncio.sleep(0)  # requests come first

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name=type(self).__name__)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await cancelled(self._task)
