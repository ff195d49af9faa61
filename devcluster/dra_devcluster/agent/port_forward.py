"""Port-forward: SPDY/3.1 inside a websocket, as ``kubectl port-forward`` speaks it.

SPDY has streams with headers, data, ends, resets and pings. Header blocks share one compression context per direction,
so they must be read in order. For each connection the client opens two streams with the headers ``port`` and
``requestid``: one of type ``error`` for messages about failures, and one of type ``data`` that is joined with a
connection to the port.

The client's library has no flow control per stream. So a program that reads slowly holds up the websocket, and with it
the client: at most ``_WAITING_PIECES`` pieces wait for each connection. All connections of the client share the
websocket. Therefore a connection whose program reads nothing for ``STILL_SECONDS`` is broken off, and the others go on.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import zlib
from collections.abc import Iterator, Mapping, Sized
from contextlib import suppress
from typing import Final, NamedTuple

from aiohttp import WSMsgType, web

from dra_devcluster.agent.pod_network import Network
from dra_devcluster.background import cancelled

# The dictionary of the protocol: words with their lengths, then values that headers often have.
_WORDS = (
    "options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age allow "
    "authorization cache-control connection content-base content-encoding content-language content-length "
    "content-location content-md5 content-range content-type date etag expect expires from host if-match "
    "if-modified-since if-none-match if-range if-unmodified-since last-modified location max-forwards pragma "
    "proxy-authenticate proxy-authorization range referer retry-after server te trailer transfer-encoding upgrade "
    "user-agent vary via warning www-authenticate method get status 200_OK version HTTP/1.1 url public set-cookie "
    "keep-alive origin"
)
_VALUES = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505203 "
    "Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden404 "
    "Not Found500 Internal Server Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept "
    "Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,"
    "application/xml,application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,deflate,sdch"
    "charset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)


def _prefixed(text: bytes) -> bytes:
    return struct.pack(">I", len(text)) + text


DICTIONARY = b"".join(_prefixed(word.replace("_", " ").encode()) for word in _WORDS.split()) + _VALUES.encode()

SYN_STREAM_CODE, SYN_REPLY_CODE, RST_STREAM_CODE, PING_CODE, GOAWAY_CODE = 1, 2, 3, 6, 7
_CONTROL_MASK, _VERSION, _FIN_MASK = 0x8000, 3, 0x01
_STREAM_ID_MASK = 0x7FFFFFFF
_LONGEST_FRAME_BYTES = 1 << 20
_LONGEST_HEADERS_BYTES = 64 * 1024  # unpacked; a client's have a hundred bytes


class SpdyError(Exception):
    """The client does not speak the protocol; the connection has to end."""


class Frame(NamedTuple):
    """``kind`` 0 is data. ``body`` is what follows the stream's id, ``fin`` that the client sends no more on it."""

    kind: int
    stream: int
    fin: bool
    body: bytes


