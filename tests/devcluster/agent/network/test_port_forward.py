"""``port-forward``: frames of SPDY, and connections through API server and node."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import cast

import aiohttp
import pytest
from aiohttp import web
from dra_devcluster.agent import port_forward
from dra_devcluster.agent.pod_network import Network
from dra_devcluster.agent.port_forward import (
    DICTIONARY,
    MOST_CONNECTIONS,
    PING_CODE,
    RST_STREAM_CODE,
    SYN_REPLY_CODE,
    Frame,
    FrameWriter,
    PortForward,
    Reader,
    SpdyError,
    data,
)
from hypothesis import given
from hypothesis import strategies as st
from one_node import OneNode, http_client

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


def test_headers_that_unpack_to_much_more_are_refused() -> None:
    (frame,) = Reader().feed(FrameWriter().open(1, {"port": "0" * 1_000_000}))
    with pytest.raises(SpdyError, match="more than 65536 bytes"):
        Reader().headers(frame)


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


# --- programs that read slowly, and clients without end ---

MIB = 1 << 20
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Offered:
    """The websocket of a client that has messages ready as soon as the session takes the next one."""

    def __init__(self, *messages: Callable[[], bytes] | bytes, last: bytes = b"") -> None:
        self._messages = iter(messages)
        self._last = [last] if last else []
        self._reader = Reader()
        self.taken_bytes = 0
        self.got: list[Frame] = []
        self.told = asyncio.Event()
        self.hold = asyncio.Event()

    def __aiter__(self) -> Offered:
        return self

    async def __anext__(self) -> aiohttp.WSMessage:
        for message in self._messages:
            content = message if isinstance(message, bytes) else message()
            self.taken_bytes += len(content)
            await asyncio.sleep(0)  # others have a turn between two messages
            return aiohttp.WSMessage(aiohttp.WSMsgType.BINARY, content, None)
        await self.hold.wait()
        if not self._last:
            raise StopAsyncIteration
        return aiohttp.WSMessage(aiohttp.WSMsgType.BINARY, self._last.pop(), None)

    async def send_bytes(self, content: bytes) -> None:
        self.got.extend(self._reader.feed(content))
        self.told.set()

    async def close(self) -> None:
        """The session closes it at its end."""

    async def received(self, stream: int) -> bytes:
        """What the session sent on this stream, once it has ended."""
        while not any(frame.stream == stream and frame.fin for frame in self.got):
            self.told.clear()
            await self.told.wait()
        return b"".join(frame.body for frame in self.got if frame.kind == 0 and frame.stream == stream)

    def refused(self) -> set[int]:
        """The streams that the session refused."""
        return {frame.stream for frame in self.got if frame.kind == RST_STREAM_CODE}


@asynccontextmanager
async def session(client: Offered) -> AsyncIterator[None]:
    """A session with the client, on the network of this machine."""
    running = asyncio.create_task(PortForward(cast(web.WebSocketResponse, client), Network()).run())
    try:
        yield
    finally:
        client.hold.set()
        await running


def opened(writer: FrameWriter, port: int, request: int) -> bytes:
    """Both streams of a connection: ``4 * request + 1`` for errors, ``4 * request + 3`` for data."""
    pairs = {"port": str(port), "requestid": str(request)}
    error = writer.open(4 * request + 1, pairs | {"streamtype": "error"})
    return error + writer.open(4 * request + 3, pairs | {"streamtype": "data"})


def reset(stream: int) -> bytes:
    """The client does not want the stream any more."""
    return struct.pack(">HHIII", 0x8003, RST_STREAM_CODE, 8, stream, 5)


async def test_pings_are_answered_and_the_place_of_an_error_stream_that_is_not_wanted_is_free_again() -> None:
    writer = FrameWriter()
    errors = [writer.open(4 * number + 1, {"streamtype": "error", "requestid": str(number)}) for number in range(258)]
    ping = struct.pack(">HHII", 0x8003, PING_CODE, 4, 7)
    client = Offered(*errors[:256], reset(1), *errors[256:], ping)
    async with session(client):
        while Frame(PING_CODE, 7, False, b"") not in [frame._replace(body=b"") for frame in client.got]:
            client.told.clear()
            await asyncio.wait_for(client.told.wait(), 20)
        assert client.refused() == {4 * 257 + 1}


@asynccontextmanager
async def program(serve: Callable[[Streams], Awaitable[None]]) -> AsyncIterator[int]:
    """The port of a program, which ends with the block."""
    serving: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def until_cancelled() -> None:
            try:
                await serve((reader, writer))
            finally:
                writer.transport.abort()

        serving.add(asyncio.create_task(until_cancelled()))

    async with await asyncio.start_server(accept, "127.0.0.1", 0, backlog=MOST_CONNECTIONS) as server:
        yield server.sockets[0].getsockname()[1]
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)


async def read_nothing(_: Streams) -> None:
    """A program that takes connections and is stuck."""
    await asyncio.Event().wait()


async def test_a_program_that_reads_slowly_holds_up_the_client_and_gets_everything() -> None:
    lags = []

    async def read_slowly(streams: Streams) -> None:
        read_bytes = 0
        while chunk := await streams[0].read(MIB):
            read_bytes += len(chunk)
            lags.append(client.taken_bytes - read_bytes)
        streams[1].write(str(read_bytes).encode())
        streams[1].write_eof()
        await streams[1].drain()

    async with program(read_slowly) as port:
        messages = [lambda: data(3, bytes(MIB))] * 64
        client = Offered(opened(FrameWriter(), port, 0), *messages, data(3, b"", fin=True))
        async with session(client):
            assert (await client.received(3), await client.received(1)) == (str(64 * MIB).encode(), b"")
    assert max(lags) < 24 * MIB, "what the system keeps for a connection, and a few pieces"


async def test_a_program_that_reads_nothing_is_broken_off_and_the_next_connection_is_served(
    echo: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port_forward, "STILL_SECONDS", 0.05)
    async with program(read_nothing) as port:
        writer = FrameWriter()
        messages = [lambda: data(3, bytes(MIB))] * 64
        client = Offered(opened(writer, port, 0), *messages, opened(writer, echo, 1), data(7, b"next", fin=True))
        async with session(client):
            assert await client.received(7) == b"NEXT"
            assert await client.received(1) == b"the program at the port has read nothing for 0.05 s"


async def test_a_client_has_a_limited_number_of_connections_and_a_reset_makes_room() -> None:
    async with program(read_nothing) as port:
        writer = FrameWriter()
        most = [opened(writer, port, request) for request in range(MOST_CONNECTIONS)]
        one_too_many, later = opened(writer, port, MOST_CONNECTIONS), opened(writer, port, MOST_CONNECTIONS + 1)
        client = Offered(*most, one_too_many, reset(3), last=later)
        async with session(client):
            assert (await client.received(3), await client.received(1)) == (b"", b"")
            assert client.refused() == {4 * MOST_CONNECTIONS + 1, 4 * MOST_CONNECTIONS + 3}
        assert len(client.refused()) == 2, "the first one made room for the last one"


async def test_a_stream_that_is_open_cannot_be_opened_again(echo: int) -> None:
    writer = FrameWriter()
    client = Offered(opened(writer, echo, 0), opened(writer, echo, 0))
    await asyncio.wait_for(PortForward(cast(web.WebSocketResponse, client), Network()).run(), 60)
    assert not client.hold.is_set(), "the session ended by itself"
