"""Notices when plugin sockets appear in the registration directory or vanish (KM-01).

The directory and everything below it is watched with inotify, and walked once after the watches stand. Where
inotify is missing (or its queue overflowed), every ``rescan`` repeats the walk and compares inode and time of creation,
so a socket that was created again is noticed there too, only later.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .discovery import PluginSockets

try:
    import inotify_simple  # type: ignore[import-untyped]  # the library ships no types
except ImportError:  # not a Linux system
    inotify_simple = None

logger = logging.getLogger(__name__)
Identity = tuple[int, int, int]


class SocketWatcher:
    """Feeds ``PluginSockets`` with the sockets below one directory; an async context manager."""

    def __init__(self, directory: Path, sockets: PluginSockets) -> None:
        self._directory = directory
        self._sockets = sockets
        self._known: dict[str, Identity] = {}
        self._watched: dict[int, Path] = {}
        self._inotify: Any = None
        self._complete = False

    async def __aenter__(self) -> Self:
        self._directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        try:
            self._inotify = inotify_simple.INotify(nonblocking=True) if inotify_simple else None
        except OSError as error:  # the limit of instances per user is reached
            logger.warning("inotify is not available, polling %s instead: %s", self._directory, error)
        if self._inotify is not None:
            asyncio.get_running_loop().add_reader(self._inotify.fd, self._read)
        self._walk(self._directory)
        self._complete = self._inotify is not None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._inotify is not None:
            asyncio.get_running_loop().remove_reader(self._inotify.fd)
            self._inotify.close()

    def rescan(self) -> None:
        """Walk the directory again if events may have been missed; cheap to call at every tick."""
        if self._complete:
            return
        seen = self._walk(self._directory)
        for path in [path for path in self._known if path not in seen]:
            self._gone(Path(path))
        self._complete = self._inotify is not None

    def _read(self) -> None:
        flags = inotify_simple.flags
        for event in self._inotify.read(timeout=0):
            if event.mask & flags.Q_OVERFLOW:
                self._complete = False
                continue
            if event.mask & flags.IGNORED:
                self._watched.pop(event.wd, None)
                continue
            folder = self._watched.get(event.wd)
            if folder is None:
                continue
            path = folder / event.name
            if event.mask & (flags.DELETE | flags.MOVED_FROM):
                self._gone(path)
            elif event.mask & flags.ISDIR:
                self._walk(path)
            else:
                self._known.pop(str(path), None)
                self._look(path)

    def _walk(self, folder: Path) -> set[str]:
        """Watch a directory, then look at what it holds; returns the sockets found."""
        found: set[str] = set()
        try:
            if self._inotify is not None:
                flags = inotify_simple.flags
                mask = flags.CREATE | flags.DELETE | flags.MOVED_FROM | flags.MOVED_TO | flags.ONLYDIR
                self._watched[self._inotify.add_watch(folder, mask)] = folder
            entries = list(os.scandir(folder))
        except OSError:
            return found  # removed in the meantime
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                found |= self._walk(Path(entry.path))
            elif self._look(Path(entry.path)):
                found.add(entry.path)
        return found

    def _look(self, path: Path) -> bool:
        if path.name.startswith("."):
            return False
        try:
            status = path.stat()
        except OSError:
            return False
        if not stat.S_ISSOCK(status.st_mode):
            return False
        identity = (status.st_dev, status.st_ino, status.st_mtime_ns)
        if self._known.get(str(path)) != identity:
            self._known[str(path)] = identity
            self._sockets.created(str(path))
        return True

    def _gone(self, path: Path) -> None:
        prefix = f"{path}/"
        for known in [known for known in self._known if known == str(path) or known.startswith(prefix)]:
            del self._known[known]
        self._sockets.removed(str(path))
