"""One decision at a time, in the queue's order; what the decisions call for is carried out concurrently.

A decision is quick and a write is slow, so the dispatcher decides on one key, leaves the writes to a task, and takes
the next key. Decisions never overlap: each sees what the one before has taken. ``most`` bounds the tasks, and with them
how far decisions run ahead of the writes.

A decision that takes too long is postponed (``Postponed``): every shorter one goes first, and before it is taken up
again the dispatcher pauses for as long as the last piece took, so that hard problems get half of the time at most.
A key whose decision took ``spent`` seconds then rests for ``SHARE`` times as long, whatever happens meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from dra_operator.cluster import Key

from .failures import Failures
from .queue import WorkQueue
from .workers import error_of

QUANTUM = 0.02
"""Seconds that one decision may take before others have their turn."""
SHARE = 20.0
"""Seconds of rest per second of deciding: one key gets a twentieth of the time, three seconds a minute."""

FollowUp = Callable[[], Awaitable[None]]


class Decided(NamedTuple):
    """The end of a decision: what to carry out, and the seconds that it took to search."""

    follow_up: FollowUp | None = None
    spent: float = 0.0

    @property
    def rest(self) -> float:
        """Seconds until the key may be decided on again; none for decisions that kept within their turn."""
        return rest_after(self.spent)


class Postponed(NamedTuple):
    """The decision continues later; ``spent`` are its seconds so far."""

    spent: float

    @property
    def level(self) -> int:
        """What took longer comes later."""
        return max(1, int(self.spent / QUANTUM))


def rest_after(spent: float) -> float:
    """Seconds for which a key is left alone after so many seconds of search."""
    return spent * SHARE if spent > QUANTUM else 0.0


class Dispatcher:
    """``run`` works for ever; ``after`` is called after every decision and every follow-up."""

    def __init__(
        self,
        queue: WorkQueue,
        decide: Callable[[str], Awaitable[Decided | Postponed]],
        most: int,
        failures: Failures,
        after: Callable[[], None],
    ) -> None:
        self._queue, self._decide = queue, decide
        self._failures, self._after = failures, after
        self._slots = asyncio.Semaphore(most)
        self._postponed: set[Key] = set()
        self.started = asyncio.Event()

    async def run(self) -> None:
        """Decide for ever; ends only by cancellation, and ends what is being carried out."""
        async with asyncio.TaskGroup() as group:
            self.started.set()
            while True:
                await self._slots.acquire()
                await self._next(group)

    async def _next(self, group: asyncio.TaskGroup) -> None:
        key = await self._queue.get()
        await asyncio.sleep(QUANTUM if key in self._postponed else 0)  # one decision per turn of the loop
        self._postponed.discard(key)
        try:
            decided = await self._decide(key.object)
        except Exception as error:
            self._finish(key, error)
            return
        if isinstance(decided, Postponed):
            self._slots.release()
            self._postponed.add(key)
            self._queue.postpone(key, decided.level)
        elif decided.follow_up is None:
            self._finish(key, None, decided.rest)
        else:
            group.create_task(self._carry_out(key, decided.follow_up(), decided.rest), name=str(key))
        self._after()

    async def _carry_out(self, key: Key, work: Awaitable[None], rest: float) -> None:
        self._finish(key, await error_of(work), rest)
        self._after()

    def _finish(self, key: Key, error: Exception | None, rest: float = 0.0) -> None:
        self._slots.release()
        self._failures.report(self._queue, key, error, rest)
