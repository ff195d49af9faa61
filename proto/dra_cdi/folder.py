"""A folder of files as a runtime reads it: ``.json`` and ``.yaml``, folders and other names left alone.

All devices of all files, and what ids mean together. No I/O.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from dra_cdi.edits import ContainerEdits
from dra_cdi.names import CdiError
from dra_cdi.spec import CdiSpec, decode

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


@dataclass(slots=True)
class CdiIndex:
    """``devices`` by id; ``errors`` by the name of the file that cannot be used."""

    devices: dict[str, tuple[CdiSpec, ContainerEdits]] = field(default_factory=dict)
    conflicts: set[str] = field(default_factory=set)
    errors: dict[str, CdiError] = field(default_factory=dict)

    def add(self, spec: CdiSpec) -> None:
        """Take in a file. A device that two files describe cannot be resolved."""
        for device in spec.devices:
            key = f"{spec.kind}={device.name}"
            if key in self.devices:
                self.conflicts.add(key)
            self.devices[key] = (spec, device.container_edits)

    def resolve(self, ids: Iterable[str]) -> ContainerEdits:
        """The edits for these devices together: a file's own edits once, then each device's.

        Raises CdiError, which names the devices that cannot be resolved and the files that could not be read.
        """
        ids = list(dict.fromkeys(ids))
        missing = [key for key in ids if key not in self.devices or key in self.conflicts]
        if missing:
            broken = "".join(f"; {file}: {error}" for file, error in sorted(self.errors.items()))
            twice = [key for key in missing if key in self.conflicts]
            clash = f"; described by several files: {', '.join(twice)}" if twice else ""
            raise CdiError(f"unresolvable CDI devices {', '.join(missing)}{clash}{broken}")
        edits = ContainerEdits()
        seen: list[CdiSpec] = []
        for key in ids:
            spec, device_edits = self.devices[key]
            if not any(spec is other for other in seen):
                seen.append(spec)
                edits += spec.container_edits or ContainerEdits()
            edits += device_edits
        return edits
