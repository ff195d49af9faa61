"""A folder of files as a runtime reads it: ``.json`` and ``.yaml``, folders and other names left alone."""

from __future__ import annotations

from pathlib import Path

from .errors import CdiError
from .index import CdiIndex
from .spec import CdiSpec
from .text import decode

_FILE_BYTES = 16 * 2**20
"""Bytes of a file. A device takes about 200."""
_Known = tuple[tuple[int, int, int], CdiSpec | CdiError]
"""A file's inode, time and size, and what it said then."""


class CdiDirectory:
    """The files of one folder, read anew when they have changed.

    A file that cannot be used costs only its own devices: a container that asks for one of them gets the error.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._parsed: dict[Path, _Known] = {}

    def index(self) -> CdiIndex:
        """Everything that the folder describes right now; a folder that does not exist describes nothing."""
        files = sorted(self.path.glob("*")) if self.path.is_dir() else []
        known, self._parsed = self._parsed, {}
        index = CdiIndex()
        for file in files:
            if file.suffix not in (".json", ".yaml"):
                continue
            try:
                parsed = self._current(file, known)
            except (FileNotFoundError, IsADirectoryError):
                continue  # removed between listing and reading, or no file
            except OSError as error:
                parsed = CdiError(f"cannot be read: {error}")
            if isinstance(parsed, CdiError):
                index.errors[file.name] = parsed
            else:
                index.add(parsed)
        return index

    def _current(self, file: Path, known: dict[Path, _Known]) -> CdiSpec | CdiError:
        stat = file.stat()
        version = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        cached = known.get(file)
        parsed = cached[1] if cached and cached[0] == version else _read(file)
        self._parsed[file] = (version, parsed)
        return parsed


def _read(file: Path) -> CdiSpec | CdiError:
    try:
        with file.open("rb") as stream:
            content = stream.read(_FILE_BYTES + 1)
        if len(content) > _FILE_BYTES:
            return CdiError(f"the file is larger than {_FILE_BYTES >> 20} MiB: make several files of it")
        return decode(content)
    except CdiError as error:
        return error
