"""``port-forward``: frames of SPDY, and connections through API server and node."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator

import aiohttp
import pytest
from dra_devcluster.agent.network.port_forward import (
    DICTIONARY,
    SYN_REPLY_CODE,
    Frame,
    FrameWriter,
    Reader,
    SpdyError,
    data,
)
from hypothesis import given
from hypothesis import strategies as st
from node_exec import http_client
from one_node import OneNode

PROTOCOL = "SPDY/3.1+portforward.k8s.io"
headers = st.dictionaries(st.text(max_size=20), st.text(max_size=20), max_size=4)


def test_the_dictionary_is_that_of_the_protocol() -> None:
    assert (len(DICTIONARY), DICTIONARY[:11], DICTIONARY[-6:]) == (1423, b"\0\0\0\x07options", b"enq=0.")


@given(st.lists(headers, max_size=3), st.integers(1, 40))
def test_streams_are_read_as_they_were_opened_however_the_bytes_arrive(opened: list[dict[str, str]], size: int) -> None:
    writer, reader = FrameWriter(), Reader()
    content = b"".join(writer.open(number, one) for number, one in enumerate(opened, 1))
    pieces = (content[at : at + size] for at in range(0, len(content), size))
    frames = [frame for piece in pieces for frame in reader.feed(piece)]
    assert [reader.headers(frame) for frame in frames] == opened


def test_data_is_read_with_its_end() -> None:
    assert list(Reader().feed(data(3, b"abc", fin=True))) == [Frame(0, 3, True, b"abc")]


@pytest.mark.parametrize("content", [b"\x80\x03\0\x01\0\xff\xff\xff", b"\0\0\0\x01\0\x20\0\0"])
def test_a_frame_that_is_too_long_is_refused(content: bytes) -> None:
    with pytest.raises(SpdyError):
        list(Reader().feed(content))


def test_headers_that_cannot_be_read_are_refused() -> None:
    with pytest.raises(SpdyError):
        Reader().headers(Frame(1, 1, False, b"not compressed at all"))


# --- a session ---


class Client:
    """What ``kubectl port-forward`` does on the wire."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._writer = FrameWriter()
        self._reader = Reader()

    async def connect(self, port: int, request: int, *sent: bytes) -> tuple[bytes, bytes]:
        """Open the two streams, send and end; what came back as data, and as an error."""
        error, stream = 4 * request + 1, 4 * request + 3
        for number, kind in ((error, "error"), (stream, "data")):
            pairs = {"streamtype": kind, "port": str(port), "requestid": str(request)}
            await self._socket.send_bytes(self._writer.open(number, pairs))
        for number, content, fin in [(error, b"", True), *((stream, one, False) for one in sent), (stream, b"", True)]:
            await self._socket.send_bytes(data(number, content, fin=fin))
        got, ended = {error: b"", stream: b""}, set()
        async for message in self._socket:
            for frame in self._reader.feed(message.data):
                if frame.kind == 0:
                    got[frame.stream] += frame.body
                    ended |= {frame.stream} if frame.fin else set()
                else:
                    assert frame.kind == SYN_REPLY_CODE
            if ended == {error, stream}:
                break
        return got[stream], got[error]


@pytest.fixture
async def echo() -> AsyncIterator[int]:
    """The port of a server that sends everything back in capitals."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.read()).upper())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


async def test_connections_reach_the_port_one_after_the_other_and_failures_are_told(node: OneNode, echo: int) -> None:
    await node.pod("pod-a")
    await node.phase("pod-a", "Running")
    url = "/api/v1/namespaces/default/pods/pod-a/portforward"
    async with http_client(node) as session, session.ws_connect(url, protocols=[PROTOCOL]) as socket:
        client = Client(socket)
        assert await client.connect(echo, 0, b"hello, ", b"port") == (b"HELLO, PORT", b"")
        large = b"x" * 300_000
        assert await client.connect(echo, 1, large) == (large.upper(), b"")
        got, error = await client.connect(1, 2)
        assert (got, error[:29]) == (b"", b"failed to connect to port 1: ")


async def test_a_connection_that_the_port_breaks_off_ends_and_the_next_one_is_made(node: OneNode, echo: int) -> None:
    async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        lingering = struct.pack("ii", 1, 0)  # so that closing resets the connection
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, lingering)
        writer.transport.abort()

    rude = await asyncio.start_server(break_off, "127.0.0.1", 0)
    await node.pod("pod-a")
    await node.phase("pod-a", "Running")
    url = "/api/v1/namespaces/default/pods/pod-a/portforward"
    async with http_client(node) as session, session.ws_connect(url, protocols=[PROTOCOL]) as websocket, rude:
        client = Client(websocket)
        assert await client.connect(rude.sockets[0].getsockname()[1], 0, b"hello") == (b"", b"")
        assert await client.connect(echo, 1, b"again") == (b"AGAIN", b"")


async def test_a_client_that_speaks_no_spdy_is_disconnected(node: OneNode) -> None:
    await node.pod("pod-a")
    await node.phase("pod-a", "Running")
    url = "/api/v1/namespaces/default/pods/pod-a/portforward"
    async with http_client(node) as session:
        async with session.ws_connect(url, protocols=[PROTOCOL]) as socket:
            await socket.send_bytes(b"GET / HTTP/1.1 and more")
            assert (await socket.receive()).type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)
