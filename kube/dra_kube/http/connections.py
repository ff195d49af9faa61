"""Connections to an API server: how they are made, through an HTTP proxy too, what one is good for, and their end.

An ``Exchange`` takes one request after the other, each a whole message with a whole answer. httptools parses the
answers. A connection is good for another request when an answer was complete, the server keeps the connection open, and
nothing else came. It keeps nothing of an answer that was given, and when it is lost nothing of what asyncio made for
it: TLS alone has 256 KiB for each, and hundreds may be lost before the next one is made.

``Sockets`` remembers the sockets of a pool, so that all of them can be closed. aiohttp closes a connection that is in
use, as a cancelled watch leaves it, with a TLS goodbye and waits up to 30 s for the server's. The end of a session
neither waits for that nor cuts it short, so the socket would outlive the event loop.
"""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import urlsplit
from weakref import WeakSet

import httptools
from aiohappyeyeballs import start_connection
from aiohttp import AddrInfoType

from dra_kube.access.connection import Connection, proxy_and_credentials
from dra_kube.access.credentials import newest

LARGEST_OBJECT_BYTES = 32 << 20
"""Bytes of an answer about one object. kube-apiserver takes requests of 3 MB, and in its answers a character may become
six."""
_INTERIM = range(100, 200)
_FRAMED = (b"content-length", b"transfer-encoding")


class CutOff(OSError):
    """The connection ended before the answer was complete, or what came is no answer."""


class TooLarge(CutOff):
    """The answer is longer than any that is about one object."""


class Answer(NamedTuple):
    """A status with its content; ``retry_after`` is the header of that name."""

    status: int
    retry_after: str | None
    content: bytes


