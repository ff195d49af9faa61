"""The sockets of a pool of connections, so that all of them can be closed.

aiohttp closes a connection that is in use, as a cancelled watch leaves it, with a TLS goodbye and waits up to 30 s for
the server's. The end of a session neither waits for that nor cuts it short, so the socket would outlive the event loop.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from weakref import WeakSet

from aiohttp import AddrInfoType

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
