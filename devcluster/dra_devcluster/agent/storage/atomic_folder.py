"""A folder of files that all change in one step, laid out as a kubelet does it.

::

    ca.crt -> ..data/ca.crt
    ..data -> ..2026_01_02_1
    ..2026_01_02_1/ca.crt

Programs that watch such a volume watch the link ``..data``, which is replaced as a whole.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_DATA = "..data"


class File(NamedTuple):
    """What one file holds, and its permissions."""

    content: bytes
    mode: int


def write_folder(folder: Path, files: Mapping[str, File]) -> None:
    """Make the folder show exactly these files, given by relative path; nothing happens if it does already.

    Raises OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    old = _target(folder)
    if old is not None and _read(old) == dict(files):
        return
    version = folder / f"..{time.strftime('%Y_%m_%d')}_{time.time_ns()}"
    for path, file in files.items():
        place = version / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(file.content)
        place.chmod(file.mode)
    version.mkdir(exist_ok=True)
    link = folder / f"{_DATA}_tmp"
    link.unlink(missing_ok=True)
    link.symlink_to(version.name)
    os.replace(link, folder / _DATA)
    _link_names(folder, {path.partition("/")[0] for path in files})
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)


def _target(folder: Path) -> Path | None:
    with suppress(OSError):
        return folder / os.readlink(folder / _DATA)
    return None


def _read(version: Path) -> dict[str, File]:
    return {
        str(path.relative_to(version)): File(path.read_bytes(), path.stat().st_mode & 0o7777)
        for path in version.rglob("*")
        if path.is_file()
    }


def _link_names(folder: Path, names: set[str]) -> None:
    """The names that users see; those of files that are gone go as well."""
    for path in folder.iterdir():
        if path.is_symlink() and path.name != _DATA and path.name not in names:
            path.unlink()
    for name in sorted(names):
        with suppress(FileExistsError):
            (folder / name).symlink_to(f"{_DATA}/{name}")
