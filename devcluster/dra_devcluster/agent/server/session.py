"""One ``exec`` or ``attach`` session over a websocket: each message is a channel number, then data.

Channels: 0 stdin, 1 stdout, 2 stderr, 3 the result as a Status object, 4 the size of the client's terminal as JSON.
From version 5 of the sub-protocol on, the message ``255 <channel>`` closes a channel, which is how stdin gets its end.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Annotated, Any, Protocol

import msgspec
from aiohttp import WSMsgType, web

_STDIN_CHANNEL, _RESULT_CHANNEL, _SIZE_CHANNEL, _CLOSE_CHANNEL = 0, 3, 4, 255

Send = Callable[[int, bytes], Awaitable[None]]
Status = dict[str, Any]


class Program(Protocol):
    """What a session connects its client with."""

    async def pass_on(self, send: Send) -> Status:
        """Send all output by its channel; returns the result when the program has ended."""
        ...

    async def write(self, data: bytes) -> None:
        """To its standard input. Raises OSError when it reads no more."""
        ...

    def close_input(self) -> None:
        """The client will type no more."""
        ...

    def resize(self, width: int, height: int) -> None:
        """The client's terminal has this size."""
        ...


_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Size(msgspec.Struct):
    width: _Count = msgspec.field(name="Width", default=0)
    height: _Count = msgspec.field(name="Height", default=0)


async def run_session(socket: web.WebSocketResponse, program: Program) -> None:
    """Connect a program with a websocket until the program ends or the client disconnects."""

    async def send(channel: int, data: bytes) -> None:
        await socket.send_bytes(bytes([channel]) + data)

    feeding = asyncio.create_task(_feed(socket, program))
    ending = asyncio.create_task(program.pass_on(send))
    try:
        await asyncio.wait({feeding, ending}, return_when=asyncio.FIRST_COMPLETED)
        if ending.done():
            await send(_RESULT_CHANNEL, json.dumps(ending.result()).encode())
            await socket.close()
    except ConnectionError:
        return  # the client went
    finally:
        for task in (feeding, ending):
            task.cancel()
        await asyncio.gather(feeding, ending, return_exceptions=True)


SUCCESS: Status = {"metadata": {}, "status": "Success"}


def result_status(code: int) -> Status:
    """The status that the client gets when a program ends."""
    if code == 0:
        return SUCCESS
    message = f"command terminated with non-zero exit code: exit status {code}"
    causes = [{"reason": "ExitCode", "message": str(code)}]
    return failure(message, "NonZeroExitCode") | {"details": {"causes": causes}}


async def refuse(socket: web.WebSocketResponse, message: str) -> None:
    """Send the client the reason why there is no session."""
    status = failure(message, "InternalError") | {"code": 500}
    await socket.send_bytes(bytes([_RESULT_CHANNEL]) + json.dumps(status).encode())
    await socket.close()


def failure(message: str, reason: str) -> Status:
    """A status that is no success."""
    return {"metadata": {}, "status": "Failure", "message": message, "reason": reason}


async def _feed(socket: web.WebSocketResponse, program: Program) -> None:
    """Pass on what the client types; returns when the client has closed the connection."""
    async for message in socket:
        if message.type is not WSMsgType.BINARY or not message.data:
            continue
        channel, data = message.data[0], message.data[1:]
        with suppress(OSError, msgspec.DecodeError):  # the program reads no more, or that is no size
            if channel == _STDIN_CHANNEL:
                await program.write(data)
            elif channel == _SIZE_CHANNEL:
                size = msgspec.json.decode(data, type=_Size)
                program.resize(size.width, size.height)
            elif channel == _CLOSE_CHANNEL and data[:1] == bytes([_STDIN_CHANNEL]):
                program.close_input()
