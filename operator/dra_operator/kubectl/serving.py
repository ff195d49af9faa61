"""Common parts of the servers of ``ui`` and ``fit --serve``: the newest view of a cluster, and Ctrl-C and SIGTERM.

A question starts the next read if it is time; without questions nothing is read. Reads and questions are worked on in
threads. A thread that reads ends with the process: it waits for an API server, and Ctrl-C waits for nobody. Questions
that try changes on the view and take them back are answered one at a time, in a ``QuestionLine``. A read makes a view
of its own meanwhile.

The line is no queue, since one client with many or large questions would hold up all others. Next is a question of the
client that has used the least time since the line was last empty, and of its questions the smallest. Where too many
wait, the one that would be last is refused. A question ends with its client.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from itertools import count
from typing import Final, Generic, NamedTuple, TypeVar

from dra_api.console import printable

from dra_operator.kubectl.answer import ExitCode, Problem
from dra_operator.kubectl.observed import Observed
from dra_operator.kubectl.snapshot import read


def serve_until_ended(running: AbstractAsyncContextManager[str], hint: str) -> int:
    """The exit code. ``running`` serves inside the block, and gives the address; ``hint`` is printed below that."""
    try:
        with suppress(KeyboardInterrupt):
            asyncio.run(_serve(running, hint))
    except Problem as problem:
        print(printable(f"kubectl dra: {problem}"), file=sys.stderr)
        return int(problem.code)
    return int(ExitCode.CLEAR)


async def _serve(running: AbstractAsyncContextManager[str], hint: str) -> None:
    async def until_cancelled() -> None:
        async with running as address:
            print(f"{address}\n{hint}", flush=True)
            await asyncio.Event().wait()

    serving = asyncio.create_task(until_cancelled())
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
    with suppress(asyncio.CancelledError):
        await serving


V = TypeVar("V")
R = TypeVar("R")
READ_SECONDS: Final = 2.0
"""Between two reads at least; three times as long as the last read took, if that is more."""
MOST_IN_LINE_QUESTIONS: Final = 64
OLDEST_SECONDS: Final = 10.0
"""Age of the view from which on a question waits for the next read."""


class Crowded(Exception):
    """Too many ask at this time."""


class _Place(NamedTuple):
    number: int
    client: str
    size: int
    called: asyncio.Future[None]


class QuestionLine:
    """Gives turns, one at a time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._numbers = count()
        self._waiting: list[_Place] = []
        self._is_taken = False
        self._used: Counter[str] = Counter()

    @asynccontextmanager
    async def turn(self, client: str, size: int, most: int) -> AsyncIterator[None]:
        """Wait for the turn, which the block is. At most ``most`` wait or have it. Raises Crowded."""
        place = _Place(next(self._numbers), client, size, asyncio.get_running_loop().create_future())
        self._join(place, most)
        try:
            await place.called
        except asyncio.CancelledError:
            if place in self._waiting:
                self._waiting.remove(place)
            elif place.called.done() and not place.called.cancelled() and place.called.exception() is None:
                self._call_next()
            raise
        began = self._clock()
        try:
            yield
        finally:
            self._used[client] += round(1000 * (self._clock() - began))
            self._call_next()

    def _join(self, place: _Place, most: int) -> None:
        self._forget_gone()
        here = len(self._waiting) + self._is_taken
        if here >= most:
            last = max((*self._waiting, place), key=self._rank)
            refused = Crowded(f"{here} questions wait: ask again")
            if last is place:
                raise refused
            self._waiting.remove(last)
            last.called.set_exception(refused)
        self._waiting.append(place)
        if not self._is_taken:
            self._call_next()

    def _forget_gone(self) -> None:
        """Take out those whose clients have gone, and whose tasks have not run since."""
        self._waiting = [place for place in self._waiting if not place.called.cancelled()]

    def _rank(self, place: _Place) -> tuple[int, int, int]:
        return self._used[place.client], place.size, place.number

    def _call_next(self) -> None:
        self._forget_gone()
        self._is_taken = bool(self._waiting)
        if self._is_taken:
            chosen = min(self._waiting, key=self._rank)
            self._waiting.remove(chosen)
            chosen.called.set_result(None)
        else:
            self._used.clear()