class Exchange(asyncio.Protocol):
    """The connection as asyncio's protocol; ``ask`` only while ``is_good``, and not before the last answer came.

    ``tls``: the settings with which it is made.
    """

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        self.tls = tls
        self.is_good = False
        self.is_lost = False
        self._transport: asyncio.Transport | None = None
        self._poll = select.poll()
        self._answer: asyncio.Future[Answer] | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._parts: list[bytes] = []

    async def ask(self, request: bytes) -> Answer:
        """Send a request and wait for its answer. Raises OSError; the connection then is good no more.

        A wait that is cancelled ends the connection as well.
        """
        assert self._transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self._parts = []
        self._size = 0
        self._retry_after: str | None = None
        self._has_begun = self._is_framed = False
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            return await self._answer
        except BaseException:
            self.close()
            raise
        finally:
            self._answer = None

    def is_stale(self) -> bool:
        """Whether the other side has closed the connection, or sent what was not asked for, perhaps unseen so far.

        asyncio notices that only when the event loop has read it, which a long calculation may delay.
        """
        if not self.is_good or self._transport is None or self._transport.is_closing():
            return True
        return bool(self._poll.poll(0))

    def close(self) -> None:
        """End the connection at once, without a goodbye that the other side may never answer."""
        self.is_good = False
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands, with TLS if there is any."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._poll.register(transport.get_extra_info("socket"), select.POLLIN)
        self.is_good = True

    def data_received(self, data: bytes) -> None:
        """A piece of an answer."""
        if self._parser is None or self._answer is None or self._answer.done():
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(CutOff(f"the server did not answer in HTTP: {error}"))

    def connection_lost(self, error: Exception | None) -> None:
        """Without a length of its content, an answer ends with the connection."""
        self.is_good, self.is_lost = False, True
        if self._answer is not None and not self._answer.done():
            if self._has_begun and not self._is_framed and error is None:
                self._end()
            else:
                self._fail(CutOff(str(error) if error else "Server disconnected"))
        self._transport = self._parser = None
        self._parts = []

    # --- httptools ---

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header of the answer."""
        name = name.lower()
        if name in _FRAMED:
            self._is_framed = True
        elif name == b"retry-after":
            self._retry_after = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """The content follows, if there is one."""
        self._has_begun = True

    def on_body(self, part: bytes) -> None:
        """A part of the content."""
        self._parts.append(part)
        self._size += len(part)
        if self._size > LARGEST_OBJECT_BYTES:
            self._fail(TooLarge(f"the answer is larger than {LARGEST_OBJECT_BYTES >> 20} MiB"))

    def on_message_complete(self) -> None:
        """The answer is whole, unless it says no more than that there will be one."""
        assert self._parser is not None
        if self._parser.get_status_code() in _INTERIM:
            self._has_begun = False
        elif self._answer is None or self._answer.done():  # a second one, which was not asked for
            self.close()
        else:
            self.is_good = self.is_good and self._parser.should_keep_alive()
            self._end()

    def _end(self) -> None:
        assert self._answer is not None
        assert self._parser is not None
        content, self._parts = b"".join(self._parts), []
        self._answer.set_result(Answer(self._parser.get_status_code(), self._retry_after, content))

    def _fail(self, error: OSError) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
        self.close()


_MOST_LOOP_TURNS = 100
"""Turns of the event loop, at most; four were enough for each state of a connection that was tried."""


async def until_closed(are_closed: Callable[[], bool]) -> None:
    """Let the event loop turn: transports close their sockets in its next turns, whatever the other side does."""
    for _ in range(_MOST_LOOP_TURNS):
        if are_closed():
            return
        await asyncio.sleep(0)


class Sockets:
    """Makes the sockets of an ``aiohttp.TCPConnector``, which takes ``make`` as its ``socket_factory``."""

    def __init__(self) -> None:
        self._made: WeakSet[socket.socket] = WeakSet()

    def make(self, address: AddrInfoType) -> socket.socket:
        """A socket for an address of ``getaddrinfo``."""
        family, kind, protocol, *_ = address
        made = socket.socket(family, kind, protocol)
        self._made.add(made)
        return made

    async def close(self) -> None:
        """Shut down what is open after the end of the session, and let its transports notice."""
        for made in self._open():
            with suppress(OSError):  # the other side was faster
                made.shutdown(socket.SHUT_RDWR)
        await until_closed(lambda: not self._open())

    def _open(self) -> list[socket.socket]:
        return [made for made in self._made if made.fileno() >= 0]


_NEXT_ADDRESS_SECONDS = 0.25
"""Seconds after which the next address of a host is tried as well."""
_PORTS = {"http": 80, "https": 443}
_LONGEST_GREETING_BYTES = 2**16


async def connect(connection: Connection) -> Exchange:
    """A new connection. Raises OSError; a name or certificate that is wrong is one as well."""
    url = urlsplit(connection.host)
    host, port = url.hostname or "", url.port or _PORTS[url.scheme]
    loop = asyncio.get_running_loop()
    tls = newest(connection.tls) if connection.tls is not None else None
    if connection.proxy:
        transport = await _tunnel(connection.proxy, f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        exchange = Exchange(tls)
        if tls is None:
            transport.set_protocol(exchange)
            exchange.connection_made(transport)
        else:
            secured = await loop.start_tls(transport, exchange, tls, server_hostname=host)
            assert secured is not None
            exchange.connection_made(secured)
        return exchange
    addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    # asyncio has the delay as well, but loses a socket when it is cancelled in the moment that it connects
    connected = await start_connection(addresses, happy_eyeballs_delay=_NEXT_ADDRESS_SECONDS)
    named = host if tls else None
    _, exchange = await loop.create_connection(lambda: Exchange(tls), sock=connected, ssl=tls, server_hostname=named)
    return exchange


async def _tunnel(proxy: str, target: str) -> asyncio.Transport:
    """A connection to ``target`` through the proxy."""
    url = urlsplit(proxy)
    if url.scheme not in _PORTS:
        raise OSError(f"proxy {url.scheme}: only http and https proxies are supported")
    transport, greeting = await asyncio.get_running_loop().create_connection(
        _Greeting, url.hostname or "", url.port or _PORTS[url.scheme], ssl=url.scheme == "https" or None
    )
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
    if (credentials := proxy_and_credentials(proxy)[1]) is not None:
        lines.append(f"Proxy-Authorization: {credentials}")
    try:
        transport.write("\r\n".join([*lines, "", ""]).encode())
        status = await greeting.answer
        if status.split(b" ")[1:2] != [b"200"]:
            raise OSError(f"the proxy {url.hostname} refuses: {status.decode(errors='replace')[:200]}")
    except BaseException:
        transport.abort()
        raise
    return transport


class _Greeting(asyncio.Protocol):
    """The head of the proxy's answer, of which ``answer`` is the first line."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._head = b""

    def data_received(self, data: bytes) -> None:
        """The head, in pieces; nothing can follow before we speak."""
        self._head += data
        if self.answer.done():
            return
        if b"\r\n\r\n" in self._head:
            self.answer.set_result(self._head.partition(b"\r\n")[0])
        elif len(self._head) > _LONGEST_GREETING_BYTES:
            self.answer.set_exception(OSError("the proxy did not answer in HTTP"))

    def connection_lost(self, error: Exception | None) -> None:
        """The proxy has closed the connection."""
        if not self.answer.done():
            self.answer.set_exception(OSError("the proxy closed the connection"))