class Reader:
    """Cuts what arrives into frames. Raises SpdyError."""

    def __init__(self) -> None:
        self._rest = b""
        self._inflate = zlib.decompressobj(zdict=DICTIONARY)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that are complete with this data; all of them must be taken."""
        content, at = self._rest + data, 0
        self._rest = b""
        while len(content) - at >= 8:
            first, flags_and_length = struct.unpack_from(">II", content, at)
            length = flags_and_length & 0xFFFFFF
            if length > _LONGEST_FRAME_BYTES:
                raise SpdyError(f"a frame has {length} bytes")
            if len(content) - at < 8 + length:
                break
            body = content[at + 8 : at + 8 + length]
            at += 8 + length
            fin = bool(flags_and_length >> 24 & _FIN_MASK)
            if not first >> 31:
                yield Frame(0, first & _STREAM_ID_MASK, fin, body)
            elif len(body) >= 4:
                yield Frame(first & 0xFFFF, struct.unpack(">I", body[:4])[0] & _STREAM_ID_MASK, fin, body[4:])
        self._rest = content[at:]

    def headers(self, syn_stream: Frame) -> dict[str, str]:
        """The headers of a new stream. Raises SpdyError."""
        try:
            block = self._inflate.decompress(syn_stream.body[6:], _LONGEST_HEADERS_BYTES)
            if self._inflate.unconsumed_tail:
                raise SpdyError(f"the headers of a stream have more than {_LONGEST_HEADERS_BYTES} bytes")
            (count,), at, texts = struct.unpack(">I", block[:4]), 4, []
            for _ in range(2 * count):
                (size,) = struct.unpack(">I", block[at : at + 4])
                texts.append(block[at + 4 : at + 4 + size].decode())
                at += 4 + size
        except (zlib.error, struct.error, UnicodeDecodeError) as error:
            raise SpdyError(f"the headers of a stream cannot be read: {error}") from error
        return dict(zip(texts[::2], texts[1::2], strict=True))


class FrameWriter:
    """Makes frames; header blocks must be sent in the order in which they were made."""

    def __init__(self) -> None:
        self._deflate = zlib.compressobj(zdict=DICTIONARY)

    def reply(self, stream: int) -> bytes:
        return _control(SYN_REPLY_CODE, struct.pack(">I", stream) + self._block({}))

    def open(self, stream: int, headers: Mapping[str, str]) -> bytes:
        """Begin a stream, as a client does."""
        return _control(SYN_STREAM_CODE, struct.pack(">IIH", stream, 0, 0) + self._block(headers))

    def _block(self, headers: Mapping[str, str]) -> bytes:
        texts = [_prefixed(text.encode()) for pair in headers.items() for text in pair]
        packed = self._deflate.compress(struct.pack(">I", len(headers)) + b"".join(texts))
        return packed + self._deflate.flush(zlib.Z_SYNC_FLUSH)


def data(stream: int, content: bytes, *, fin: bool = False) -> bytes:
    """Data of a stream; ``fin`` says that it was the last."""
    return struct.pack(">II", stream, (_FIN_MASK << 24 if fin else 0) | len(content)) + content


def pong(ping: Frame) -> bytes:
    """The answer to a ping, which is the same frame."""
    return _control(PING_CODE, struct.pack(">I", ping.stream))


def _control(kind: int, body: bytes) -> bytes:
    return struct.pack(">HHI", _CONTROL_MASK | _VERSION, kind, len(body)) + body


def refusal(stream: int) -> bytes:
    """Reset a stream that is not wanted."""
    return _control(RST_STREAM_CODE, struct.pack(">II", stream, _REFUSED_STREAM_CODE))


logger = logging.getLogger(__name__)
MOST_CONNECTIONS: Final = 256
"""Connections of one client at a time. A browser opens a few dozen."""
STILL_SECONDS: Final = 60.0
_FORWARDED_BYTES = 32 * 1024
_WAITING_PIECES = 4
_REFUSED_STREAM_CODE = 3


class _Connection:
    """A data stream of the client, and the pieces of it that the port's program has not read."""

    def __init__(self, request: str) -> None:
        self.request = request
        self.problem = b""
        self.closed = False  # takes no more data of the client
        self.waiting: asyncio.Queue[bytes] = asyncio.Queue(_WAITING_PIECES)
        self.task: asyncio.Task[None] | None = None

    def break_off(self, problem: bytes = b"") -> None:
        """Drop what waits, and end the connection to the port."""
        if self.task and not self.closed:
            self.closed = True
            self.problem = problem
            self.task.cancel()


