"""A client of the port of probes and metrics cannot close it for others."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import aiohttp
import pytest
from aiohttp import web
from dra_kube import door
from dra_kube.door import Guest, open_door, welcoming

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Answer = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


async def ok(_: web.BaseRequest) -> web.Response:
    return web.Response(text="ok")


@asynccontextmanager
async def serving(answer: Answer = ok) -> AsyncIterator[int]:
    runner = web.ServerRunner(web.Server(answer, access_log=None), shutdown_timeout=1.0)
    await runner.setup()
    try:
        async with open_door(runner, "127.0.0.1", 0) as (host, port):
            assert host == "127.0.0.1"
            yield port
    finally:
        await runner.cleanup()


async def get(port: int) -> str:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/") as answer:
        return await answer.text()


async def close(connections: list[Connection]) -> None:
    for _, writer in connections:
        writer.close()
    await asyncio.gather(*(writer.wait_closed() for _, writer in connections), return_exceptions=True)


async def test_requests_are_answered() -> None:
    async with serving() as port:
        assert await get(port) == "ok"


async def test_a_newcomer_displaces_the_connection_that_has_been_idle_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "MOST_CONNECTIONS", 3)
    async with serving() as port, asyncio.timeout(20):
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        assert await get(port) == "ok"
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await held[0][0].readexactly(1)
        for _, writer in held[1:]:
            writer.write(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
        assert all([b"200" in await reader.readline() for reader, _ in held[1:]])
        await close(held)


async def test_a_peer_with_few_connections_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "MOST_CONNECTIONS", 3)
    async with serving() as port, asyncio.timeout(20):
        kept = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0))
        others = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        kept[1].write(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
        assert b"200" in await kept[0].readline()
        await close([kept, *others])


async def test_a_request_that_is_answered_outlasts_silent_newcomers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "MOST_CONNECTIONS", 4)
    asked, may_answer = asyncio.Event(), asyncio.Event()

    async def answer(_: web.BaseRequest) -> web.Response:
        asked.set()
        await may_answer.wait()
        return web.Response(text="ok")

    async with serving(answer) as port, asyncio.timeout(20):
        asking = asyncio.create_task(get(port))
        await asked.wait()
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        may_answer.set()
        assert await asking == "ok"
        await close(silent)


async def test_slow_requests_displace_no_newcomer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "MOST_CONNECTIONS", 4)

    async def answer(request: web.BaseRequest) -> web.Response:
        if request.path == "/slow":
            await asyncio.sleep(20)
        return web.Response(text="ok")

    async with serving(answer) as port, asyncio.timeout(20):
        slow = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        for _, writer in slow:
            writer.write(b"GET /slow HTTP/1.1\r\nHost: here\r\n\r\n")
        newcomer = await asyncio.open_connection("127.0.0.1", port)
        late = await asyncio.open_connection("127.0.0.1", port)
        newcomer[1].write(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
        assert b"200" in await newcomer[0].readline()
        await close([*slow, newcomer, late])


async def test_a_connection_brings_one_request_and_ends_with_its_answer() -> None:
    async with serving() as port, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n" * 100)
        answer = await reader.read()
        assert answer.count(b"HTTP/1.1 200") == 1
        assert b"Connection: close" in answer
        await close([(reader, writer)])


@pytest.mark.parametrize("said", [b"\x16\x03\x01\x00\xc8", b"A" * 100_000], ids=["TLS", "no end"])
async def test_what_is_no_http_is_closed_at_once(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "HEAD_SECONDS", 60.0)
    async with serving() as port, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(said)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        await close([(reader, writer)])


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nHost: here\r\n"], ids=["nothing", "half a head"])
async def test_who_does_not_say_what_it_wants_is_sent_away(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "HEAD_SECONDS", 0.1)
    async with serving() as port, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(said)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        await close([(reader, writer)])


@pytest.mark.parametrize("iterations", range(6))
async def test_a_connection_is_closed_whenever_the_server_stops(iterations: int) -> None:
    """Not left open, without anyone who listens to it, between its acceptance and its first request."""
    with socket.socket() as client:
        async with serving() as port:
            client.connect(("127.0.0.1", port))
            for _ in range(iterations):
                await asyncio.sleep(0)
        client.settimeout(20)
        with suppress(ConnectionError):
            assert await asyncio.to_thread(client.recv, 1) == b""


async def test_connections_that_ask_nothing_are_closed_when_the_door_closes() -> None:
    """Also behind a door whose owner knows nothing of them, like that of grpc."""
    with socket.socket() as client:
        async with welcoming("127.0.0.1", 0, Guest) as address:
            client.connect(address)
            await asyncio.sleep(0.05)
        client.settimeout(20)
        with suppress(ConnectionError):
            assert await asyncio.to_thread(client.recv, 1) == b""


async def test_no_connection_stays_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "LIFE_SECONDS", 0.3)
    async with serving() as port, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
        assert b"200" in await reader.readline()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(10_000)
        await close([(reader, writer)])


async def test_a_process_without_descriptors_says_so_once_a_minute_and_answers_newcomers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each newcomer displaces a connection of those that hold them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with serving() as port, asyncio.timeout(20):
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(8)]
        clients = [socket.socket() for _ in range(4)]
        highest = max(map(int, os.listdir("/proc/self/fd")))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
        fillers = []
        with suppress(OSError):
            while True:
                fillers.append(socket.socket())
        try:
            for client in clients:
                client.setblocking(False)
                await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port))
                await asyncio.get_running_loop().sock_sendall(client, b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
            for client in clients:
                assert b"200" in await asyncio.get_running_loop().sock_recv(client, 100)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for one in [*fillers, *clients]:
                one.close()
        await close(held)
    assert len([record for record in caplog.records if "cannot accept" in record.message]) == 1
    assert "Too many" in caplog.text


async def test_headers_that_are_no_text_are_the_fault_of_the_client(caplog: pytest.LogCaptureFixture) -> None:
    async def answer(request: web.BaseRequest) -> web.Response:
        return web.Response(text=f"unknown: {request.headers['Expect']}")

    async with serving(answer) as port, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: here\r\nExpect: \xff\xfe\r\n\r\n")
        assert b" 400 " in await reader.readline()
        await close([(reader, writer)])
    assert caplog.records == []
