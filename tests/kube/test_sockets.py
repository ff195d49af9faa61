"""No socket outlives its pool of connections, whatever its server does."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Iterator

import aiohttp
import pytest
from aiohttp import AddrInfoType
from dra_devcluster.apiserver.identity import make_identity
from dra_kube.http.connections import Sockets


class Mute(threading.Thread):
    """A server that shakes hands with one client, then neither reads nor answers until the end."""

    def __init__(self) -> None:
        super().__init__()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = "https://{}:{}".format(*self._listening.getsockname())
        self.met, self.over = threading.Event(), threading.Event()

    def run(self) -> None:
        with self._listening, make_identity("127.0.0.1").tls.wrap_socket(self._listening, server_side=True) as tls:
            client, _ = tls.accept()
            self.met.set()
            self.over.wait()
            client.close()


@pytest.fixture
def mute() -> Iterator[Mute]:
    server = Mute()
    server.start()
    yield server
    server.over.set()
    server.join()


async def test_a_cancelled_request_leaves_no_socket_although_the_server_says_no_goodbye(mute: Mute) -> None:
    made: list[socket.socket] = []
    sockets = Sockets()

    def make(address: AddrInfoType) -> socket.socket:
        made.append(sockets.make(address))
        return made[-1]

    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context, socket_factory=make)) as session:
        waiting = asyncio.create_task(session.get(mute.address))
        await asyncio.to_thread(mute.met.wait)
        waiting.cancel()
        await asyncio.wait([waiting])
    (left,) = made
    assert left.fileno() >= 0, "aiohttp waits for a goodbye"
    await sockets.close()
    assert left.fileno() < 0
