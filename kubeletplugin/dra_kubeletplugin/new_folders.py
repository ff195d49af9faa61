"""Takes back the folders of a plugin that could not start, so that a mistyped path leaves nothing behind."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from types import TracebackType


class NewFolders:
    """Left with an error, removes those of the folders, and of their parents, that were missing and are empty."""

    def __init__(self, *folders: Path) -> None:
        chains = [folder for path in folders for folder in (path, *path.parents)]
        self._missing = [folder for folder in dict.fromkeys(chains) if not folder.exists()]

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            for folder in sorted(self._missing, key=lambda path: len(path.parts), reverse=True):
                with suppress(OSError):  # not there, or not empty: another instance uses it
                    folder.rmdir()
