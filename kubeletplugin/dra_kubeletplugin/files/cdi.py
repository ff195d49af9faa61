"""The CDI files of a driver: how a prepared device gets into a container.

``dra_cdi`` knows what a file may say, and refuses what a container runtime would refuse. A file is written under a
hidden name, flushed to the disk and renamed, so that a runtime never reads half of one, even after a power failure.
Its name contains the uid of the claim: unpreparing finds it by that, even after a restart that lost everything else
(TD-02, TD-03). A hidden name is ``.<driver>=<claim uid>-<random>.tmp``: no driver's name has ``=`` in it, so the hidden
files of ``gpu-nic`` are not taken for those of ``gpu``.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec
from dra_cdi import CdiDevice, CdiError, CdiSpec, ContainerEdits, check_kind, encode

from .folders import KeptFiles

CDI_DIR = Path("/var/run/cdi")

_FILE_PART = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_ENDS = (".json", ".tmp")
_ABANDONED_SECONDS: Final = 60.0
"""A hidden file of this age, in seconds, was left by a process that ended while it wrote."""


class _Kind(msgspec.Struct):
    kind: str


class CdiFolder:
    """The CDI files of one driver, named ``<driver>-<claim uid>-<part>.json``, of kind ``<driver>/<class_name>``.

    Any object with the same methods can take its place, for instance to write on another machine (TD-04). All
    methods raise CdiError, which names the file; the constructor, if CDI does not allow the driver's name.
    """

    def __init__(self, folder: Path, driver: str, class_name: str = "claim") -> None:
        self.folder = folder
        self._driver = driver
        self._kind = f"{driver}/{class_name}"
        self.kept = KeptFiles()
        check_kind(self._kind)

    def create(self) -> None:
        """Make the folder if it is missing, and remove what a process that was killed left half written."""
        try:
            self.folder.mkdir(mode=0o750, parents=True, exist_ok=True)
            for path in self._paths(f".{self._driver}="):
                if path.stat().st_mtime < time.time() - _ABANDONED_SECONDS:
                    path.unlink()
        except FileNotFoundError:
            pass  # another instance of the driver was quicker
        except OSError as error:
            raise CdiError(f"cannot create the CDI folder {self.folder}: {error}") from error

    def write(self, claim_uid: str, part: str, edits: ContainerEdits) -> str:
        """Write what a part of a claim, usually a request or a device, changes in containers. Return its CDI id.

        A file that says so already is left as it is: a full disk, or a process without descriptors, must not cost a
        running pod its file. Another content of the same part is replaced. A folder that is missing is made.
        """
        path = self.folder / f"{self._prefix(claim_uid)}{_checked(part)}.json"
        name = f"claim-{claim_uid}-{part}"
        try:
            content = encode(CdiSpec.of(self._kind, [CdiDevice(name, edits)]))
        except (CdiError, UnicodeEncodeError) as error:
            raise CdiError(f"CDI file {path.name}: {error}") from error
        self.kept.add(claim_uid, path)
        try:
            if not _says(path, content):
                try:
                    _write_whole(path, content, f".{self._driver}={claim_uid}-")
                except FileNotFoundError:  # the folder was removed
                    self.folder.mkdir(mode=0o750, parents=True, exist_ok=True)
                    _write_whole(path, content, f".{self._driver}={claim_uid}-")
        except OSError as error:
            raise CdiError(f"cannot write the CDI file {path}: {error}") from error
        return f"{self._kind}={name}"

    def remove(self, claim_uid: str) -> bool:
        """Remove all files of a claim, half written ones as well; False if there were none."""
        found = self._paths(self._prefix(claim_uid), f".{self._driver}={claim_uid}-")
        self.kept.forget(claim_uid)
        for path in found:
            self._unlink(path)
        return bool(found)

    def sweep(self, *, keep: Iterable[str]) -> None:
        """Remove the files of claims other than these, and what a killed process was writing.

        No other instance of the driver may be writing meanwhile.
        """
        kept = tuple(self._prefix(uid) for uid in keep)
        hidden = f".{self._driver}="
        for path in self._paths(f"{self._driver}-", hidden):
            if path.name.startswith(hidden) or (not path.name.startswith(kept) and self._is_ours(path)):
                self._unlink(path)

    def _paths(self, *begins: str) -> list[Path]:
        """Return the files whose names begin so, hidden and whole ones; none if the folder is missing."""
        try:
            names = os.listdir(self.folder)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise CdiError(f"cannot read the CDI folder {self.folder}: {error}") from error
        # The folder may have the files of 1,000 claims: most names fail the first comparison.
        return [self.folder / name for name in sorted(names) if name.startswith(begins) and name.endswith(_ENDS)]

    def _is_ours(self, path: Path) -> bool:
        """Whether the kind is this driver's; the name may be that of a driver whose name begins like this one's."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=_Kind).kind == self._kind
        except (OSError, ValueError):
            return False

    def _unlink(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise CdiError(f"cannot remove the CDI file {path}: {error}") from error

    def _prefix(self, claim_uid: str) -> str:
        return f"{self._driver}-{_checked(claim_uid)}-"


def _checked(part: str) -> str:
    """The text, if it can be part of a file name. Raises CdiError."""
    if not _FILE_PART.fullmatch(part):
        raise CdiError(f"{part!r} cannot be part of a CDI file name: use letters, digits, '_', '.' and '-'")
    return part


def _says(path: Path, content: bytes) -> bool:
    """Return whether a file has this content; one that cannot be read is written again, if that works."""
    try:
        return path.read_bytes() == content
    except OSError:
        return False


def _write_whole(path: Path, content: bytes, prefix: str) -> None:
    """Replace a file in one step. Raises OSError, and then leaves no trace."""
    descriptor, hidden = tempfile.mkstemp(prefix=prefix, suffix=".tmp", dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), 0o600)  # edits may hold opaque parameters; container runtimes are root
            file.flush()
            os.fsync(file.fileno())
        os.replace(hidden, path)
    except BaseException:
        Path(hidden).unlink(missing_ok=True)
        raise
    _flush_folder(path.parent)


def _flush_folder(folder: Path) -> None:
    """Put the names in a folder on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
