"""The door of a server: who comes in, who has to leave for a newcomer, and the log of requests.

Anyone who reaches the port can open connections and hold them. A server that then refuses newcomers refuses the
kubelet. The kubelet opens a new connection for each probe, and restarts a container whose probes fail. So nobody is
refused: at most ``MOST_CONNECTIONS`` are open, and a newcomer displaces one of them. It is one of the address that
holds most, so a peer with few connections keeps them beside any other one. Of that address it is the connection that
has been idle longest; a request that is being answered is displaced last.

A connection has to send its first request within ``HEAD_SECONDS`` and ends after ``LIFE_SECONDS``. The server's own
protocol is made once the head of that request is complete, so silence, half a head and bytes that are no HTTP cost no
more than a socket. If descriptors run out a newcomer displaces another one as well, and a warning says so once a
minute.

aiohttp logs a request that it cannot read with the line at fault. That may be the header with a bearer token: of a user
of the development cluster, or of Prometheus. ``REQUESTS`` names the kind of the fault only. Anyone who reaches the port
can send thousands of such requests a second. A server that is given ``request_log()`` as its ``logger`` writes each
kind of fault once in ``TOLD_SECONDS``, at most ``MOST_KINDS`` of them, and counts the others.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import math
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from functools import partial
from typing import Any, Final, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

MOST_CONNECTIONS: Final = 256
"""Far more than anyone needs. So many clients that ask again as soon as they are answered wait for their turn; only
beyond that do they displace each other."""
HEAD_SECONDS: Final = 5.0
LIFE_SECONDS: Final = 60.0
NEWCOMER_SECONDS: Final = 0.25
"""Seconds in which a connection does not count as idle: its request may be on the way."""
BACKLOG_CONNECTIONS: Final = 1024
"""Connections that wait to be accepted. If the queue is full the kernel drops what asks to be queued, and the client
tries again after a second, which is the time-out of a probe."""
AT_ONCE_CONNECTIONS: Final = 8
"""Connections that are accepted in one iteration of the loop; far fewer than may be open."""
WARNING_SECONDS: Final = 60.0
SCARCE_SECONDS: Final = 0.05
"""Seconds until the next try to accept a connection after one failed, for want of descriptors for example."""
_END_OF_HEAD: Final = b"\r\n\r\n"
_LONGEST_HEAD_BYTES: Final = 65_536

logger = logging.getLogger(__name__)


class Visit:
    """A connection that was let in, from its acceptance on."""

    def __init__(self, peer: str, visits: Visits) -> None:
        self.peer = peer
        self.idle_since = time.monotonic()
        self._visits = visits
        self._questions = 0
        self._transport: asyncio.Transport | None = None
        self._coming: asyncio.Task[bool] | None = None
        self._is_over = False

    def comes(self, connecting: asyncio.Task[bool]) -> None:
        """The task makes the connection, with TLS for example."""
        self._coming = connecting
        self._visits.add(self)

    def has_come(self, transport: asyncio.Transport) -> None:
        """The connection is made."""
        self._transport = transport
        if self._is_over:
            transport.abort()

    def has_left(self) -> None:
        """The connection is closed."""
        self._visits.discard(self)

    @property
    def is_asking(self) -> bool:
        """Whether a request is being answered."""
        return self._questions > 0

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Inside the block a request is being answered."""
        self._questions += 1
        try:
            yield
        finally:
            self._questions -= 1
            self.idle_since = time.monotonic()

    def end(self) -> None:
        """Close the connection at once."""
        self._is_over = True
        if self._transport is not None:
            self._transport.abort()
        elif self._coming is not None:
            self._coming.cancel()


class Visits:
    """The connections that are open, by the address of their peers; ``most`` at a time."""

    def __init__(self, most: int) -> None:
        self._most, self._count = most, 0
        self._of: dict[str, dict[Visit, None]] = {}

    def add(self, visit: Visit) -> None:
        """Let a newcomer in; another one leaves if there are too many."""
        if self._count >= self._most:
            self.displace()
        self._of.setdefault(visit.peer, {})[visit] = None
        self._count += 1

    def discard(self, visit: Visit) -> None:
        """The connection is closed. Harmless if it is not there."""
        group = self._of.get(visit.peer, {})
        if visit in group:
            del group[visit]
            self._count -= 1
            if not group:
                del self._of[visit.peer]

    def end_idle(self) -> None:
        """End the connections on which no request is being answered."""
        for visit in [visit for group in self._of.values() for visit in group if not visit.is_asking]:
            self.discard(visit)
            visit.end()

    def displace(self) -> None:
        """End the connection that is missed least, if there is one."""
        if self._count:
            group = max(self._of.values(), key=len)
            visit = _least_missed(list(group))
            self.discard(visit)
            visit.end()


