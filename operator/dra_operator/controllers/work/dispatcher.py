"""One decision at a time, in the queue's order; what the decisions call for is carried out concurrently.

A decision is quick and a write is slow, so the dispatcher decides on one key, leaves the writes to a task, and takes
the next key. Decisions never overlap: each sees what the one before has taken. ``most`` bounds the tasks, and with
them how far decisions run ahead of the writes. Decisions follow each other without a pause for
``DISPATCH_STRETCH_SECONDS``: with ten thousand pods of which most cannot be decided yet, a pause after each would be
long. Then the event loop has as much time, if it has that much to do. One turn of it would not be enough: Kopf takes
three for each new object, so that a pod would be heard of 15 s after a thousand others.

A decision that takes too long is postponed (``Postponed``): every shorter one goes first, and before it continues the
dispatcher pauses for as long as the last piece took, so that hard problems get at most half of the time. A key whose
decision took ``spent`` seconds then rests for ``rest`` times as long, whatever happens. What a decision takes is
charged to its namespace, and namespaces share the time before pods do: see ``Line``.

Of a thousand pods that a freed device, or the room of a pod, may help the first one takes it. The keys of the others
are weak, and ``is_vain`` says of each at its turn that a decision would be in vain: one look instead of an attempt.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import NamedTuple

from dra_kube import KubeError
from dra_kube.spans import Root, begin

from dra_operator.cache import Key, WeakKey
from dra_operator.controllers.shared.errors import ControllerError
from dra_operator.controllers.shared.logbook import enter_attempt, new_attempt
from dra_operator.controllers.shared.timing import TimeSlices

from .failures import Failures
from .queue import WorkQueue

logger = logging.getLogger(__name__)

DISPATCH_STRETCH_SECONDS = 0.005  # seconds
IDLE_TURN_SECONDS = 0.00001  # seconds; a turn of the event loop in which no other task did anything takes less


class Result(StrEnum):
    """How an attempt ended, in the words of kube-scheduler's metrics."""

    SCHEDULED = "scheduled"
    UNSCHEDULABLE = "unschedulable"
    ERROR = "error"


FollowUp = Callable[[], Awaitable[Result | None]]
"""Returns how the attempt ended, or None if it continues another time."""


class Decided(NamedTuple):
    """The end of a decision: what to carry out, and the seconds that it took to search.

    ``clears_up``: this only clears up what an earlier failure left, and does not end its back-off. Otherwise a write
    that the server never answers would be repeated without a pause. ``waits_for``: why nothing is done for a pod that
    is put off, as a clause about the pod; it says so itself when that lasts.
    """

    follow_up: FollowUp | None = None
    spent: float = 0.0
    clears_up: bool = False
    waits_for: str = ""


NOTHING = Decided()


class Postponed(NamedTuple):
    """The decision continues later; ``spent`` are its seconds so far. ``note``: what to tell people meanwhile."""

    spent: float
    note: Callable[[], Awaitable[None]] | None = None


class _Begun(NamedTuple):
    """An attempt: its id, when it began, its span, and the seconds of search that were charged."""

    attempt: str
    at: float
    trace: Root
    charged: float = 0.0


def _begun(key: Key) -> _Begun:
    attempt = new_attempt()
    return _Begun(attempt, time.perf_counter(), begin("attempt", pod=key.object, attempt=attempt))


async def _turns_of_others() -> None:
    """Let the others on the event loop do what they have to, for as long as decisions took at most."""
    before, end = 0.0, time.perf_counter() + DISPATCH_STRETCH_SECONDS
    now = end - DISPATCH_STRETCH_SECONDS
    while now < end and now - before >= IDLE_TURN_SECONDS:
        before = now
        await asyncio.sleep(0)
        now = time.perf_counter()


class Dispatcher:
    """``run`` works until cancelled; ``after`` is called after every decision and every follow-up.

    ``is_vain`` is asked about weak keys only.
    """

    def __init__(
        self,
        queue: WorkQueue,
        decide: Callable[[str], Awaitable[Decided | Postponed]],
        most: int,
        failures: Failures,
        after: Callable[[], None],
        time_slices: TimeSlices,
        ended: Callable[[Result, float], None],
        is_vain: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._queue, self._decide, self._time_slices, self._is_vain = queue, decide, time_slices, is_vain
        self._failures, self._after, self._ended = failures, after, ended
        """``ended`` gets each attempt's end, and its seconds from the first decision to the last write."""
        self._slots = asyncio.Semaphore(most)
        self._postponed: dict[Key, _Begun] = {}
        self._paused_at = -math.inf
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
        await self._pause(key)
        if isinstance(key, WeakKey):
            if self._is_vain(key.object):
                self._slots.release()
                self._queue.looked_at(key, 0.0)
                self._queue.done(key, is_over=False)
                return
            key = Key(*key)
        begun = self._postponed.pop(key, None) or _begun(key)
        enter_attempt(begun.attempt)
        began = time.perf_counter()
        try:
            with begun.trace.within():
                decided = await self._decide(key.object)
        except Exception as error:
            self._queue.looked_at(key, time.perf_counter() - began)
            self._finish(key, begun, error)
            return
        is_much = self._queue.looked_at(key, time.perf_counter() - began)
        self._charge(key, begun, decided.spent, is_much)
        if isinstance(decided, Postponed):
            self._slots.release()
            self._postponed[key] = begun._replace(charged=decided.spent)
            if decided.note is not None:
                group.create_task(self._tell(key, decided.note()), name=f"note about {key}")
            self._queue.postpone(key, self._time_slices.level(decided.spent))
        elif decided.follow_up is None:
            self._finish(key, begun, None, decided)
        else:
            group.create_task(self._follow_up(key, begun, decided, decided.follow_up()), name=str(key))
        self._after()

    def _charge(self, key: Key, begun: _Begun, spent: float, is_much: bool) -> None:
        """Have the namespace pay for the last piece, unless that was cheap and the namespace has had little else.

        A plan made anew begins with 0 seconds.
        """
        piece = spent - begun.charged if spent >= begun.charged else spent
        if is_much or piece > self._time_slices.cheap:
            self._queue.charge(key, piece)

    async def _tell(self, key: Key, note: Awaitable[None]) -> None:
        """A note that cannot be written is not worth another try: the end of the attempt tells more."""
        try:
            await note
        except (KubeError, ControllerError) as error:
            logger.debug("%s: cannot record why it waits: %s", key, error)

    async def _pause(self, key: Key) -> None:
        if key in self._postponed:
            await asyncio.sleep(self._time_slices.turn)
        elif time.perf_counter() - self._paused_at >= DISPATCH_STRETCH_SECONDS:
            await _turns_of_others()
        else:
            return
        self._paused_at = time.perf_counter()

    async def _follow_up(self, key: Key, begun: _Begun, decided: Decided, work: Awaitable[Result | None]) -> None:
        try:
            with begun.trace.within():
                result = await work
        except Exception as error:
            self._finish(key, begun, error, decided)
        else:
            self._finish(key, begun, None, decided, result)
        self._after()

    def _finish(
        self,
        key: Key,
        begun: _Begun,
        error: Exception | None,
        decided: Decided = NOTHING,
        result: Result | None = None,
    ) -> None:
        self._slots.release()
        begun.trace.end(error)
        result = result if error is None else Result.ERROR
        if result is not None:
            self._ended(result, time.perf_counter() - begun.at)
        rest = self._time_slices.rest_after(decided.spent)
        self._failures.report(self._queue, key, error, rest, is_over=not decided.clears_up)
