"""Connections to an API server: how they are made, and how all of them are closed.

The sockets of a pool of connections, so that all of them can be closed.

aiohttp closes a connection that is in use, as a cancelled watch leaves it, with a TLS goodbye and waits up to 30 s for
the server's. The end of a session neither waits for that nor cuts it short, so the socket would outlive the event loop.

Connects to an API server, through an HTTP proxy if the kubeconfig or the environment names one.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit
from weakref import WeakSet

from aiohappyeyeballs import start_connection
from aiohttp import AddrInfoType

from dra_kube.access.connection import Connection, proxy_and_credentials
from dra_kube.access.tls import newest
from dra_kube.http.exchange import Exchange

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
