"""The files of the host: device nodes, sysfs, and the database of udev.

The kernel has a folder in sysfs for each device, below that of the device it is plugged into. A device node leads to
its folder by its number: ``/sys/dev/char/188:0``. A file that vanishes while it is read counts as missing. For want of
descriptors or memory nothing is known of a file, so the look ends with the error.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

_LACKING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
_PROPERTY = re.compile(r"E:([^=]+)=(.*)")
_STARS = re.compile(r"\*\*+")
_DIGITS = re.compile(r"(\d+)")


class Number(NamedTuple):
    """What tells device nodes apart: ``c`` or ``b``, and two numbers."""

    type: str
    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}:{self.minor}"


@dataclass(frozen=True)
class HostTree:
    """The host's files; ``root`` is where its root folder is mounted."""

    root: Path = Path("/")

    def glob(self, pattern: str) -> list[str]:
        """Paths on the host that match, those with numbers in the order of the numbers.

        As in a shell, several stars within a name mean the same as one.
        """
        parts = (part if part == "**" else _STARS.sub("*", part) for part in pattern.strip("/").split("/"))
        found = sorted((self._on_host(path) for path in self.root.glob("/".join(parts))), key=_natural)
        with os.scandir(self.root):  # glob takes a folder that it has no descriptor for as empty, since Python 3.13
            return found

    def resolved(self, path: str) -> str | None:
        """The path without links, or None."""
        try:
            return self._on_host(self.at(path).resolve(strict=True))
        except (ValueError, RuntimeError):
            return None
        except OSError as error:
            _raise_if_lacking(error)
            return None

    def number(self, path: str) -> Number | None:
        """The number of a device node; None for anything else."""
        try:
            found = self.at(path).stat()
        except OSError as error:
            _raise_if_lacking(error)
            return None
        if not (stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode)):
            return None
        kind = "c" if stat.S_ISCHR(found.st_mode) else "b"
        return Number(kind, os.major(found.st_rdev), os.minor(found.st_rdev))

    def identity(self, path: str) -> tuple[int, ...]:
        """Differs when another file has taken the name; empty if there is none."""
        try:
            found = self.at(path).stat()
        except OSError as error:
            _raise_if_lacking(error)
            return ()
        return found.st_ino, found.st_rdev, found.st_ctime_ns

    def folder_of(self, number: Number) -> str | None:
        """The folder in sysfs of a device node."""
        return self.resolved(f"/sys/dev/{'char' if number.type == 'c' else 'block'}/{number}")

    def text(self, path: str) -> str | None:
        """What a small file says, or None."""
        try:
            return self.at(path).read_bytes()[:4096].decode(errors="replace").strip() or None
        except OSError as error:
            _raise_if_lacking(error)
            return None

    def whole_text(self, path: str) -> str | None:
        """Return all that a file says, or None; for tables of the kernel, which may be long."""
        try:
            return self.at(path).read_bytes().decode(errors="replace")
        except OSError as error:
            _raise_if_lacking(error)
            return None

    def link(self, path: str) -> str | None:
        """The last part of where a link leads, or None."""
        try:
            return self.at(path).readlink().name
        except OSError as error:
            _raise_if_lacking(error)
            return None

    def node_in(self, folder: str) -> str | None:
        """The device node of a folder in sysfs."""
        for line in (self.text(f"{folder}/uevent") or "").splitlines():
            if line.startswith("DEVNAME="):
                return "/dev/" + line.removeprefix("DEVNAME=").removeprefix("/dev/")
        return None

    def udev(self, key: str) -> dict[str, str]:
        """The properties that udev found out, under its key of the device (``c188:0``, ``+pci:0000:3b:00.0``)."""
        lines = (self.text(f"/run/udev/data/{key}") or "").splitlines()
        return {match[1]: match[2] for line in lines if (match := _PROPERTY.fullmatch(line))}

    def upwards(self, folder: str) -> Iterator[str]:
        """The folder, and those of the devices that it is plugged into."""
        while folder.startswith("/sys/devices/"):
            yield folder
            folder = folder.rpartition("/")[0]

    def at(self, path: str) -> Path:
        """Where a path of the host is for this process."""
        return self.root / path.lstrip("/")

    def _on_host(self, path: Path) -> str:
        return "/" + str(path.relative_to(self.root))


def _raise_if_lacking(error: OSError) -> None:
    """Raise the error again if this process lacks descriptors or memory, so that nothing is known of the file."""
    if error.errno in _LACKING:
        raise error


def _natural(path: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in _DIGITS.split(path)]
