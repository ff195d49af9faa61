"""What changes in folders, by inotify: one instance for all nodes of a loop, because a user may have only 128.

Where there is none, or a limit is reached, the log says so once, and watchers have to look by themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
from pathlib import Path
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

from dra_api.command_line import shell

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


class Watcher(Protocol):
    """A subscriber to changes."""

    def changed(self, path: Path, *, is_gone: bool, is_folder: bool) -> None:
        """The entry appeared, or it is gone."""

    def missed(self) -> None:
        """Changes were lost."""


class FolderEvents:
    """The inotify instance of one loop, shared by its watchers."""

    def __init__(self, inotify: Any) -> None:
        self._inotify = inotify
        self._folders: dict[int, dict[Watcher, Path]] = {}
        self._watchers: set[Watcher] = set()
        self._has_warned = False

    @staticmethod
    def join(watcher: Watcher) -> FolderEvents | None:
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

    def watch(self, folder: Path, watcher: Watcher) -> bool:
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

    def leave(self, watcher: Watcher) -> None:
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
