"""The folders of a plugin: made when it starts, and noticed when somebody else removes or replaces them.

People clean up a node, mount a disk over a folder, or bring one back from a backup. A folder that is there again says
nothing of the claims that the old one knew: their containers still run. So a plugin must tell its own folder from
another one of the same name (``HeldFolder``), and its files from files that are gone (``KeptFiles``). It has all in
memory that it needs to write them again, as long as its process lives.
"""

from __future__ import annotations

import os
import stat
import tempfile
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType


class NewFolders:
    """Left with an error, removes those of the folders, and of their parents, that were missing and are empty."""

    def __init__(self, *folders: Path) -> None:
        chains = [folder for path in folders for folder in (path, *path.parents)]
        self._missing = [folder for folder in dict.fromkeys(chains) if not os.path.exists(folder)]

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            for folder in sorted(self._missing, key=lambda path: len(path.parts), reverse=True):
                with suppress(OSError):  # not there, or not empty: another instance uses it
                    folder.rmdir()


def check_writable(folder: Path) -> None:
    """Raise OSError, which names the folder, if no file can be made in it. Its own has no name, or a hidden one."""
    with tempfile.TemporaryFile(prefix=".", dir=folder):
        pass


class HeldFolder:
    """The folder at ``path`` in the moment in which it is held first, also if another one is there later.

    Its number says which one it is only as long as it is open: a file system gives the number of a removed folder to
    the next one.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._identity: tuple[int, int] | None = None
        self._close: Callable[[], object] = lambda: None

    def hold(self) -> None:
        """Hold the folder that is there now. Raises OSError."""
        self.release()
        descriptor = os.open(self._path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._close = weakref.finalize(self, os.close, descriptor)
        found = os.fstat(descriptor)
        self._identity = found.st_dev, found.st_ino

    @property
    def is_held(self) -> bool:
        """Whether it is known which folder it is."""
        return self._identity is not None

    def release(self) -> None:
        """Let go of the folder. Harmless when it is not held."""
        self._identity = None
        self._close()

    def is_in_place(self) -> bool:
        """Return whether the folder is at its path. One that was not held yet is held from now on."""
        try:
            found = os.stat(self._path)
        except OSError:
            return False
        if self._identity is None:
            with suppress(OSError):  # without a free descriptor it is held later
                self.hold()
            return stat.S_ISDIR(found.st_mode)
        return (found.st_dev, found.st_ino) == self._identity


class KeptFiles:
    """The files of prepared claims, as this process has written or found them."""

    def __init__(self) -> None:
        self._paths: dict[str, frozenset[Path]] = {}  # by claim

    def add(self, uid: str, path: Path) -> None:
        """Take note of a file of a claim, before it is written: also one that could not be written is missed."""
        self._paths[uid] = self._paths.get(uid, frozenset()) | {path}

    def forget(self, uid: str) -> None:
        """Miss no file of a claim any more."""
        self._paths.pop(uid, None)

    def lost(self) -> set[str]:
        """Return the claims of which a file is gone."""
        return {uid for uid, paths in list(self._paths.items()) if not all(map(os.path.isfile, paths))}
