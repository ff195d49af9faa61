"""Sends writes: whether, how often, and how late.

The session of aiohttp, which does for reads, repeats a PUT or DELETE by itself, leaves the sending to a task, and takes
six times as long for a request as the connection itself. Writes are nearly all that the operator sends. So they have
connections of their own (``connections``).

**Once.** A write whose answer is lost may have taken effect, so only the caller can decide whether to repeat it.
``settle`` ends the sending of writes and knows whether the fate of one is unknown.

**Not on a dead connection.** The next write on a connection that the server closed while it was idle would fail
needlessly. So a used connection is checked right before the request. If there is anything to read, nothing is sent,
and the request takes another connection.

**Bounded.** kube-apiserver works on a write for up to 60 s, whether or not the client still waits, unless the query
parameter ``timeout`` says otherwise. It is set below the client's own limit, so that a write does not take effect long
after the client gave up on it.

**Guarded.** The guard raises when no write may be sent, and otherwise gives the seconds within which one must have
taken effect. It is asked when the connection stands, and once more when the request goes out: the process may have been
stopped in between. So the server is given half of the seconds, and the other half may pass between the two questions.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from urllib.parse import quote, urlencode, urlsplit

from dra_kube.access.connection import Connection
from dra_kube.access.credentials import newest
from dra_kube.errors import ConnectionSettingsError, NotSent
from dra_kube.http.connections import Answer, Exchange, connect, until_closed


def boot_time() -> float:
    """Seconds on a clock that counts while the process is stopped and while the machine is suspended."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.clock_gettime(time.CLOCK_MONOTONIC)  # macOS: this one counts while the machine is suspended


Header = tuple[str, str]
Guard = Callable[[], float]
"""Seconds within which a write that is sent now has to take effect. Raises KubeError when none may be sent."""

_SHARE = 0.9
"""The share of the limit for one request that the server may spend on a write."""
CONNECT_SECONDS = 10.0
"""For a new connection, of reads as of writes."""
_MOST_HANDSHAKES = 16
"""At a time. Each takes both sides some milliseconds: in a burst of writes hundreds together would take too long."""


def unguarded() -> float:
    """Every write may be sent, and may take its time."""
    return math.inf


class Sending:
    """The connections for writes. A write may take ``timeout`` seconds, unless the guard allows less to the server.

    A connection that was idle for ``keepalive`` seconds is not used again.
    """

    def __init__(self, connection: Connection, timeout: float, keepalive: float, guard: Guard) -> None:
        self._connection, self._timeout, self._keepalive, self._guard = connection, timeout, keepalive, guard
        url = urlsplit(connection.host)
        self._host, self._base = url.netloc.rpartition("@")[2], url.path
        self._connections: set[Exchange] = set()
        """All that were made and are not lost yet."""
        self._is_closed = False
        self._idle: deque[tuple[float, Exchange]] = deque()  # the longest idle first
        self._handshakes = 0
        self._turns: deque[asyncio.Future[None]] = deque()  # of writes that wait for a connection
        self._in_flight = 0
        self._open_until = -math.inf  # from then on no write without an answer can take effect
        self._changed = asyncio.Event()
        self._gate = asyncio.Event()
        self._gate.set()

    async def send(
        self, method: str, path: str, query: Mapping[str, str], headers: Iterable[Header], body: bytes
    ) -> Answer:
        """The answer to a write. Raises OSError, TimeoutError, and what the guard raises."""
        async with asyncio.timeout(self._timeout):
            await self._gate.wait()
            self._in_flight += 1
            try:
                return await self._once(method, f"{self._base}{quote(path)}", query, headers, body)
            finally:
                self._in_flight -= 1
                self._changed.set()

    async def _once(
        self, method: str, path: str, query: Mapping[str, str], headers: Iterable[Header], body: bytes
    ) -> Answer:
        exchange = await self._take()
        is_known = True
        try:
            seconds = min(self._timeout * _SHARE, self._guard() / 2)
            target = f"{path}?{f'{urlencode(query)}&' if query else ''}timeout={seconds:.3f}s"
            sent = [("Host", self._host), *headers, ("Content-Length", str(len(body)))]
            request = _head(method, target, sent) + body
            if self._guard() < seconds:
                raise NotSent("the write was delayed for too long and was not sent")
            is_known = False
            answer = await exchange.ask(request)
            is_known = True
        finally:
            if not is_known:
                self._open_until = boot_time() + self._timeout * _SHARE
            self._keep(exchange)
        return answer

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

    async def close(self) -> None:
        """Close all connections, and those that come about later."""
        self._is_closed = True
        self._idle.clear()
        for exchange in self._connections:
            exchange.close()
        await until_closed(lambda: all(exchange.is_lost for exchange in self._connections))
        self._connections.clear()

    async def _take(self) -> Exchange:
        """A connection that is free, or else a new one."""
        if self._turns:
            await self._turn()
        while (exchange := self._waiting()) is None:
            if self._handshakes < _MOST_HANDSHAKES:
                return await self._connect()
            await self._turn()
        return exchange

    async def _turn(self) -> None:
        """Wait until a connection may be free, or a new one may be made."""
        turn = asyncio.get_running_loop().create_future()
        self._turns.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._next_turn()  # it had come
            elif turn in self._turns:
                self._turns.remove(turn)
            raise

    def _next_turn(self) -> None:
        while self._turns:
            turn = self._turns.popleft()
            if not turn.cancelled():  # or else its task does not know it yet
                turn.set_result(None)
                return

    def _waiting(self) -> Exchange | None:
        """A connection that was used before and is good for another request: the one that was idle for least.

        One that showed an older certificate, or trusted another authority, is not.
        """
        tls = newest(self._connection.tls) if self._connection.tls is not None else None
        while self._idle:
            _, exchange = self._idle.pop()
            if exchange.tls is tls and not exchange.is_stale():
                return exchange
            exchange.close()
        return None

    async def _connect(self) -> Exchange:
        limit = min(self._timeout, CONNECT_SECONDS)
        self._handshakes += 1
        try:
            async with asyncio.timeout(limit):
                exchange = await connect(self._connection)
        except TimeoutError as error:
            raise TimeoutError(f"no connection within {limit:g} s") from error
        finally:
            self._handshakes -= 1
            self._next_turn()
        self._connections = {each for each in self._connections if not each.is_lost} | {exchange}
        if self._is_closed:
            exchange.close()
            raise OSError("the client is closed")
        return exchange

    def _keep(self, exchange: Exchange) -> None:
        now = boot_time()
        if exchange.is_good and not self._is_closed:
            self._idle.append((now, exchange))
        else:
            exchange.close()
        while self._idle and now - self._idle[0][0] > self._keepalive:
            self._idle.popleft()[1].close()
        self._next_turn()


def _head(method: str, target: str, headers: Iterable[Header]) -> bytes:
    """Raises ConnectionSettingsError for a header with a line break: only credentials come from elsewhere."""
    lines = [f"{method} {target} HTTP/1.1", *[f"{name}: {value}" for name, value in headers], "\r\n"]
    head = "\r\n".join(lines)
    if head.count("\r") + head.count("\n") > 2 * len(lines):
        raise ConnectionSettingsError("the credentials contain a line break, which HTTP does not allow; remove it")
    return head.encode("utf-8", "replace")
