"""The door of a small HTTP server: who comes in, and for how long.

Anyone who reaches the port could hold all descriptors of the process with connections that say nothing. So at most
``MOST_CONNECTIONS`` are open at a time, each has to send its request within ``HEAD_SECONDS``, and is closed after
``LIFE_SECONDS``. Where descriptors run out all the same, asyncio tries again each second, and would log a traceback
for each place of its queue: a warning replaces them, once in ``WARNING_SECONDS``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, cast

from aiohttp import web

from dra_kube.listening import stop_listening

MOST_CONNECTIONS: Final = 64
HEAD_SECONDS: Final = 5.0
LIFE_SECONDS: Final = 60.0
BACKLOG_CONNECTIONS: Final = 16
"""Connections that wait to be accepted."""
WARNING_SECONDS: Final = 60.0
_END_OF_HEAD: Final = b"\r\n\r\n"
_LONGEST_HEAD_BYTES: Final = 16_384

logger = logging.getLogger(__name__)


@asynccontextmanager
async def open_door(
    runner: web.BaseRunner, host: str | None, port: int, life_seconds: float | None = None
) -> AsyncIterator[tuple[str, int]]:
    """Listen for a runner that is set up, until the block ends; gives the address. Raises OSError.

    ``life_seconds``: of each connection; None: ``LIFE_SECONDS``.
    """
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    loop.set_exception_handler(_Seldom(before))
    visitors: set[_Visitor] = set()
    life = LIFE_SECONDS if life_seconds is None else life_seconds
    inner = cast(Callable[[], asyncio.Protocol], runner.server)
    try:
        server = await loop.create_server(
            lambda: _Visitor(inner, visitors, life), host, port, backlog=BACKLOG_CONNECTIONS
        )
        try:
            address = server.sockets[0].getsockname()
            yield str(address[0]), int(address[1])
        finally:
            await stop_listening(server)
    finally:
        loop.set_exception_handler(before)


class _Visitor(asyncio.Protocol):
    """One connection: it hands on what comes to the server's own protocol, once it is let in."""

    def __init__(self, inner: Callable[[], asyncio.Protocol], visitors: set[_Visitor], life_seconds: float) -> None:
        self._make, self._visitors, self._life_seconds = inner, visitors, life_seconds
        self._inner: asyncio.Protocol | None = None
        self._transport: asyncio.Transport | None = None
        self._limits: list[asyncio.TimerHandle] = []
        self._head, self._has_asked = b"", False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if len(self._visitors) >= MOST_CONNECTIONS:
            self._transport.abort()
            return
        self._visitors.add(self)
        loop = asyncio.get_running_loop()
        self._limits = [
            loop.call_later(seconds, self._transport.abort) for seconds in (HEAD_SECONDS, self._life_seconds)
        ]
        self._inner = self._make()
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._inner is None:
            return
        if not self._has_asked:
            self._listen(data)
        self._inner.data_received(data)

    def _listen(self, data: bytes) -> None:
        """The first request is there when its head has an end."""
        self._head = (self._head + data)[-_LONGEST_HEAD_BYTES:]
        if _END_OF_HEAD in self._head:
            self._head, self._has_asked = b"", True
            self._limits[0].cancel()

    def eof_received(self) -> bool | None:
        return self._inner.eof_received() if self._inner is not None else None

    def pause_writing(self) -> None:
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._inner is not None:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._visitors.discard(self)
        for limit in self._limits:
            limit.cancel()
        if self._inner is not None:
            self._inner.connection_lost(exc)


class _Seldom:
    """Errors of accepting are told once a minute, all others as before."""

    def __init__(self, before: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None) -> None:
        self._before = before
        self._told_at = -WARNING_SECONDS

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if "socket.accept()" in str(context.get("message")):
            now = time.monotonic()
            if now - self._told_at >= WARNING_SECONDS:
                self._told_at = now
                why = context.get("exception")
                logger.warning("cannot accept connections: %s; see which clients hold them", why)
        elif self._before is not None:
            self._before(loop, context)
        else:
            loop.default_exception_handler(context)
