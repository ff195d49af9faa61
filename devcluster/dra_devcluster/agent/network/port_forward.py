"""One ``port-forward`` session: SPDY streams inside the binary messages of a websocket.

For each connection the client opens two streams with the headers ``port`` and ``requestid``: one of type ``error``, on
which it is told what went wrong, and one of type ``data``, which is joined with a connection to the port.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from aiohttp import WSMsgType, web

from .pod_network import Network
from .spdy import PING_CODE, RST_STREAM_CODE, SYN_STREAM_CODE, Frame, Reader, SpdyError, Writer, data, pong

logger = logging.getLogger(__name__)
_FORWARDED_BYTES = 32 * 1024


class PortForward:
    """Serves a client until it goes; ``network`` is where the pod's ports are."""

    def __init__(self, socket: web.WebSocketResponse, network: Network) -> None:
        self._socket = socket
        self._network = network
        self._reader = Reader()
        self._writer = Writer()
        self._errors: dict[str, int] = {}
        self._incoming: dict[int, asyncio.Queue[bytes]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Returns when the client has gone or does not speak the protocol."""
        try:
            async for message in self._socket:
                if message.type is WSMsgType.BINARY:
                    for frame in self._reader.feed(message.data):
                        await self._handle(frame)
        except SpdyError as error:
            logger.warning("port-forward: %s", error)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._socket.close()

    async def _handle(self, frame: Frame) -> None:
        if frame.kind == SYN_STREAM_CODE:
            await self._open(frame)
        elif frame.kind == PING_CODE:
            await self._socket.send_bytes(pong(frame))
        elif frame.kind == 0 and frame.stream in self._incoming:
            if frame.body:
                self._incoming[frame.stream].put_nowait(frame.body)
            if frame.fin:
                self._incoming[frame.stream].put_nowait(b"")
        elif frame.kind == RST_STREAM_CODE and frame.stream in self._incoming:
            self._incoming[frame.stream].put_nowait(b"")

    async def _open(self, frame: Frame) -> None:
        headers = self._reader.headers(frame)
        await self._socket.send_bytes(self._writer.reply(frame.stream))
        request = headers.get("requestid", "")
        if headers.get("streamtype") == "error":
            self._errors[request] = frame.stream
        elif headers.get("streamtype") == "data":
            self._incoming[frame.stream] = asyncio.Queue()
            joining = asyncio.create_task(self._join(frame.stream, request, headers.get("port", "")))
            self._tasks.add(joining)
            joining.add_done_callback(self._tasks.discard)

    async def _join(self, stream: int, request: str, port: str) -> None:
        """Connect the stream with the port, and tell the client on the other stream if that fails."""
        problem = b""
        try:
            reader, writer = await self._network.connect(int(port))
        except (OSError, ValueError) as error:
            problem = f"failed to connect to port {port}: {error}".encode()
        else:
            sending = asyncio.create_task(self._send(stream, writer))
            try:
                with suppress(OSError):
                    while chunk := await reader.read(_FORWARDED_BYTES):
                        await self._socket.send_bytes(data(stream, chunk))
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
                writer.close()
                with suppress(OSError):  # the port's program ended the connection with an error
                    await writer.wait_closed()
        self._incoming.pop(stream, None)
        with suppress(ConnectionError):
            await self._socket.send_bytes(data(stream, b"", fin=True))
            if request in self._errors:
                await self._socket.send_bytes(data(self._errors.pop(request), problem, fin=True))

    async def _send(self, stream: int, writer: asyncio.StreamWriter) -> None:
        """Pass on what the client sends until it sends no more."""
        incoming = self._incoming[stream]
        with suppress(OSError):
            while chunk := await incoming.get():
                writer.write(chunk)
                await writer.drain()
            if writer.can_write_eof():
                writer.write_eof()