class PortForward:
    """Serves a client until it goes; ``network`` is where the pod's ports are."""

    def __init__(self, socket: web.WebSocketResponse, network: Network) -> None:
        self._socket = socket
        self._network = network
        self._reader = Reader()
        self._writer = FrameWriter()
        self._errors: dict[str, int] = {}
        self._connections: dict[int, _Connection] = {}
        self._gone = False

    async def run(self) -> None:
        """Returns when the client has gone or does not speak the protocol."""
        try:
            async for message in self._socket:
                if message.type is WSMsgType.BINARY:
                    for frame in self._reader.feed(message.data):
                        await self._handle(frame)
        except SpdyError as error:
            logger.warning("port-forward: %s", error)
        except ConnectionError:
            pass  # the client went while it was sent something
        finally:
            self._gone = True
            tasks = [one.task for one in self._connections.values() if one.task]
            await cancelled(*tasks)
            await self._socket.close()

    async def _handle(self, frame: Frame) -> None:
        if frame.kind == SYN_STREAM_CODE:
            await self._open(frame)
        elif frame.kind == PING_CODE:
            await self._socket.send_bytes(pong(frame))
        elif frame.kind == 0:
            await self._take(frame)
        elif frame.kind == RST_STREAM_CODE and frame.stream in self._connections:
            self._connections[frame.stream].break_off()
        elif frame.kind == RST_STREAM_CODE:
            self._errors = {request: stream for request, stream in self._errors.items() if stream != frame.stream}

    async def _open(self, frame: Frame) -> None:
        stream, headers = frame.stream, self._reader.headers(frame)
        if stream in self._connections:  # or it would have two connections, and only one of them an end
            raise SpdyError(f"stream {stream} is open already")
        kind, request = headers.get("streamtype"), headers.get("requestid", "")
        streams: Sized = self._errors if kind == "error" else self._connections
        if len(streams) >= MOST_CONNECTIONS:
            await self._socket.send_bytes(refusal(stream))
            return
        await self._socket.send_bytes(self._writer.reply(stream))
        if kind == "error":
            self._errors[request] = stream
        elif kind == "data":
            connection = self._connections[stream] = _Connection(request)
            connection.task = asyncio.create_task(self._join(stream, connection, headers.get("port", "")))
            connection.task.add_done_callback(lambda _: self._forget(stream, request))

    def _forget(self, stream: int, request: str) -> None:
        del self._connections[stream]
        self._errors.pop(request, None)

    async def _take(self, frame: Frame) -> None:
        """Queue data of a stream. Waits while too much of it has not been read by the port's program."""
        connection = self._connections.get(frame.stream)
        if connection is None:
            return
        pieces = [frame.body[at : at + _FORWARDED_BYTES] for at in range(0, len(frame.body), _FORWARDED_BYTES)]
        for piece in [*pieces, b""] if frame.fin else pieces:
            if connection.closed:
                return
            try:
                async with asyncio.timeout(STILL_SECONDS):
                    await connection.waiting.put(piece)
            except TimeoutError:
                problem = f"the program at the port has read nothing for {STILL_SECONDS:g} s"
                connection.break_off(problem.encode())

    async def _join(self, stream: int, connection: _Connection, port: str) -> None:
        """Connect the stream with the port, and tell the client on the other stream if that fails."""
        try:
            await self._exchange(stream, connection, port)
        except (OSError, ValueError) as error:
            connection.problem = f"failed to connect to port {port}: {error}".encode()
        except asyncio.CancelledError:
            if self._gone:
                raise
        connection.closed = True
        while not connection.waiting.empty():  # or the reader of the websocket would wait for room
            connection.waiting.get_nowait()
        with suppress(ConnectionError):
            await self._socket.send_bytes(data(stream, b"", fin=True))
            if connection.request in self._errors:
                told_on = self._errors[connection.request]
                await self._socket.send_bytes(data(told_on, connection.problem, fin=True))

    async def _exchange(self, stream: int, connection: _Connection, port: str) -> None:
        """Pass on data in both directions until the port's program ends. Raises OSError, ValueError (no connection)."""
        reader, writer = await self._network.connect(int(port))
        sending = asyncio.create_task(_send(connection, writer))
        try:
            with suppress(OSError):
                while chunk := await reader.read(_FORWARDED_BYTES):
                    await self._socket.send_bytes(data(stream, chunk))
        except asyncio.CancelledError:
            writer.transport.abort()  # the program may never read the rest
            raise
        finally:
            await cancelled(sending)
            writer.close()
            with suppress(OSError):  # the port's program ended the connection with an error
                await writer.wait_closed()


async def _send(connection: _Connection, writer: asyncio.StreamWriter) -> None:
    """Pass on what the client sends until it sends no more."""
    with suppress(OSError):
        while chunk := await connection.waiting.get():
            writer.write(chunk)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