def _least_missed(visits: list[Visit]) -> Visit:
    """Return the connection that has been idle longest.

    If all idle ones are newcomers, it is the oldest of the larger part: neither does a flood of silent connections
    displace requests, nor do many slow requests displace each newcomer.
    """
    idle = [visit for visit in visits if not visit.is_asking]
    longest = min(idle, key=lambda visit: visit.idle_since, default=None)
    if longest is not None and time.monotonic() - longest.idle_since >= NEWCOMER_SECONDS:
        return longest
    asking = [visit for visit in visits if visit.is_asking]
    return longest if longest is not None and len(idle) > len(asking) else asking[0]


def is_same_secret(given: str, wanted: str) -> bool:
    """Return whether a client knows a secret, in a time that tells nothing of it. Any text may be given: a header may
    hold bytes that are no characters."""
    return hmac.compare_digest(given.encode(errors="backslashreplace"), wanted.encode(errors="backslashreplace"))


class Guest(asyncio.Protocol):
    """The protocol of one connection; a subclass says what becomes of its bytes."""

    def __init__(self, visit: Visit) -> None:
        self.visit = visit
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.visit.has_come(self.transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.visit.has_left()


@asynccontextmanager
async def welcoming(
    host: str | None,
    port: int,
    receive: Callable[[Visit], Guest],
    *,
    tls: ssl.SSLContext | None = None,
    tls_seconds: float | None = None,
    most: int | None = None,
) -> AsyncIterator[tuple[str, int]]:
    """Listen until the block ends; gives the address. Raises OSError.

    ``receive`` makes the protocol of each connection; with ``tls`` its bytes are those after the handshake, which has
    to end within ``tls_seconds`` (``HEAD_SECONDS`` if None). ``most`` connections are open at a time
    (``MOST_CONNECTIONS`` if None).
    """
    visits = Visits(MOST_CONNECTIONS if most is None else most)
    patience = HEAD_SECONDS if tls_seconds is None else tls_seconds
    connect = partial(_connected, tls=tls, handshake_seconds=patience if tls is not None else None)
    bound = await asyncio.get_running_loop().create_server(asyncio.Protocol, host, port, start_serving=False)
    entrances = [_Entrance(one.dup(), receive, connect, visits) for one in bound.sockets]
    try:
        for entrance in entrances:
            entrance.open()
        address = bound.sockets[0].getsockname()
        yield str(address[0]), int(address[1])
    finally:
        for entrance in entrances:
            await entrance.close()
        bound.close()
        # Silent clients would keep their sockets open for as long as the loop runs; requests get their answers first.
        visits.end_idle()
        await asyncio.sleep(0)


class _Entrance:
    """A socket that listens. It accepts few connections in each iteration of the loop, so that those inside have their
    turn as well, and a newcomer has said what it wants before the others displace it."""

    def __init__(
        self,
        listening: socket.socket,
        receive: Callable[[Visit], Guest],
        connect: Callable[[socket.socket, Callable[[], Guest]], Coroutine[Any, Any, bool]],
        visits: Visits,
    ) -> None:
        self._listening, self._receive, self._connect, self._visits = listening, receive, connect, visits
        self._loop = asyncio.get_running_loop()
        self._coming: set[asyncio.Task[bool]] = set()
        self._again: asyncio.TimerHandle | None = None
        self._warned_at = -math.inf

    def open(self) -> None:
        """Raises OSError."""
        self._listening.listen(BACKLOG_CONNECTIONS)
        self._loop.add_reader(self._listening, self._accept_some)

    async def close(self) -> None:
        """Accept no more, and end the connections that are being made."""
        self._loop.remove_reader(self._listening)
        if self._again is not None:
            self._again.cancel()
        self._listening.close()
        for connecting in self._coming:
            connecting.cancel()
        await asyncio.gather(*self._coming, return_exceptions=True)

    def _accept_some(self) -> None:
        for _ in range(AT_ONCE_CONNECTIONS):
            try:
                self._accept()
            except (BlockingIOError, InterruptedError, ConnectionError):
                return  # there is none, or it was gone before it was let in
            except OSError as error:
                self._wait(error)
                return

    def _accept(self) -> None:
        """Raises OSError."""
        accepted, address = self._listening.accept()
        visit = Visit(str(address[0]), self._visits)
        connecting = self._loop.create_task(self._connect(accepted, partial(self._receive, visit)))
        self._coming.add(connecting)
        connecting.add_done_callback(self._coming.discard)
        connecting.add_done_callback(partial(_come_or_gone, accepted, visit))
        visit.comes(connecting)

    def _wait(self, error: OSError) -> None:
        """Without descriptors the next try would fail at once."""
        if time.monotonic() - self._warned_at >= WARNING_SECONDS:
            self._warned_at = time.monotonic()
            logger.warning("cannot accept connections: %s; see which clients hold them", error)
        self._visits.displace()
        self._loop.remove_reader(self._listening)
        self._again = self._loop.call_later(SCARCE_SECONDS, self._loop.add_reader, self._listening, self._accept_some)


async def _connected(
    accepted: socket.socket,
    receive: Callable[[], Guest],
    tls: ssl.SSLContext | None,
    handshake_seconds: float | None,
) -> bool:
    """Return whether there is a connection, and not a peer that is gone or speaks no TLS."""
    try:
        await asyncio.get_running_loop().connect_accepted_socket(
            receive, accepted, ssl=tls, ssl_handshake_timeout=handshake_seconds
        )
    except OSError:
        return False
    return True


def _come_or_gone(accepted: socket.socket, visit: Visit, connecting: asyncio.Task[bool]) -> None:
    """A task that is cancelled before its first step leaves the socket to us."""
    if connecting.cancelled() or not connecting.result():
        accepted.close()
        visit.has_left()


# --- HTTP ---


@asynccontextmanager
async def open_door(  # noqa: PLR0913  # each is named by the caller, and has a default
    runner: web.BaseRunner,
    host: str | None,
    port: int,
    life_seconds: float | None = None,
    *,
    head_seconds: float | None = None,
    tls: ssl.SSLContext | None = None,
    most: int | None = None,
    keeps_alive: bool = False,
) -> AsyncIterator[tuple[str, int]]:
    """Listen for a runner that is set up, until the block ends; gives the address. Raises OSError.

    ``life_seconds`` of each connection (``LIFE_SECONDS`` if None), in which its first request has ``head_seconds``
    (``HEAD_SECONDS`` if None). Without ``keeps_alive`` a connection brings one request without a body, and ends with
    its answer. ``tls`` and ``most``: see ``welcoming``.
    """
    server = cast(web.Server, runner.server)
    limits = (
        HEAD_SECONDS if head_seconds is None else head_seconds,
        LIFE_SECONDS if life_seconds is None else life_seconds,
    )
    guests: dict[asyncio.BaseTransport | None, _HttpGuest] = {}
    handler = server.request_handler

    async def counted(request: web.BaseRequest) -> web.StreamResponse:
        guest = guests.get(request.transport)
        with guest.visit.asking() if guest is not None else nullcontext():
            try:
                answer = await handler(request)
            except web.HTTPException as refusal:
                if not keeps_alive:
                    refusal.force_close()
                raise
            except UnicodeEncodeError:  # aiohttp repeats some headers in what it answers
                answer = web.Response(status=400, text="the request holds bytes that are no text\n")
            if not keeps_alive:
                answer.force_close()
            return answer

    server.request_handler = counted
    make = cast(Callable[[], asyncio.Protocol], server)

    def receive(visit: Visit) -> Guest:
        return _HttpGuest(visit, make, guests, limits, keeps_alive=keeps_alive)

    async with welcoming(host, port, receive, tls=tls, tls_seconds=head_seconds, most=most) as address:
        try:
            yield address
        finally:
            for guest in list(guests.values()):
                guest.leave_unless_heard()


class _HttpGuest(Guest):
    """It hands on what comes to the server's own protocol, once there is a request."""

    def __init__(
        self,
        visit: Visit,
        make: Callable[[], asyncio.Protocol],
        guests: dict[asyncio.BaseTransport | None, _HttpGuest],
        limits: tuple[float, float],
        *,
        keeps_alive: bool,
    ) -> None:
        super().__init__(visit)
        self._make, self._guests, self._seconds, self._keeps_alive = make, guests, limits, keeps_alive
        self._inner: asyncio.Protocol | None = None
        self._limits: list[asyncio.TimerHandle] = []
        self._head = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._guests[transport] = self
        loop = asyncio.get_running_loop()
        self._limits = [loop.call_later(seconds, self.visit.end) for seconds in self._seconds if seconds < math.inf]

    def data_received(self, data: bytes) -> None:
        if self._inner is not None:
            self._inner.data_received(data)
            return
        self._head += data
        end = self._head.find(_END_OF_HEAD) + len(_END_OF_HEAD)
        if end >= len(_END_OF_HEAD):
            self._hear(self._head if self._keeps_alive else self._head[:end])
        elif len(self._head) > _LONGEST_HEAD_BYTES or not self._head[:1].isalpha():
            self.visit.end()  # no request of HTTP begins so: with TLS, for example

    def _hear(self, said: bytes) -> None:
        if self.transport is None:
            return
        self._head = b""
        self._limits.pop(0).cancel()
        self._inner = self._make()
        self._inner.connection_made(self.transport)
        self._inner.data_received(said)
        if not self._keeps_alive:
            self.transport.pause_reading()  # whatever follows is not looked at

    def leave_unless_heard(self) -> None:
        """The server knows of this connection only when a request has come."""
        if self._inner is None:
            self.visit.end()

    def eof_received(self) -> bool | None:
        return self._inner.eof_received() if self._inner is not None else None

    def pause_writing(self) -> None:
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._inner is not None:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._guests.pop(self.transport, None)
        for limit in self._limits:
            limit.cancel()
        if self._inner is not None:
            self._inner.connection_lost(exc)


TOLD_SECONDS: Final = 60.0
MOST_KINDS: Final = 4
"""Kinds of faults told in one ``TOLD_SECONDS``: with tracebacks of 2 kB they stay below 10 kB."""


class _WithoutContent(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            record.msg, record.exc_info = f"{record.msg}: it cannot be read: {type(error).__name__}", None
            record.levelno, record.levelname = logging.WARNING, "WARNING"
        return True


class Seldom(logging.Filter):
    """Lets each kind of line pass once in ``TOLD_SECONDS``. Kinds differ by words and error, not by the client."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._told: set[tuple[object, object]] = set()
        self._told_since = -TOLD_SECONDS
        self._untold = 0

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.INFO:
            return True
        now = self._clock()
        before = 0
        if now - self._told_since >= TOLD_SECONDS:
            self._told, self._told_since = set(), now
            before, self._untold = self._untold, 0
        kind = (record.msg, type(record.exc_info[1]) if record.exc_info else None)
        if kind in self._told or len(self._told) >= MOST_KINDS:
            self._untold += 1
            return False
        self._told.add(kind)
        if before:
            record.msg = f"{record.msg} (before that {before} faults of requests were not logged)"
        return True


class _OfTransports(Seldom):
    """The same for asyncio's words about peers that are gone while something is written to them."""

    _WORDS: Final = frozenset({"SSL connection is closed", "socket.send() raised exception."})

    def filter(self, record: logging.LogRecord) -> bool:
        return record.msg not in self._WORDS or super().filter(record)


REQUESTS: Final = logging.getLogger("dra_kube.requests")
REQUESTS.addFilter(_WithoutContent())
logging.getLogger("asyncio").addFilter(_OfTransports())


def request_log(clock: Callable[[], float] = time.monotonic) -> logging.Logger:
    """Return a logger for one server, whose lines appear as those of ``REQUESTS``."""
    limited = logging.Logger(REQUESTS.name)
    limited.parent = REQUESTS
    limited.addFilter(_WithoutContent())
    limited.addFilter(Seldom(clock))
    return limited
