"""The sockets of plugins: which there are, and how the node notices new ones.

Which plugin sockets there are, and which of them are registered (KM-02, KM-03).

*Desired* is the content of the directory: each socket, with a new identity when it is created again. *Actual* is what
has been registered, and under which identity. Every tick compares the two: it unregisters what is gone or was created
again, then registers what is new. No I/O here.

Notices when plugin sockets appear in the registration directory or vanish (KM-01).

The directory and everything below it is watched with inotify, and walked once after the watches stand. Where
inotify is missing (or its queue overflowed), every ``rescan`` repeats the walk and compares inode and time of creation,
so a socket that was created again is noticed there too, only later.
"""

from __future__ import annotations

import asyncio
import os
import stat
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from dra_devcluster.agent.plugins.folder_events import FolderEvents
from dra_devcluster.agent.settings import Backoff


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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        """An entry appeared, or is gone."""
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
