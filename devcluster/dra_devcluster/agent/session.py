"""One ``exec`` session over a websocket: each message is a channel number, then data.

Channels: 0 stdin, 1 stdout, 2 stderr, 3 the result as a Status object, 4 terminal size (ignored). From version 5
of the sub-protocol on, the message ``255 <channel>`` closes a channel, which is how stdin gets its end.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

from aiohttp import WSMsgType, web

from .process import exit_code

_STDIN, _STDOUT, _STDERR, _RESULT, _CLOSE = 0, 1, 2, 3, 255
_CHUNK = 32 * 1024


async def run_session(socket: web.WebSocketResponse, process: asyncio.subprocess.Process) -> None:
    """Connect a process with a websocket until the process ends or the client disconnects."""
    feeding = asyncio.create_task(_feed(socket, process))
    ending = asyncio.create_task(_output(socket, process))
    try:
        await asyncio.wait({feeding, ending}, return_when=asyncio.FIRST_COMPLETED)
        if ending.done():
            code = ending.result()
            await socket.send_bytes(bytes([_RESULT]) + json.dumps(result_status(code)).encode())
            await socket.close()
    except ConnectionError:
        return  # the client went
    finally:
        for task in (feeding, ending):
            task.cancel()
        await asyncio.gather(feeding, ending, return_exceptions=True)


def result_status(code: int) -> dict[str, Any]:
    """The status that the client gets when the program ends."""
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    message = f"command terminated with non-zero exit code: exit status {code}"
    causes = [{"reason": "ExitCode", "message": str(code)}]
    return _failure(message, "NonZeroExitCode") | {"details": {"causes": causes}}


async def refuse(socket: web.WebSocketResponse, message: str) -> None:
    """Send the client the reason why there is no session."""
    status = _failure(message, "InternalError") | {"code": 500}
    await socket.send_bytes(bytes([_RESULT]) + json.dumps(status).encode())
    await socket.close()


def _failure(message: str, reason: str) -> dict[str, Any]:
    return {"metadata": {}, "status": "Failure", "message": message, "reason": reason}


async def _output(socket: web.WebSocketResponse, process: asyncio.subprocess.Process) -> int:
    assert process.stdout is not None
    assert process.stderr is not None
    await asyncio.gather(_forward(socket, _STDOUT, process.stdout), _forward(socket, _STDERR, process.stderr))
    return exit_code(await process.wait())


async def _forward(socket: web.WebSocketResponse, channel: int, stream: asyncio.StreamReader) -> None:
    while data := await stream.read(_CHUNK):
        await socket.send_bytes(bytes([channel]) + data)


async def _feed(socket: web.WebSocketResponse, process: asyncio.subprocess.Process) -> None:
    """Pass stdin on; returns when the client has closed the connection."""
    async for message in socket:
        if message.type is not WSMsgType.BINARY or not message.data or process.stdin is None:
            continue
        channel, data = message.data[0], message.data[1:]
        with suppress(ConnectionError):  # the program reads no more
            if channel == _STDIN:
                process.stdin.write(data)
                await process.stdin.drain()
            elif channel == _CLOSE and data[:1] == bytes([_STDIN]):
                process.stdin.close()
