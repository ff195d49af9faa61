"""The folders of a plugin: made when it starts, and noticed when somebody else removes or replaces them.

People clean up a node, mount a disk over a folder, or bring one back from a backup. A folder that is there again says
nothing of the claims that the old one knew: their containers still run. So a plugin must tell its own folder from
another one of the same name (``HeldFolder``), and its files from files that are gone (``KeptFiles``). It has all in
memory that it needs to write them again, as long as its process lives.

One folder is for all drivers of the node (``HostParts``). Two drivers may publish the same device node or interface,
such as two of ``hostdev`` whose patterns overlap, and neither sees the other's records. Each writes which parts of the
host its claims have, and a claim that wants what a claim of another driver has is refused. A claim is written down
first and compared then: of two that want a part in the same instant, none overlooks the other. The folder lies in that
of the registration sockets, which all drivers of a kubelet have in common. Kubelets pass over hidden names there.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
import time
import weakref
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import msgspec

from dra_kubeletplugin.errors import ClaimError, HostPartElsewhere

from .claim_record import ClaimRecord


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


_OF_THE_HOST = re.compile(r"/.*|[bc] [0-9]+:[0-9]+|network interface .+", re.DOTALL)
"""Parts that mean the same to every driver: paths, numbers of device nodes, interfaces. Others are a driver's own."""
_CHANGE_NANOSECONDS = 100_000_000
_WRITES = 3
"""Attempts to write a file whose folder another instance removes when it is empty."""


