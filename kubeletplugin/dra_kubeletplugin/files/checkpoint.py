"""What is prepared on this node, in one file per claim: ``<data directory>/claims/<claim uid>.json``.

A record says which allocation was prepared, how it was answered, and how far the work is (``phase``). It is the only
memory of prepared claims: a restarted plugin, and the other instance of a rolling update, read the same files, whose
text is that of ``claim_record.py``.

- A file is replaced in one step, and carries a checksum. A torn or edited file, one on a bad sector, or a folder in its
  place is an error of its own claim only. A file whose name is no uid is about no claim.
- ``boot_id`` says when: after a reboot devices have lost what was done to them, and a record of an earlier boot is
  no longer an answer.
- A record that finds no room on the disk can be kept in memory instead, as long as its file does not change. Only this
  process knows it then.
- A folder that somebody removes, or replaces by another one, takes no claim with it: what this process knows is written
  into the new one. A single record that somebody removes is forgotten, as when another instance unprepares its claim.
- A record of a newer version is left to that, and frees no device.
- Nor does a damaged record: what it holds stands a second time, in ``<claim uid>.held``. That file is written before
  the record that needs it, and only read when the record cannot be. Where neither can be read, the claim may hold any
  device.
- A damaged record of an earlier boot counts as absent, since nothing of it is prepared any more: a power failure
  empties files that were not flushed. Its second file tells the boot; without that, the time of the file does. The
  clock may have been set since the boot, so that a time shortly before it decides for empty files only.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from dra_kubeletplugin.errors import CheckpointCorrupted, CheckpointNewer, ClaimError

from .claim_record import (
    LARGEST_RECORD_BYTES,
    ClaimRecord,
    Remainder,
    decoded,
    decoded_rest,
    encoded,
    encoded_rest,
    rest_of_newer,
)
from .folders import HeldFolder

log = logging.getLogger(__name__)

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
PROC_STAT = Path("/proc/stat")
_CLOCK_ADJUSTMENT_SECONDS = 60.0
"""Seconds by which a clock may be set back after a boot before a file of that boot would seem older than the boot."""
_HELD = ".held"
_UID = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,198}[A-Za-z0-9])?")
_LASTING = frozenset({errno.EIO, errno.EISDIR, errno.ELOOP, errno.ENXIO})
"""Errors of reading one file that stay: a bad sector; a folder, a link or a socket in its place. Others, such as too
many open files, may concern all files and pass; to go on without records then would give devices away that are in
use."""


class _Known(NamedTuple):
    version: tuple[int, int, int]
    record: ClaimRecord | None
    remainder: Remainder | None = None


class ClaimRecords:
    """The records in a folder. Methods raise ClaimError or its CheckpointCorrupted, which name the file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._home = HeldFolder(folder)
        self._restoring = threading.RLock()  # no claim is removed while it is written into another folder
        self._known: dict[str, _Known] = {}
        self._unwritten: dict[str, _Known] = {}  # by uid, with the version of the file that it takes the place of
        self._changed: set[str] = set()  # uids of claims that this process has written or removed since ``found_anew``
        self._left: tuple[int, int] | None = None  # the folder's version, if only this process has changed it since

    def create(self) -> bool:
        """Make the folder if it is missing; return whether it has no record. Raises OSError."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._home.hold()
        return not self.uids()

    def close(self) -> None:
        """Leave all that this process knows to the next one, and let go of the folder. Raises ClaimError.

        Who removes the folder of the sockets with that of the records ends the process: it notices the sockets first.
        """
        try:
            if self._home.is_held:
                self.restore()
        finally:
            self._home.release()

    def read(self, uid: str) -> ClaimRecord | None:
        """Return the record of a claim, or None if there is none, or a damaged one of an earlier boot."""
        path = self.path(uid)
        try:
            version, content = _read(path)
            unwritten = self._unwritten.get(uid)
            if unwritten and unwritten.version == version:
                return unwritten.record
            return decoded(path, content)
        except FileNotFoundError:
            return self.read(uid) if self.restore() else None
        except CheckpointNewer:
            raise
        except CheckpointCorrupted:
            if self._is_of_earlier_boot(path):
                return None  # a power failure empties files that were not flushed
            raise
        except OSError as error:
            if error.errno in _LASTING:
                raise CheckpointCorrupted(path, str(error)) from error
            raise ClaimError(f"cannot read the checkpoint {path}: {error}") from error

    def write(self, record: ClaimRecord, *, durable: bool) -> None:
        """Replace the record of a claim. With ``durable`` it survives a power failure when this returns.

        What only has to outlive the process needs no ``durable``: after a power failure the boot is another one.
        """
        path = self.path(record.uid)
        try:
            self.restore()
            self._write(path, record, durable=durable)
        except UnicodeEncodeError as error:
            raise ClaimError(f"a text that the driver returned for claim {record.ref} is no UTF-8: {error}") from error
        except OSError as error:
            raise ClaimError(f"cannot write the checkpoint {path}: {error}") from error

    def _write(self, path: Path, record: ClaimRecord, *, durable: bool) -> None:
        content = encoded(record)
        if len(content) > LARGEST_RECORD_BYTES:  # it would count as damaged, and keep devices from other claims
            raise ClaimError(
                f"the driver returned {len(content) >> 20} MiB for claim {record.ref}, and a record has at most "
                f"{LARGEST_RECORD_BYTES >> 20} MiB: return less, such as a mount of a file"
            )
        with self._changing(record.uid):
            self._write_held(record.uid, Remainder.of(record))
            self._known[path.name] = _Known(self._replace(path, content, durable=durable), record)
            self._unwritten.pop(record.uid, None)
            if durable:
                self._sync_folder()

    def restore(self) -> bool:
        """Write what this process knows into the folder, if somebody has removed or replaced that.

        Pods still have the devices: without records they would be given to others. A record that is there already is
        that of another instance, or of a backup, and stays. False if the folder is the one that it was. Raises
        ClaimError; the next call tries again.
        """
        if self._home.is_in_place():
            return False
        with self._restoring:
            if self._home.is_in_place():  # another thread was quicker
                return False
            known = {**self._known, **{f"{uid}.json": item for uid, item in self._unwritten.items()}}
            try:
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                home = HeldFolder(self.folder)
                home.hold()  # first, so that another replacement is noticed
                written = [name for name, item in known.items() if self._put_back(self.folder / name, item)]
            except OSError as error:
                raise ClaimError(f"cannot write the records into the folder {self.folder} again: {error}") from error
            before, self._home = self._home, home
            before.release()
        log.warning(
            "the folder %s was removed or replaced: the records of %d claims are written again",
            self.folder,
            len(written),
        )
        return True

    def _put_back(self, path: Path, item: _Known) -> bool:
        """Write the known record of a claim, unless it has a file. Return whether it was written. Raises OSError."""
        if os.path.lexists(path):
            return False
        if item.record:
            self._write(path, item.record, durable=False)
        elif item.remainder:  # a record that could not be read: its second file has all that is known
            with self._changing(path.stem):
                self._write_held(path.stem, item.remainder)
                self._known[path.name] = item._replace(version=self._replace(path, b"", durable=False))
        return bool(item.record or item.remainder)

    def complete(self, record: ClaimRecord) -> None:
        """Write the second file of a record that lacks it: it was lost, or a former version wrote the record."""
        try:
            self._write_held(record.uid, Remainder.of(record))
        except OSError as error:
            raise ClaimError(f"cannot write {self._held_path(record.uid)}: {error}") from error

    def _write_held(self, uid: str, rest: Remainder) -> None:
        held = encoded_rest(uid, rest)
        if _content(self._held_path(uid)) != held:
            # Not flushed: after a power failure the boot is another one, and this says nothing of that.
            self._replace(self._held_path(uid), held, durable=False)

    def _replace(self, path: Path, content: bytes, *, durable: bool) -> tuple[int, int, int]:
        """Replace a file in one step, and return its version. Raises OSError, and leaves no trace then."""
        descriptor, hidden = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=self.folder)
        try:
            with open(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                if durable:
                    os.fsync(descriptor)
                version = _version(os.fstat(descriptor))
            os.replace(hidden, path)
            return version
        except OSError:
            Path(hidden).unlink(missing_ok=True)
            raise

    def write_or_keep(self, record: ClaimRecord) -> ClaimError | None:
        """Replace the record of a claim; returns why it is only kept in memory, if it is."""
        try:
            self.write(record, durable=False)
        except ClaimError as error:
            with suppress(OSError):  # without its file the claim is unknown
                self._unwritten[record.uid] = _Known(_version(os.stat(self.path(record.uid))), record)
            return error
        return None

    def remove(self, uid: str) -> None:
        """Forget a claim for good; an unknown one is fine."""
        path = self.path(uid)
        try:
            with self._restoring, self._changing(uid):
                for file in (path, self._held_path(uid)):  # the second alone says nothing
                    if os.path.lexists(file):  # a disk that is read-only refuses to remove what is not there
                        _remove(file)
                self._unwritten.pop(uid, None)
                self._known.pop(path.name, None)
                self._sync_folder()
        except FileNotFoundError:
            pass  # with the folder
        except OSError as error:
            raise ClaimError(f"cannot remove the checkpoint {path}: {error}") from error

    def all(self, on_corrupted: Callable[[CheckpointCorrupted], None] = lambda error: None) -> dict[str, ClaimRecord]:
        """The readable records by uid; files that did not change are not read again."""
        return {uid: entry for uid, entry in self._found(on_corrupted).items() if isinstance(entry, ClaimRecord)}

    def found_anew(self, *, follows: bool) -> dict[str, ClaimRecord | Remainder]:
        """Return by uid each record, or what is known of one that cannot be read.

        With ``follows``, ``own_changes`` begin here.
        """
        self._changed.clear()
        # First: what changes while the files are looked at is not missed.
        self._left = self._folder_version() if follows else None
        return self._found()

    def own_changes(self) -> dict[str, ClaimRecord | Remainder | None] | None:
        """Return what is there now of the claims that this process has written or removed since it was asked last.

        None if somebody else has changed the folder, or may have: then all is to be found anew.
        """
        if self._left is None or self._folder_version() != self._left:
            return None
        changed = {uid: self._entry(uid) for uid in list(self._changed)}
        self._changed.difference_update(changed)
        return changed

    def _entry(self, uid: str) -> ClaimRecord | Remainder | None:
        path = self.path(uid)
        try:
            known = self._looked_at(path.name, _version(path.lstat()))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ClaimError(f"cannot read the checkpoint {path}: {error}") from error
        self._known[path.name] = known
        return known.record or known.remainder

    def _found(
        self, on_corrupted: Callable[[CheckpointCorrupted], None] = lambda error: None
    ) -> dict[str, ClaimRecord | Remainder]:
        self.restore()
        known = {name: self._looked_at(name, version, on_corrupted) for name, version in self._versions()}
        self._known = known
        return {
            name.removesuffix(".json"): entry
            for name, item in known.items()
            if (entry := item.record or item.remainder)
        }

    def _looked_at(
        self,
        name: str,
        version: tuple[int, int, int],
        on_corrupted: Callable[[CheckpointCorrupted], None] = lambda error: None,
    ) -> _Known:
        """Return what is known of a file, which is read if it has changed."""
        before = self._known.get(name)
        if before and before.version == version and before.record and before.record.uid not in self._unwritten:
            return before
        try:
            return _Known(version, self.read(name.removesuffix(".json")))
        except CheckpointNewer as error:
            on_corrupted(error)
            newer = rest_of_newer(_content(error.path)) or Remainder(boot_id())
            return _Known(version, None, replace(newer, newer=True))
        except CheckpointCorrupted as error:
            on_corrupted(error)
            return _Known(version, None, self._remainder(error.path.stem, before))

    @contextmanager
    def _changing(self, uid: str) -> Iterator[None]:
        """Tell a change of this process, whatever comes of it, from one that somebody else makes."""
        is_as_left = self._left is not None and self._folder_version() == self._left
        self._changed.add(uid)
        try:
            yield
        finally:
            self._left = self._folder_version() if is_as_left else None

    def _folder_version(self) -> tuple[int, int] | None:
        """Return what differs when a file comes, goes or is replaced, but not always within the same few milliseconds.

        Whoever relies on it shares the folder with nobody then, or with one who does not take turns.
        """
        try:
            found = os.stat(self.folder)
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    def unreadable(self) -> dict[Path, Remainder]:
        """Return what is known of the damaged and the newer records, as ``all`` found them last."""
        return {self.folder / name: item.remainder for name, item in self._known.items() if item.remainder}

    def _remainder(self, uid: str, before: _Known | None) -> Remainder:
        """Return what is known of a damaged record: by its second file, or by what this process read of it before."""
        if rest := self._rest(uid):
            return rest
        if before and before.record:
            return Remainder.of(before.record)
        return before.remainder if before and before.remainder else Remainder(boot_id())

    def _rest(self, uid: str) -> Remainder | None:
        """Return the remainder in the second file of a claim, or None if that file is missing or damaged."""
        return decoded_rest(uid, _content(self._held_path(uid)))

    def _is_of_earlier_boot(self, path: Path) -> bool:
        if rest := self._rest(path.stem):
            return rest.boot_id != boot_id()
        booted_at = boot_time()
        doubt = _CLOCK_ADJUSTMENT_SECONDS if (_content(path) or b"").strip(b"\0") else 0.0
        try:
            return booted_at is not None and path.stat().st_mtime < booted_at - doubt
        except OSError:
            return False

    def _versions(self) -> Iterator[tuple[str, tuple[int, int, int]]]:
        """The name of each file, and what differs when it is replaced."""
        try:
            with os.scandir(self.folder) as entries:
                for entry in entries:
                    if _is_record(entry.name):
                        with suppress(FileNotFoundError):  # another instance has just unprepared the claim
                            yield entry.name, _version(entry.stat(follow_symlinks=False))
        except OSError as error:
            raise ClaimError(f"cannot read the checkpoints in {self.folder}: {error}") from error

    def uids(self) -> list[str]:
        """The claims that have a file, readable or not."""
        return [path.stem for path in self.folder.glob("[!.]*.json") if _is_record(path.name)]

    def remove_unfinished(self) -> None:
        """Remove what a killed process was writing. Raises OSError."""
        for path in self.folder.glob(".*.tmp"):
            path.unlink(missing_ok=True)
        for path in self.folder.glob(f"*{_HELD}"):
            if not os.path.lexists(path.with_suffix(".json")):
                path.unlink(missing_ok=True)

    def path(self, uid: str) -> Path:
        """The file of a claim."""
        if not _UID.fullmatch(uid):
            raise ClaimError(f"{uid!r} is not the uid of a claim")
        return self.folder / f"{uid}.json"

    def _held_path(self, uid: str) -> Path:
        return self.folder / f"{uid}{_HELD}"

    def _sync_folder(self) -> None:
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def boot_id() -> str:
    """Differs after each boot of the machine; empty where the system has none (not Linux)."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


