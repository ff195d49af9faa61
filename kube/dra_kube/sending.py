"""Whether a request is sent, how often, and how late.

**Once.** A write whose answer is lost may have taken effect, so only the caller can decide whether to repeat it.
aiohttp repeats PUT and DELETE by itself when a connection breaks; ``at_most_once`` hides such an error from it. Reads
may be repeated. ``settle`` ends the sending of writes and knows whether the fate of one is unknown.

**Not on a dead connection.** The next write on a connection that the server closed while it was idle would fail
needlessly. aiohttp notices the end only when the event loop has read it, which a long calculation may delay. So a used
connection is checked right before the request. If there is anything to read, nothing is sent, and the request takes
another connection.

**Bounded.** kube-apiserver works on a write for up to 60 s, whether or not the client still waits, unless the query
parameter ``timeout`` says otherwise. It is set below the client's own limit, so that a write does not take effect long
after the client gave up on it.

**Guarded.** The guard raises when no write may be sent, and otherwise gives the seconds within which one must have
taken effect. It is asked when the connection stands, and once more when the first byte goes out: before Python 3.12
aiohttp leaves that to a task, which a busy event loop starts late. So the server is given half of the seconds, and the
other half may pass between the two questions.
"""

from __future__ import annotations

import asyncio
import math
import select
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import aiohttp
from aiohttp.connector import Connection

from .clock import boot_time
from .errors import KubeError, NotSent, Unreachable

Guard = Callable[[], float]
"""Seconds within which a write that is sent now has to take effect. Raises KubeError when none may be sent."""

READS = frozenset({"GET", "HEAD"})


def unguarded() -> float:
    """Every write may be sent, and may take its time."""
    return math.inf


class _Stale(Exception):
    """The connection is dead and nothing was sent on it."""


class Sending:
    """What a session needs: ``request_type`` as its request class, and ``at_most_once`` as its middleware.

    Writes may spend ``limit`` seconds on the server, and half of what the guard allows.
    """

    def __init__(self, limit: float, guard: Guard) -> None:
        self._limit, self._guard = limit, guard
        self._used: WeakSet[object] = WeakSet()  # protocols of connections that had a request
        self._in_flight = 0
        self._open_until = -math.inf  # from then on no write without an answer can take effect
        self._changed = asyncio.Event()
        self._gate = asyncio.Event()
        self._gate.set()

    @property
    def request_type(self) -> type[aiohttp.ClientRequest]:
        """A request class that asks the guard before it sends a write."""
        sending = self

        class Request(aiohttp.ClientRequest):
            time_on_server = 0.0

            async def send(self, conn: Connection) -> aiohttp.ClientResponse:
                self.time_on_server = sending._before(self, conn)
                return await super().send(conn)

            async def write_bytes(self, writer: Any, conn: Connection, *length: Any) -> None:
                try:
                    if self.method not in READS and sending._guard() < self.time_on_server:
                        raise NotSent("the write was delayed for too long and was not sent")
                except KubeError as error:
                    assert conn.protocol is not None
                    conn.protocol.set_exception(error)  # which ends the waiting for an answer
                    return
                await super().write_bytes(writer, conn, *length)

        return Request

    async def at_most_once(
        self, request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Raises Unreachable for a write whose fate is unknown."""
        if request.method in READS:
            return await _on_a_good_connection(request, send)
        await self._gate.wait()
        self._in_flight += 1
        try:
            return await _on_a_good_connection(request, send)
        except KubeError:
            raise  # the guard forbade it
        except aiohttp.ClientError as error:
            if not isinstance(error, aiohttp.ClientConnectorError):
                self._open_until = boot_time() + self._limit
            what = f"{request.method} {request.url.with_query(None)}"
            raise Unreachable(f"{what}: {error or type(error).__name__}") from error
        except BaseException:
            self._open_until = boot_time() + self._limit
            raise
        finally:
            self._in_flight -= 1
            self._changed.set()

    async def settle(self, seconds: float) -> bool:
        """Send no more writes and wait for those in flight; whether none is left that may still take effect.

        New writes wait until they are cancelled, or their time is up.
        """
        self._gate.clear()
        try:
            async with asyncio.timeout(seconds):
                while self._in_flight:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return boot_time() >= self._open_until

    def _before(self, request: aiohttp.ClientRequest, conn: Connection) -> float:
        """The seconds that the server is given for a write."""
        if conn.protocol in self._used and _is_stale(conn):
            raise _Stale
        seconds = 0.0
        if request.method not in READS:
            seconds = min(self._limit, self._guard() / 2)
            request.url = request.url.update_query(timeout=f"{seconds:.3f}s")
        self._used.add(conn.protocol)
        return seconds


async def _on_a_good_connection(
    request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    while True:
        try:
            return await send(request)
        except _Stale:
            continue  # aiohttp has closed it, so the next one is another one


def _is_stale(conn: Connection) -> bool:
    transport = conn.transport
    socket = transport.get_extra_info("socket") if transport is not None and not transport.is_closing() else None
    if socket is None or socket.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(socket, select.POLLIN)
    return bool(poll.poll(0))