class _Had(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What other drivers may know of a claim: ``owned`` are the parts that it has, and whether only a share of each.

    ``had`` are those that its containers may still use although its devices have moved, or are gone. ``asked`` is true
    until it is known that no other driver has these: a claim that is refused must not make others taint devices.
    """

    boot_id: str
    claim: str
    owned: dict[str, bool] = {}  # msgspec copies defaults
    had: tuple[str, ...] = ()
    asked: bool = False


class _Elsewhere(NamedTuple):
    """A claim of another driver; ``parts`` is None if its file cannot be read."""

    driver: str
    path: Path
    version: tuple[int, int, int]
    parts: _Had | None


class _Look(NamedTuple):
    """The claims in a folder, as they were when it had ``changed``; ``is_lasting`` as long as it has not since."""

    changed: int
    claims: dict[Path, _Elsewhere]
    is_lasting: bool


class HostParts:
    """The parts of the host that claims of ``driver`` have, and those of the others on this node.

    ``folder`` is that of the registration sockets. A claim without such parts has no file. Methods raise ClaimError.
    """

    def __init__(self, folder: Path, driver: str) -> None:
        self._folder = folder / ".owned"
        self._driver = driver
        self._elsewhere: dict[Path, _Look] = {}
        self.kept = KeptFiles()

    def take(self, record: ClaimRecord) -> None:
        """Write down what a claim gets. Raises HostPartElsewhere, and leaves no trace, if another driver gave it away.

        A claim that was given to a kubelet may have changed places with another one: what that had does not count.
        """
        parts = _parts_of(record, is_at_work=True)
        path = self._path(record.uid)
        before = _text(path)
        self._put(record.uid, msgspec.structs.replace(parts, asked=True))
        try:
            self._refuse(record, parts)
            self._put(record.uid, parts)
        except ClaimError:
            if before is None:
                self.remove(record.uid)
            else:
                self._replace(path, before)
            raise

    def write(self, record: ClaimRecord) -> None:
        """Bring the file of a claim in line with its record, after a start or when somebody removed it."""
        self._put(record.uid, _parts_of(record, is_at_work=record.phase != "preparing"))

    def remove(self, uid: str) -> None:
        """Forget a claim; an unknown one is fine."""
        self.kept.forget(uid)
        path = self._path(uid)
        if not os.path.lexists(path):  # a disk that is read-only refuses to remove what is not there
            return
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise ClaimError(f"cannot remove {path}: {error}") from error
        for folder in (path.parent, self._folder):
            with suppress(OSError):  # another claim is in it
                folder.rmdir()

    def sweep(self, *, keep: Collection[str]) -> None:
        """Forget all claims but these."""
        for path in self._files(self._folder / self._driver):
            if path.stem not in keep:
                self.remove(path.stem)

    def elsewhere(self, boot: str, *, shared: bool = False) -> dict[str, str]:
        """Return the parts that claims of other drivers have since this boot, with the names of these drivers.

        With ``shared``, for who needs a share only, without those of which others have a share only.
        """
        found: dict[str, str] = {}
        for claim in self._others():
            if claim.parts is not None and claim.parts.boot_id == boot and not claim.parts.asked:
                parts = [part for part, is_share in claim.parts.owned.items() if not (shared and is_share)]
                found |= dict.fromkeys([*parts, *claim.parts.had], claim.driver)
        return found

    def _refuse(self, record: ClaimRecord, mine: _Had) -> None:
        for claim in self._others() if mine.owned else ():
            theirs = claim.parts
            if theirs is None:
                if not record.given:
                    raise HostPartElsewhere(next(iter(mine.owned)), claim.driver, None, claim.path)
            elif theirs.boot_id == record.boot_id:
                for part, is_share in mine.owned.items():
                    is_taken = part in theirs.owned and not (is_share and theirs.owned[part])
                    if is_taken or (part in theirs.had and not record.given):
                        raise HostPartElsewhere(part, claim.driver, theirs.claim, claim.path)

    def _others(self) -> list[_Elsewhere]:
        """Return the claims of other drivers; files and folders that did not change are not read again."""
        known = self._elsewhere
        found = {
            folder: self._claims_in(folder, known.get(folder))
            for folder in self._entries(self._folder)
            if folder.name != self._driver
        }
        self._elsewhere = found
        return [claim for looked in found.values() for claim in looked.claims.values()]

    def _claims_in(self, folder: Path, before: _Look | None) -> _Look:
        now, changed = time.time_ns(), _changed_at(folder)
        if before and before.is_lasting and before.changed == changed:
            return before
        claims: dict[Path, _Elsewhere] = {}
        for path in self._files(folder):
            with suppress(FileNotFoundError):  # its claim has just been unprepared
                version = _version_of(path)
                known = before.claims.get(path) if before else None
                if known is None or known.version != version or known.parts is None:
                    known = _Elsewhere(folder.name, path, version, _decoded_parts(path))
                claims[path] = known
        are_read = all(claim.parts for claim in claims.values())
        # Of two changes within a few milliseconds the second one leaves the time of the folder as it is.
        return _Look(changed, claims, is_lasting=are_read and 0 < changed < now - _CHANGE_NANOSECONDS)

    def _files(self, folder: Path) -> Iterator[Path]:
        return (path for path in self._entries(folder) if path.suffix == ".json" and not path.name.startswith("."))

    def _entries(self, folder: Path) -> list[Path]:
        try:
            return [folder / name for name in os.listdir(folder)]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise ClaimError(f"cannot read which parts of the host other drivers gave away: {error}") from error

    def _put(self, uid: str, parts: _Had) -> None:
        if not parts.owned and not parts.had:
            self.remove(uid)
            return
        if not self._folder.parent.is_dir():
            return  # a plugin that does not register itself has no such folder, and nobody reads it there
        path = self._path(uid)
        self.kept.add(uid, path)
        content = msgspec.json.encode(parts)
        if _text(path) != content:
            self._replace(path, content)

    def _replace(self, path: Path, content: bytes) -> None:
        """Replace a file in one step. It need not outlive a power failure: the boot is another one then."""
        for attempt in range(1, _WRITES + 1):
            try:
                for folder in (self._folder, path.parent):
                    folder.mkdir(mode=0o750, exist_ok=True)
                descriptor, hidden = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=path.parent)
                try:
                    with open(descriptor, "wb") as file:
                        file.write(content)
                    os.replace(hidden, path)
                except BaseException:
                    Path(hidden).unlink(missing_ok=True)
                    raise
            except FileNotFoundError as error:
                if attempt == _WRITES:
                    raise ClaimError(f"cannot write {path}: {error}") from error
            except OSError as error:
                raise ClaimError(f"cannot write {path}, for other drivers of this node: {error}") from error
            else:
                return

    def _path(self, uid: str) -> Path:
        return self._folder / self._driver / f"{uid}.json"


def _parts_of(record: ClaimRecord, *, is_at_work: bool) -> _Had:
    """Return what a claim has, or had, if it is withdrawn: its containers may still run."""
    owned: dict[str, bool] = {}
    for device in record.exclusive():
        for part in filter(_OF_THE_HOST.fullmatch, device.owns):
            owned[part] = device.share_id is not None and owned.get(part, True)
    had = set(filter(_OF_THE_HOST.fullmatch, record.had)) - owned.keys()
    if not is_at_work:
        had |= owned.keys()
        owned = {}
    return _Had(record.boot_id, str(record.ref), owned, tuple(sorted(had)))


def _decoded_parts(path: Path) -> _Had | None:
    """Return what a file says, or None if that cannot be read. Raises FileNotFoundError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Had) if path.is_file() else None
    except FileNotFoundError:
        raise
    except (OSError, ValueError):
        return None


def _text(path: Path) -> bytes | None:
    """Return what a file says, or None if there is none, or it cannot be read."""
    try:
        return path.read_bytes() if path.is_file() else None
    except OSError:
        return None


def _changed_at(folder: Path) -> int:
    try:
        return os.lstat(folder).st_mtime_ns
    except OSError:
        return 0


def _version_of(path: Path) -> tuple[int, int, int]:
    found = os.lstat(path)
    return found.st_ino, found.st_mtime_ns, found.st_size
