"""What a program has in place of files when a client types: a pseudo-terminal, or a pipe as its standard input."""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
import termios
from typing import IO, NamedTuple

_MOST_CELLS = 0xFFFF


class Console(NamedTuple):
    """What a container wants: an open ``stdin``, with ``once`` for one client only, and with ``tty`` a terminal."""

    stdin: bool = False
    once: bool = False
    tty: bool = False


NO_CONSOLE = Console()


class Terminal:
    """A pseudo-terminal. Give ``theirs`` to a program as its three standard streams, then call ``handed_over``.

    Making one raises OSError when the machine has no more of them.
    """

    def __init__(self) -> None:
        self._ours, self.theirs = os.openpty()

    def handed_over(self) -> None:
        """The program has its end; the terminal ends with the last program that does."""
        os.close(self.theirs)
        self.theirs = -1

    def output(self) -> IO[bytes]:
        """What programs print; the caller closes it. It ends with an OSError."""
        return os.fdopen(os.dup(self._ours), "rb", buffering=0)

    def input(self) -> Input:
        """The keyboard; the caller closes it."""
        return Input(os.fdopen(os.dup(self._ours), "wb", buffering=0))

    def resize(self, width: int, height: int) -> None:
        """Programs that asked for it get a signal."""
        size = struct.pack("HHHH", min(height, _MOST_CELLS), min(width, _MOST_CELLS), 0, 0)
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, size)

    def close(self) -> None:
        """Programs that still have their end get SIGHUP."""
        if self.theirs >= 0:
            self.handed_over()
        if self._ours >= 0:
            os.close(self._ours)
            self._ours = -1


class Input:
    """Writes to a pipe or terminal without blocking, one piece after the other; owns the file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._turn = asyncio.Lock()
        self._ready = asyncio.Event()
        os.set_blocking(file.fileno(), False)

    async def write(self, content: bytes) -> None:
        """Returns when the program can read it all. Raises OSError when none reads any more. Closed, does nothing."""
        async with self._turn:
            while content and not self._file.closed:
                try:
                    content = content[os.write(self._file.fileno(), content) :]
                except BlockingIOError:
                    await self._writable()

    def close(self) -> None:
        """The program reads the end of its input; on a terminal there is no such thing."""
        self._file.close()
        self._ready.set()

    async def _writable(self) -> None:
        loop, descriptor = asyncio.get_running_loop(), self._file.fileno()
        self._ready.clear()
        loop.add_writer(descriptor, self._ready.set)
        try:
            await self._ready.wait()
        finally:
            loop.remove_writer(descriptor)
