"""A client of the port of probes and metrics cannot close it for others."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from dra_kube import door
from dra_kube.door import open_door

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def serving() -> AsyncIterator[int]:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    app = web.Application()
    app.router.add_get("/", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
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


async def test_more_connections_than_there_is_room_for_are_closed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "MOST_CONNECTIONS", 3)
    async with serving() as port:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await held[3][0].readexactly(1)
        await close(held)
        async with asyncio.timeout(20):
            while True:
                try:
                    assert await get(port) == "ok"
                    break
                except aiohttp.ClientError:
                    await asyncio.sleep(0.01)  # the server has yet to see that the others are closed


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nHost: here\r\n"], ids=["nothing", "half a head"])
async def test_who_does_not_say_what_it_wants_is_sent_away(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "HEAD_SECONDS", 0.1)
    async with serving() as port, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(said)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        await close([(reader, writer)])


async def test_no_connection_stays_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "LIFE_SECONDS", 0.3)
    async with serving() as port, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
        assert b"200" in await reader.readline()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(10_000)
        await close([(reader, writer)])


async def test_a_process_without_descriptors_says_so_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.get_running_loop()
    context = {"message": "socket.accept() out of system resource", "exception": OSError(errno.EMFILE, "Too many")}
    async with serving():
        with caplog.at_level(logging.WARNING):
            for _ in range(1000):
                loop.call_exception_handler(context)
    assert len(caplog.records) == 1
    assert "Too many" in caplog.text


async def test_other_errors_of_the_loop_are_told_as_before(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: heard.append(context["message"]))
    try:
        async with serving():
            loop.call_exception_handler({"message": "another one"})
        loop.call_exception_handler({"message": "after it"})
    finally:
        loop.set_exception_handler(None)
    assert heard == ["another one", "after it"]
