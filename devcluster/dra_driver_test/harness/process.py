"""The process of a driver, as Linux shows it: its open files, its memory, and its limit of open files.

Who listens at a socket, the kernel says. Elsewhere, and for a process that another user owns, checks are skipped.
"""

from __future__ import annotations

import os
import resource
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dra_driver_test.errors import Finding, Skipped

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_KIB_BYTES = 1024


@dataclass(frozen=True, slots=True)
class ProcessView:
    """A process by its number."""

    pid: int

    @property
    def is_ours(self) -> bool:
        """Whether the driver runs inside of the process that checks it."""
        return self.pid == os.getpid()

    def descriptors(self) -> int:
        """How many files and sockets it has open. Raises Skipped."""
        try:
            return len(os.listdir(f"/proc/{self.pid}/fd"))
        except OSError as error:
            raise Skipped(f"the open files of the driver's process {self.pid} cannot be read: {error}") from error

    def threads(self) -> int:
        """How many threads it has. Raises Skipped."""
        try:
            return len(os.listdir(f"/proc/{self.pid}/task"))
        except OSError as error:
            raise Skipped(f"the threads of the driver's process {self.pid} cannot be read: {error}") from error

    def memory(self) -> int:
        """The bytes that it has in memory for itself. Raises Skipped."""
        if self.is_ours:
            raise Skipped("the driver runs in the process that checks it")
        try:
            lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        except OSError as error:
            raise Skipped(f"the memory of the driver's process {self.pid} cannot be read: {error}") from error
        sizes = {line.partition(":")[0]: line.partition(":")[2].split() for line in lines}
        if "RssAnon" not in sizes:
            raise Skipped("the check needs Linux, which tells how much memory a process has for itself")
        return int(sizes["RssAnon"][0]) * _KIB_BYTES

    @contextmanager
    def without_descriptors(self) -> Iterator[None]:
        """Let it open nothing more while the block runs. Raises Skipped."""
        if self.is_ours or not hasattr(resource, "prlimit"):
            raise Skipped("the check needs Linux, and a driver with a process of its own")
        try:
            before = resource.prlimit(self.pid, resource.RLIMIT_NOFILE)
            resource.prlimit(self.pid, resource.RLIMIT_NOFILE, (1, before[1]))
        except OSError as error:
            raise Skipped(f"the limits of the driver's process {self.pid} cannot be changed: {error}") from error
        try:
            yield
        finally:
            resource.prlimit(self.pid, resource.RLIMIT_NOFILE, before)


def process_behind(path: Path) -> ProcessView:
    """The process that listens at the socket. Raises Skipped, and Finding if none listens."""
    if not hasattr(socket, "SO_PEERCRED"):
        raise Skipped("the check needs Linux, which tells who listens at a socket")
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(path))
        except OSError as error:
            raise Finding(f"nothing listens at {path}: {error}") from error
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return ProcessView(_CREDENTIALS.unpack(credentials)[0])