class NewestView(Generic[V]):
    """``options`` have the arguments of ``add_cluster_arguments``; ``make`` turns what was observed into the view."""

    def __init__(self, options: argparse.Namespace, make: Callable[[Observed], V]) -> None:
        self._options, self._make = options, make
        self.is_live = options.source is None
        self._line = QuestionLine()
        self._reading: asyncio.Task[None] | None = None
        self._next_read = 0.0
        self._read_at = -math.inf
        self._view: V | None = None
        self.problem: Problem | None = None
        """Why the last read failed, if it did."""

    async def start(self) -> None:
        """The first read. Raises Problem."""
        await self._read()
        if self.problem is not None:
            raise self.problem

    async def stop(self) -> None:
        """Wait no more for a read that is under way."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    @property
    def view(self) -> V:
        """What the last good read found."""
        if self._view is None:
            raise RuntimeError("asked before the first read")
        return self._view

    @property
    def age_seconds(self) -> float:
        """Since the last good read began; a snapshot does not age."""
        return time.monotonic() - self._read_at if self.is_live else 0.0

    def renew(self) -> asyncio.Task[None] | None:
        """The read that is under way, or begins since it is time; None if it is not."""
        if self._reading is not None and not self._reading.done():
            return self._reading
        if not self.is_live or time.monotonic() < self._next_read:
            return None
        self._reading = asyncio.create_task(self._read())
        return self._reading

    async def fresh(self) -> Problem | None:
        """Begin the next read if it is time, and wait for it if the view is old.

        Return why the view stays old, if it does.
        """
        reading = self.renew()
        if self.age_seconds <= OLDEST_SECONDS:
            return None
        if reading is not None:
            await asyncio.shield(reading)
        return self.problem

    async def ask(
        self,
        question: Callable[[V, Callable[[], bool]], R],
        client: str = "",
        size: int = 1,
        most: int = MOST_IN_LINE_QUESTIONS,
    ) -> R:
        """Return the answer of the newest view, worked out in a thread once it is the question's turn.

        ``question`` gets the view, and a function that says whether its client is gone: then the answer is not needed.
        ``size``: about how many pods it is about. Raises Crowded.
        """
        async with self._line.turn(client, size, most):
            gone = threading.Event()
            working = asyncio.ensure_future(asyncio.to_thread(question, self.view, gone.is_set))
            try:
                return await asyncio.shield(working)
            except asyncio.CancelledError:
                gone.set()
                while not working.done():  # the view is not for others before
                    with suppress(asyncio.CancelledError):
                        await asyncio.wait((working,))
                if not working.cancelled():
                    working.exception()
                raise

    async def _read(self) -> None:
        began = time.monotonic()
        try:
            self._view = await _in_daemon(lambda: self._make(read(self._options)))
            self._read_at, self.problem = began, None
        except Problem as problem:
            self.problem = problem
        self._next_read = time.monotonic() + max(READ_SECONDS, 3 * (time.monotonic() - began))


async def _in_daemon(work: Callable[[], R]) -> R:
    """Return what ``work`` returns, in a thread for which the end of the process does not wait."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[R] = loop.create_future()

    def tell(result: R | None, error: BaseException | None) -> None:
        if error is not None and not done.done():
            done.set_exception(error)
        elif not done.done():
            done.set_result(result)  # type: ignore[arg-type]  # of ``work``, since there was no error

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except BaseException as raised:
            error = raised
        with suppress(RuntimeError):  # nobody waits any more: the loop is closed
            loop.call_soon_threadsafe(tell, result, error)

    threading.Thread(target=run, name="read", daemon=True).start()
    return await done
