"""The sockets of plugins: existing and registered ones, and how the node notices new ones (KM-01 to KM-03).

*Desired* is the content of the directory: each socket, with a new identity when it is created again. *Actual* are the
registered sockets with their identities. Every tick compares the two. It unregisters sockets that are gone or were
created again, then registers new ones.

The directory and everything below it is watched with inotify, by one instance for all nodes of a loop, because a user
may have only 128; it is walked once after the watches stand. Where inotify is missing, at a limit, or its queue
overflowed, the log says so once, and every ``rescan`` repeats the walk and compares inode and time of creation.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import stat
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, Self
from weakref import WeakKeyDictionary

from dra_api.command_line import shell

from dra_devcluster.agent.settings import Backoff

try:
    import inotify_simple  # type: ignore[import-untyped]  # the library ships no types
except ImportError:  # not a Linux system
    inotify_simple = None

logger = logging.getLogger(__name__)
_LIMITS: Final = {
    errno.EMFILE: "fs.inotify.max_user_instances=1024",
    errno.ENOSPC: "fs.inotify.max_user_watches=524288",
}
"""The limit behind an error, with a value that is enough."""


class FolderWatcher(Protocol):
    """A subscriber to changes."""

    def changed(self, path: Path, *, is_gone: bool, is_folder: bool) -> None:
        """The entry appeared, or it is gone."""

    def missed(self) -> None:
        """Changes were lost."""


class FolderEvents:
    """The inotify instance of one loop, shared by its watchers."""

    def __init__(self, inotify: Any) -> None:
        self._inotify = inotify
        self._folders: dict[int, dict[FolderWatcher, Path]] = {}
        self._watchers: set[FolderWatcher] = set()
        self._has_warned = False

    @staticmethod
    def join(watcher: FolderWatcher) -> FolderEvents | None:
        """Those of this loop; None where they cannot be had. The watcher leaves when it ends."""
        loop = asyncio.get_running_loop()
        if inotify_simple is None:
            return None
        if loop not in _of_loop:
            try:
                _of_loop[loop] = FolderEvents(inotify_simple.INotify(nonblocking=True))
            except OSError as error:
                _of_loop[loop] = None
                _warn(error)
        events = _of_loop[loop]
        if events is not None:
            if not events._watchers:
                loop.add_reader(events._inotify.fd, events._read)
            events._watchers.add(watcher)
        return events

    def watch(self, folder: Path, watcher: FolderWatcher) -> bool:
        """Tell the watcher of changes in the folder; False if it has to look itself. Raises OSError."""
        flags = inotify_simple.flags
        mask = flags.CREATE | flags.DELETE | flags.MOVED_FROM | flags.MOVED_TO | flags.ONLYDIR
        try:
            number = self._inotify.add_watch(folder, mask)
        except OSError as error:
            if error.errno not in _LIMITS:
                raise
            if not self._has_warned:
                _warn(error)
            self._has_warned = True
            return False
        self._folders.setdefault(number, {})[watcher] = folder
        return True

    def leave(self, watcher: FolderWatcher) -> None:
        """Tell the watcher nothing more; the last one ends the instance."""
        self._watchers.discard(watcher)
        for number, watchers in list(self._folders.items()):
            if watchers.pop(watcher, None) is not None and not watchers:
                del self._folders[number]
                with contextlib.suppress(OSError):  # the folder is gone
                    self._inotify.rm_watch(number)
        if not self._watchers:
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._inotify.fd)
            self._inotify.close()
            del _of_loop[loop]

    def _read(self) -> None:
        flags = inotify_simple.flags
        for event in self._inotify.read(timeout=0):
            if event.mask & flags.Q_OVERFLOW:
                for watcher in self._watchers:
                    watcher.missed()
            elif event.mask & flags.IGNORED:
                self._folders.pop(event.wd, None)
            else:
                is_gone, is_folder = event.mask & (flags.DELETE | flags.MOVED_FROM), event.mask & flags.ISDIR
                for watcher, folder in list(self._folders.get(event.wd, {}).items()):
                    watcher.changed(folder / event.name, is_gone=bool(is_gone), is_folder=bool(is_folder))


_of_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, FolderEvents | None] = WeakKeyDictionary()


def _warn(error: OSError) -> None:
    limit = _LIMITS.get(error.errno or 0)
    remedy = f"; to allow more, run {shell('sudo', 'sysctl', limit)}" if limit else ""
    logger.warning("inotify is unavailable (%s): looking for plugin sockets once a period instead%s", error, remedy)


@dataclass(slots=True)
class _Failures:
    count: int = 0
    not_before: float = 0.0


@dataclass(frozen=True, slots=True)
class Registered:
    """An entry of the actual state: which socket of that path, and what it said about itself."""

    identity: uuid.UUID
    type: str
    name: str
    endpoint: str


@dataclass(slots=True)
class PluginSockets:
    """Desired and actual state, operations in progress and failures, all by socket path."""

    backoff: Backoff
    desired: dict[str, uuid.UUID] = field(default_factory=dict)
    actual: dict[str, Registered] = field(default_factory=dict)
    busy: set[str] = field(default_factory=set)
    _failures: dict[str, _Failures] = field(default_factory=dict)

    def created(self, path: str) -> None:
        """A socket appeared at the path, maybe in place of an older one."""
        self.desired[path] = uuid.uuid4()

    def removed(self, path: str) -> None:
        """The socket is gone, or the directory it was in."""
        for known in [known for known in self.desired if known == path or known.startswith(f"{path}/")]:
            del self.desired[known]

    def failed(self, path: str, now: float) -> None:
        """An operation failed: the next attempt waits longer each time."""
        failures = self._failures.setdefault(path, _Failures())
        failures.count += 1
        failures.not_before = now + self.backoff.pause(failures.count)

    def succeeded(self, path: str) -> None:
        """An operation succeeded: the path's failures are forgotten."""
        self._failures.pop(path, None)

    def to_unregister(self, now: float) -> list[str]:
        """Paths whose registration is outdated."""
        stale = (path for path, known in self.actual.items() if self.desired.get(path) != known.identity)
        return [path for path in stale if self._may_start(path, now)]

    def to_register(self, now: float) -> list[str]:
        """Paths that wait for registration."""
        waiting = (path for path in self.desired if path not in self.actual)
        return [path for path in waiting if self._may_start(path, now)]

    def _may_start(self, path: str, now: float) -> bool:
        failures = self._failures.get(path)
        return path not in self.busy and (failures is None or now >= failures.not_before)


