"""Sees every file operation of a process of the plugin before it is done: some fail, and at one the process is killed.

Python tells an audit hook of each operation, whichever function makes it, and an exception of the hook is that of the
operation. A hook cannot be removed, so there is one, which asks ``Disk.present``. Operations of a process that is dead
are not done any more: its blocks ``finally`` and ``except`` run, but nothing comes of them, as in a killed one.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

from history_kit.clock import OWNER
from history_kit.game import Weather

from .process import Process

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
        """Meanwhile."""
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
        """Whether something fails."""
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