def boot_time() -> float | None:
    """Return when the machine booted, in seconds since 1970 by today's clock, or None where the system does not tell.

    A clock that was set since then moves this time with it.
    """
    try:
        found = re.search(rb"^btime ([0-9]+)$", PROC_STAT.read_bytes(), re.MULTILINE)
    except OSError:
        return None
    return float(found[1]) if found else None


def _read(path: Path) -> tuple[tuple[int, int, int], bytes]:
    """Return the version and the content of a file, cut off beyond the largest size.

    Raises OSError, and CheckpointCorrupted for anything but a regular file.
    """
    # Neither a link, which may lead anywhere, nor a pipe, which would block the plugin.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise CheckpointCorrupted(path, "it is no regular file")
        with open(descriptor, "rb", closefd=False) as file:  # ``open`` leaves that of a folder open
            return _version(found), file.read(LARGEST_RECORD_BYTES + 1)
    finally:
        os.close(descriptor)


def _content(path: Path) -> bytes | None:
    """Return the content of a small file, or None if it cannot be read."""
    try:
        return _read(path)[1]
    except (OSError, CheckpointCorrupted):
        return None


def _remove(path: Path) -> None:
    """Remove what has the name of a file, also an empty folder. Raises OSError."""
    try:
        path.unlink(missing_ok=True)
    except IsADirectoryError:
        path.rmdir()


def _is_record(name: str) -> bool:
    """Whether a file has the name of a record; one such as ``<uid> (copy).json`` has not."""
    return name.endswith(".json") and _UID.fullmatch(name.removesuffix(".json")) is not None


def _version(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_ino, found.st_mtime_ns, found.st_size