Identity = tuple[int, int, int]


class SocketWatcher:
    """Feeds ``PluginSockets`` with the sockets below one directory; an async context manager.

    ``news`` is set when a socket appeared or vanished.
    """

    def __init__(self, directory: Path, sockets: PluginSockets) -> None:
        self.news = asyncio.Event()
        self._directory = directory
        self._sockets = sockets
        self._known: dict[str, Identity] = {}
        self._events: FolderEvents | None = None
        self._complete = False

    async def __aenter__(self) -> Self:
        self._directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        self._events = FolderEvents.join(self)
        self._complete = self._events is not None
        self._walk(self._directory)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._events is not None:
            self._events.leave(self)

    def rescan(self) -> None:
        """Walk the directory again if events may have been missed; cheap to call at every tick."""
        if self._complete:
            return
        self._complete = self._events is not None
        seen = self._walk(self._directory)
        for path in [path for path in self._known if path not in seen]:
            self._gone(Path(path))

    def missed(self) -> None:
        """Events were lost: the next ``rescan`` walks."""
        self._complete = False

    def changed(self, path: Path, *, is_gone: bool, is_folder: bool) -> None:
        if is_gone:
            self._gone(path)
        elif is_folder:
            self._walk(path)
        else:
            self._known.pop(str(path), None)
            self._look(path)

    def _walk(self, folder: Path) -> set[str]:
        """Watch a directory, then look at what it holds; returns the sockets found."""
        found: set[str] = set()
        try:
            if self._events is not None and not self._events.watch(folder, self):
                self._complete = False
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
            self.news.set()
        return True

    def _gone(self, path: Path) -> None:
        prefix = f"{path}/"
        for known in [known for known in self._known if known == str(path) or known.startswith(prefix)]:
            del self._known[known]
        self._sockets.removed(str(path))
        self.news.set()
