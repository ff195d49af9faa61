"""A process of the plugin: what it does belongs to it, and ends with it. ``Disk`` sees each of its file operations.

It runs ``serve``, as the command of a driver does. A killed process does nothing any more, not even what it has left to
clean up; the kernel closes its sockets and drops its locks.

Some file operations fail, and at one the process is killed. Python tells an audit hook of each operation, whichever
function makes it, and an exception of the hook is that of the operation. A hook cannot be removed, so there is one,
which asks ``Disk.present``. Operations of a process that is dead are not done any more: its blocks ``finally`` and
``except`` run, but nothing comes of them, as in a killed one.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

from dra_kubeletplugin import KubeletPlugin
from history_kit.clock import OWNER, VirtualLoop
from history_kit.game import Weather

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


_CHANGES = frozenset({"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.utime", "os.chmod"})
_LOOKS = frozenset({"os.scandir", "os.listdir"})
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Disk:
    """The files below ``root``. ``full`` and ``protected`` are folders in which nothing can be made, or changed.

    In some weathers single operations fail as well.
    """

    present: ClassVar[Disk | None] = None

    def __init__(self, root: Path, weather: Weather) -> None:
        self._weather = weather
        self._odds = 0.03 * weather.chance("disk odds") if weather.chance("disk") < 0.25 else 0.0
        self.root = str(root)
        self.full: set[str] = set()
        self.protected: set[str] = set()

    @contextmanager
    def watched(self) -> Iterator[None]:
        _install()
        Disk.present = self
        try:
            with mock.patch("os.fsync", self._sync):
                yield
        finally:
            Disk.present = None

    def heal(self) -> None:
        """It has room again, and may be written."""
        self.full.clear()
        self.protected.clear()

    def is_disturbed(self) -> bool:
        return bool(self.full or self.protected or (self._odds and not self._weather.is_over))

    def before(self, process: Process, event: str, arguments: tuple[Any, ...]) -> None:
        """An operation of a process. Raises OSError, or Killed."""
        path = arguments[0] if arguments else None
        if not isinstance(path, str | os.PathLike):
            return
        name = str(os.fspath(path))
        if not name.startswith(self.root):
            return
        flags = arguments[2] if event == "open" else 0
        is_change = event in _CHANGES or (event == "open" and bool(flags & _WRITING))
        process.operates(is_change=is_change)
        if is_change:
            self._refuse(name, event, flags)

    def _refuse(self, path: str, event: str, flags: int) -> None:
        self._fail_now_and_then(path)
        if _is_in(path, self.protected):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        if self.full and _is_in(path, self.full):
            makes = event in ("os.mkdir", "os.link") or (flags & os.O_CREAT and not os.path.lexists(path))
            if makes or flags & os.O_TMPFILE == os.O_TMPFILE:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def _fail_now_and_then(self, path: str) -> None:
        if self._odds and self._weather.fate("disk", (("fails", self._odds),)).strike:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    def _sync(self, descriptor: int) -> None:
        if isinstance(process := OWNER.get(), Process):
            process.operates(is_change=True)
            self._fail_now_and_then("")
            if self.full and _is_in(os.readlink(f"/proc/self/fd/{descriptor}"), self.full):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _is_in(path: str, folders: set[str]) -> bool:
    return any(path.startswith(folder) for folder in folders)


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if Disk.present is None or not (event == "open" or event in _CHANGES or event in _LOOKS):
        return
    if isinstance(process := OWNER.get(), Process):
        Disk.present.before(process, event, arguments)


_INSTALLED: list[bool] = []


def _install() -> None:
    if not _INSTALLED:
        sys.addaudithook(_hook)
        _INSTALLED.append(True)
