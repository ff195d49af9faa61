"""A server that stops listening loses no connection that it has accepted."""

from __future__ import annotations

import asyncio
import select
import socket

import pytest
from dra_kube.listening import stop_listening


@pytest.mark.parametrize("iterations", range(4))
async def test_a_connection_is_accepted_or_refused_whenever_the_server_stops_listening(iterations: int) -> None:
    """After two iterations it is accepted, and has no transport yet."""
    made: list[asyncio.BaseTransport] = []

    class Visitor(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            made.append(transport)

    server = await asyncio.get_running_loop().create_server(Visitor, "127.0.0.1", 0)
    [listening] = server.sockets
    with socket.create_connection(listening.getsockname(), timeout=20) as client:
        assert select.select([listening.fileno()], [], [], 20)[0], "it waits to be accepted"
        for _ in range(iterations):
            await asyncio.sleep(0)
        await stop_listening(server)
        for _ in range(5):
            await asyncio.sleep(0)
        if not made:
            with pytest.raises(ConnectionResetError):
                client.recv(1)
        for transport in made:
            assert isinstance(transport, asyncio.Transport)
            transport.abort()
            await asyncio.to_thread(client.recv, 1)


async def test_a_server_whose_stop_is_cancelled_does_not_listen_on() -> None:
    """Clients would connect, and wait for ever."""
    server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
    stopping = asyncio.create_task(stop_listening(server))
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert not server.is_serving()
