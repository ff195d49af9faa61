"""A process of the plugin: what it does belongs to it, and ends with it.

It runs ``serve``, as the command of a driver does. A killed process does nothing any more, not even what it has left to
clean up; the kernel closes its sockets and drops its locks.
"""

from __future__ import annotations

import asyncio
import fcntl
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import copy_context

from dra_kubeletplugin import KubeletPlugin
from history_kit.clock import OWNER, VirtualLoop

END_SECONDS = 15.0  # from the signal until a process that is still there is ended (``dra_kubeletplugin.process``)


class Killed(BaseException):
    """The process is no more."""


class Process:
    """``main`` is what it does, ``ended`` is told when it is gone, with what it raised. ``name`` is for the trace,
    ``known`` are the adapters that its driver knows."""

    def __init__(
        self,
        name: str,
        main: Callable[[Process], Coroutine[None, None, None]],
        ended: Callable[[Process, BaseException | None], None],
        known: tuple[str, ...],
    ) -> None:
        self.name, self.known = name, known
        self.is_dead = False
        self.gone = asyncio.Event()
        self.has_signal = False
        self.calls = 0
        """Calls of its driver that are under way."""
        self.plugin: KubeletPlugin | None = None
        self.stopped: asyncio.Event | None = None
        self.locks: set[int] = set()
        """Descriptors of lock files."""
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        assert isinstance(self._loop, VirtualLoop)
        self._outside = copy_context()
        self.context = copy_context()
        self.context.run(OWNER.set, self)
        self._operations_left = 0
        self._threads_until = 0.0
        self._task = self._loop.create_task(main(self), context=self.context)
        self._task.add_done_callback(self._done, context=self._outside)

    @classmethod
    def present(cls) -> Process:
        """The one whose code runs."""
        process = OWNER.get()
        assert isinstance(process, cls)
        return process

    def kill(self, operations: int = 0) -> None:
        """It is killed at the next file operation but so many; at once if 0."""
        if operations:
            self._operations_left = operations
        else:
            self._die(Killed())

    def end(self) -> None:
        """It gets a signal."""
        self.has_signal = True
        if self.stopped is None:  # it has no handler yet
            self.kill()
        else:
            self.stopped.set()
            self._loop.call_later(END_SECONDS, self.kill, context=self._outside)

    def thread(self, seconds: float, work: Callable[[], None]) -> asyncio.Future[None]:
        """Work that takes so long in a thread: it is done, although its caller was cancelled."""
        future: asyncio.Future[None] = self._loop.create_future()

        def finish() -> None:
            work()
            if not future.done():
                future.set_result(None)

        self._loop.call_later(seconds, finish, context=self.context)
        self._threads_until = max(self._threads_until, self._loop.time() + seconds)
        return future

    def operates(self, *, is_change: bool) -> None:
        """It is about to do something with a file. Raises Killed."""
        if self.is_dead:
            raise Killed
        if is_change and self._operations_left:
            self._operations_left -= 1
            if not self._operations_left:
                self._die(Killed())
                raise Killed

    def _done(self, task: asyncio.Task[None]) -> None:
        """Python waits for the threads, for a while."""
        error = None if task.cancelled() else task.exception()
        seconds = min(END_SECONDS, self._threads_until - self._loop.time())
        if seconds > 0:
            self._loop.call_later(seconds, self._die, error, context=self._outside)
        else:
            self._die(error)

    def _die(self, error: BaseException | None) -> None:
        if self.is_dead:
            return
        self.is_dead = True
        self._loop.pause(self)  # type: ignore[attr-defined]  # a VirtualLoop, as said above
        for descriptor in self.locks:
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
        self._loop.call_soon(self.gone.set, context=self._outside)
        self._loop.call_soon(self._ended, self, error, context=self._outside)
