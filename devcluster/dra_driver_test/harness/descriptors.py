"""How many descriptors a driver has open: Linux says who listens at a socket, and what that process has open."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

from dra_driver_test.errors import Finding, Skipped

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


def descriptors_of(path: Path) -> int:
    """The open descriptors of the process that listens at the socket. Raises Skipped, and Finding if none listens."""
    if not hasattr(socket, "SO_PEERCRED"):
        raise Skipped("the check needs Linux, which tells what a process has open")
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(path))
        except OSError as error:
            raise Finding(f"nothing listens at {path}: {error}") from error
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, *_ = _CREDENTIALS.unpack(credentials)
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError as error:
        raise Skipped(f"the open files of the driver's process {pid} cannot be read: {error}") from error
