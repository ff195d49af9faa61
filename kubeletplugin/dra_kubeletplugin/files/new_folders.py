"""The folders of a plugin: can they be used, and away with them if the plugin cannot start.

A mistyped path leaves nothing behind, and a folder that is mounted read-only is an error of the start, not of each
claim.
"""

from __future__ import annotations

import os
import tempfile
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
