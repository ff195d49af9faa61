"""How often, how late, and whether at all a request is sent.

**Once.** A write whose answer is lost may have taken effect, so only the caller can tell whether to repeat it. aiohttp
repeats PUT and DELETE by itself when a connection breaks; ``at_most_once`` keeps such an error from it. Reads may be
repeated.

**Not on a dead connection.** A connection that the server closed while it was idle would fail the next write for
nothing. aiohttp notices once the event loop has read the end of the stream; the loop may be late (a long calculation),
and the write goes into the void. So a used connection is looked at right before the request: nothing may be there to
read. If there is, nothing was sent, and the request takes another connection.

**Bounded.** kube-apiserver works on a write for up to 60 s, whether or not the client still waits, unless the query
parameter ``timeout`` says otherwise. It is set below the client's own limit, so that a write does not take effect long
after the client gave up on it.

**Guarded.** The guard is asked after the connection stands, with nothing awaited between its answer and the first byte.
It raises when no write may be sent, and otherwise gives the seconds that the server may spend.
"""

from __future__ import annotations

import math
import select
from collections.abc import Callable
from weakref import WeakSet

import aiohttp
from aiohttp.connector import Connection

from .errors import Unreachable

Guard = Callable[[], float]
"""Seconds within which a write that is sent now has to take effect. Raises KubeError when none may be sent."""

READS = frozenset({"GET", "HEAD"})


def unguarded() -> float:
    """Every write may be sent, and may take its time."""
    return math.inf


class _Stale(Exception):
    """The connection is dead and nothing was sent on it."""


def request_type(limit: float, guard: Guard) -> type[aiohttp.ClientRequest]:
    """The request class of a session whose writes are guarded, and limited to ``limit`` seconds on the server."""
    used: WeakSet[object] = WeakSet()

    class Request(aiohttp.ClientRequest):
        async def send(self, conn: Connection) -> aiohttp.ClientResponse:
            if conn.protocol in used and _is_stale(conn):
                raise _Stale
            if self.method not in READS:
                self.url = self.url.update_query(timeout=f"{min(limit, guard()):.3f}s")
            used.add(conn.protocol)
            return await super().send(conn)

    return Request


async def at_most_once(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """A middleware for the session. Raises Unreachable for a write whose fate is unknown."""
    try:
        while True:
            try:
                return await send(request)
            except _Stale:
                continue  # aiohttp has closed it, so the next one is another one
    except aiohttp.ClientError as error:
        if request.method in READS:
            raise
        raise Unreachable(
            f"{request.method} {request.url.with_query(None)}: {error or type(error).__name__}"
        ) from error


def _is_stale(conn: Connection) -> bool:
    transport = conn.transport
    socket = transport.get_extra_info("socket") if transport is not None and not transport.is_closing() else None
    if socket is None or socket.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(socket, select.POLLIN)
    return bool(poll.poll(0))
