"""A unix socket in front of another one that counts the connections, and can cut them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self


class CountingSocket:
    """Listens at ``path`` and passes every connection on to ``target``."""

    def __init__(self, path: Path, target: Path) -> None:
        self.path = path
        self.connections = 0
        self._target = target
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_unix_server(self._connected, self.path)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()

    def cut(self) -> None:
        """Break all connections."""
        for writer in self._open:
            writer.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(OSError):
            there, back = await asyncio.open_unix_connection(self._target)
            self._open |= {writer, back}
            await asyncio.gather(_pass_on(reader, back), _pass_on(there, writer))
            self._open -= {writer, back}


async def _pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
    sink.close()
