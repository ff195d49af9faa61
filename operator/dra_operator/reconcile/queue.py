"""The work queue: level-triggered, one entry per key, one worker per key at a time.

A key that is added while it waits is still one entry; a key that is added while somebody works on it comes back
once he is done. So no change is ever missed, and no object is worked on twice at the same time, whatever the events do.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable

from dra_operator.cluster import Key

from .backoff import Backoff

SOON = 0.1  # seconds


class WorkQueue:
    """``get`` a key, work, then exactly one of ``done`` and ``retry``. Bound to the running event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._backoff = Backoff(self._loop.time)
        self._place_backoff = Backoff.for_placing(self._loop.time)
        self._ready: OrderedDict[Key, None] = OrderedDict()
        self._working: set[Key] = set()
        self._again: set[Key] = set()
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._getters: OrderedDict[asyncio.Future[None], None] = OrderedDict()
        self._idle = asyncio.Event()
        self._idle.set()

    def add(self, keys: Iterable[Key]) -> None:
        """Have the keys looked at as soon as a worker is free."""
        for key in keys:
            self._cancel_timer(key)
            if key in self._working:
                self._again.add(key)
            else:
                self._ready.setdefault(key)
        self._notice()

    def add_after(self, key: Key, seconds: float) -> None:
        """Have the key looked at later, unless it is looked at earlier anyway; the earliest of several times counts."""
        due = self._loop.time() + seconds
        timer = self._timers.get(key)
        if key in self._ready or (timer is not None and timer.when() <= due):
            return
        self._cancel_timer(key)
        self._timers[key] = self._loop.call_later(seconds, self._due, key)
        self._notice()

    async def get(self) -> Key:
        """The next key; waits for one."""
        while not self._ready:
            getter: asyncio.Future[None] = self._loop.create_future()
            self._getters[getter] = None
            try:
                await getter
            except asyncio.CancelledError:
                del self._getters[getter]
                self._notice()  # it may have been called already: let another one go
                raise
            del self._getters[getter]
        key, _ = self._ready.popitem(last=False)
        self._working.add(key)
        self._notice()
        return key

    def done(self, key: Key) -> None:
        """The key was handled; its back-off starts anew."""
        self._backoff_of(key).succeeded(key)
        self._finish(key)

    def retry(self, key: Key) -> float:
        """Handling failed: the key comes back after its back-off. Returns the seconds.

        A change that came in meanwhile may have mended it, so the key comes back sooner then, but never at once:
        a failure whose own traces wake the key would go round for ever.
        """
        seconds = self._backoff_of(key).failed(key)
        if key in self._again:
            self._again.discard(key)
            seconds = min(seconds, SOON)
        self._finish(key)
        self.add_after(key, seconds)
        return seconds

    def failures(self, key: Key) -> int:
        """How often the key failed in a row."""
        return self._backoff_of(key).failures(key)

    async def idle(self) -> None:
        """Wait until nothing is ready and nobody works; keys that wait for their time do not count."""
        await self._idle.wait()

    @property
    def depth(self) -> int:
        """Keys that could be worked on now."""
        return len(self._ready)

    @property
    def is_quiet(self) -> bool:
        """Nothing to do, nothing being done, and nothing that waits for its time."""
        return not (self._ready or self._working or self._timers)

    def close(self) -> None:
        """Forget all timers, so that nothing of the queue outlives the loop."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _backoff_of(self, key: Key) -> Backoff:
        return self._place_backoff if key.concern == "place" else self._backoff

    def _finish(self, key: Key) -> None:
        self._working.discard(key)
        if key in self._again:
            self._again.discard(key)
            self._ready.setdefault(key)
        self._notice()

    def _due(self, key: Key) -> None:
        self._timers.pop(key, None)
        self.add((key,))

    def _cancel_timer(self, key: Key) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    def _notice(self) -> None:
        for getter in list(self._getters)[: len(self._ready)]:
            if not getter.done():
                getter.set_result(None)
        if self._ready or self._working:
            self._idle.clear()
        else:
            self._idle.set()
