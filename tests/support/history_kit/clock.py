"""A clock of which an hour takes no time, and a coroutine that goes by on it."""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import Context, ContextVar, copy_context
from itertools import count
from types import ModuleType
from typing import Any, TypeVar, TypeVarTuple
from unittest import mock

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
OWNER: ContextVar[object] = ContextVar("owner", default=None)
"""Whose process a task, a timer or a callback belongs to; what it starts is the same one's."""


class NothingLeft(Exception):
    """Everything waits, and nothing can end that."""


class _Handle(asyncio.TimerHandle):
    """As asyncio's, without what only debugging needs; every history makes about 800."""

    __slots__ = ()

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: asyncio.AbstractEventLoop,
        context: Context | None,
    ) -> None:
        self._when, self._scheduled = when, False
        self._callback, self._args, self._loop = callback, args, loop
        self._context = copy_context() if context is None else context
        self._cancelled, self._repr, self._source_traceback = False, None, None


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs coroutines and timers as any loop does; knows no files or sockets."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._soon: list[_Handle] = []
        self._timers: list[tuple[float, int, _Handle]] = []
        self._numbers = count()
        self._tasks: list[asyncio.Task[Any]] = []
        self._held: dict[object, list[_Handle]] = {}
        self.thread_seconds: Callable[[], float] = lambda: 0.002
        """From the moment in which a thread gets work until it is done."""

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._now

    def perf_counter(self) -> float:
        """The same, for those who measure how long they take: they take no time."""
        return self._now

    monotonic = thread_time = perf_counter

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        self._soon.append(handle := _Handle(self._now, callback, args, self, context))
        return handle

    call_soon_threadsafe = call_soon  # of generators that are collected, as there are no threads

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """As every loop; what is due at the same time happens in the order in which it was asked for."""
        handle = _Handle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), handle))
        return handle

    def create_task(self, coro: Coroutine[Any, Any, T], **options: Any) -> asyncio.Task[T]:  # type: ignore[override]  # generators, which no caller has
        task = super().create_task(coro, **options)
        self._tasks.append(task)
        return task

    def run_in_executor(self, executor: Any, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """As every loop, without a thread. Work that was begun is done, although its caller was cancelled."""
        future: asyncio.Future[T] = self.create_future()
        self.call_later(self.thread_seconds(), self._work, future, func, args)
        return future

    @staticmethod
    def _work(future: asyncio.Future[T], func: Callable[..., T], args: tuple[Any, ...]) -> None:
        try:
            result = func(*args)
        except BaseException as error:
            if not future.done():
                future.set_exception(error)
        else:
            if not future.done():
                future.set_result(result)

    def pause(self, owner: object) -> None:
        """Nothing of this owner happens from now on."""
        self._held.setdefault(owner, [])

    def wake(self, owner: object) -> None:
        """What would have happened to it meanwhile happens now, in the same order."""
        self._soon += self._held.pop(owner, ())

    async def end_all(self) -> None:
        """Cancel all other tasks that are not over, and wait for them."""
        for owner in list(self._held):
            self.wake(owner)
        others = [task for task in self._tasks if not task.done() and task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others)

    def _run_once(self) -> None:
        """Everything that is due now. Raises NothingLeft."""
        timers = self._timers
        if not self._soon:
            if not timers:
                raise NothingLeft
            self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            self._soon.append(heapq.heappop(timers)[2])
        due, self._soon = self._soon, []
        for handle in due:
            if self._held and (owner := handle._context.get(OWNER)) in self._held:
                self._held[owner].append(handle)
            elif not handle._cancelled:
                handle._context.run(handle._callback, *handle._args)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


# --- Lets a coroutine go by on a clock of its own, and hears what is logged as an error meanwhile: bugs ---


def in_no_time(
    main: Callable[[], Coroutine[None, None, T]],
    logger: str,
    measuring: Sequence[ModuleType],
    is_passing: Callable[[str], bool],
    level: int = logging.ERROR,
) -> tuple[T, tuple[str, ...]]:
    """What the coroutine returns, and what was logged from a ``level`` on, without what ``is_passing`` knows.

    ``measuring`` are the modules that ask the machine's clock, on which nothing may depend here.
    """
    loop, said = VirtualLoop(), _Complaints(is_passing, level)

    async def run() -> T:
        try:
            return await main()
        finally:
            await loop.end_all()
            await loop.shutdown_asyncgens()

    try:
        asyncio.set_event_loop(loop)
        with _measured_by(loop, measuring), said.heard(logger):
            return loop.run_until_complete(run()), tuple(said.lines)
    finally:
        asyncio.set_event_loop(None)
        loop.close()


@contextmanager
def _measured_by(loop: VirtualLoop, measuring: Sequence[ModuleType]) -> Iterator[None]:
    with ExitStack() as clocks:
        for module in measuring:
            clocks.enter_context(mock.patch.object(module, "time", loop))
        yield


class _Complaints(logging.Handler):
    """What is logged: violated invariants, and bugs."""

    def __init__(self, is_passing: Callable[[str], bool], level: int) -> None:
        super().__init__(level)
        self._is_passing = is_passing
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if not self._is_passing(line := self.format(record)):
            self.lines.append(line)

    @contextmanager
    def heard(self, name: str) -> Iterator[None]:
        logger = logging.getLogger(name)
        level = logger.level
        logger.setLevel(self.level)
        logger.addHandler(self)
        try:
            yield
        finally:
            logger.removeHandler(self)
            logger.setLevel(level)
