"""Sessions of exec and attach, and the programs that clients talk to.

What clients of ``exec`` and ``attach`` talk to: their own program, perhaps in a terminal, or the container's.

One ``exec`` or ``attach`` session over a websocket: each message is a channel number, then data.

Channels: 0 stdin, 1 stdout, 2 stderr, 3 the result as a Status object, 4 the size of the client's terminal as JSON.
From version 5 of the sub-protocol on, the message ``255 <channel>`` closes a channel, which is how stdin gets its end.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from typing import Annotated, Any, Protocol

import msgspec
from aiohttp import WSMsgType, web

from dra_devcluster.agent.errors import ContainerError
from dra_devcluster.agent.processes.logs import TooSlow
from dra_devcluster.agent.processes.process import ContainerProcess, Input, Terminal, exit_code

_OUTPUT_BYTES = 32 * 1024
_OUTPUT_DRAIN_SECONDS = 1.0
_CHANNELS = {"stdout": 1, "stderr": 2}


@asynccontextmanager
async def started(
    container: ContainerProcess, command: Sequence[str], *, stdin: bool, tty: bool
) -> AsyncIterator[Program]:
    """A program beside that of the container, which ends with the block. Raises ContainerError(RunContainerError)."""
    with ExitStack() as stack:
        try:
            terminal = stack.enter_context(closing(Terminal())) if tty else None
        except OSError as error:
            raise ContainerError("RunContainerError", f"there is no terminal: {error}") from error
        process = await container.execute(command, stdin=stdin, terminal=terminal)
        stack.callback(container.leave, process)
        if terminal:
            yield InTerminal(process, terminal, stack.enter_context(closing(terminal.input())))
        else:
            yield WithPipes(process)


class WithPipes:
    """A program of the client, whose outputs are separate."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def pass_on(self, send: Send) -> Status:
        """Ends when nothing can write any more, and the program has ended."""
        streams = {"stdout": self._process.stdout, "stderr": self._process.stderr}
        await asyncio.gather(*(_forward(reader, _CHANNELS[name], send) for name, reader in streams.items() if reader))
        return result_status(exit_code(await self._process.wait()))

    async def write(self, data: bytes) -> None:
        """Does nothing if the client did not ask for an input."""
        if self._process.stdin:
            self._process.stdin.write(data)
            await self._process.stdin.drain()

    def close_input(self) -> None:
        """The program reads the end."""
        if self._process.stdin:
            self._process.stdin.close()

    def resize(self, width: int, height: int) -> None:
        """There is no terminal."""


class InTerminal:
    """A program of the client in a terminal of its own."""

    def __init__(self, process: asyncio.subprocess.Process, terminal: Terminal, keyboard: Input) -> None:
        self._process = process
        self._terminal = terminal
        self._keyboard = keyboard

    async def pass_on(self, send: Send) -> Status:
        """Ends with the program: what it left in the background may keep the terminal for long."""
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), self._terminal.output()
        )
        forwarding = asyncio.create_task(_forward(reader, _CHANNELS["stdout"], send))
        try:
            code = exit_code(await self._process.wait())
            await asyncio.wait([forwarding], timeout=_OUTPUT_DRAIN_SECONDS)
        finally:
            forwarding.cancel()
            await asyncio.gather(forwarding, return_exceptions=True)
            transport.close()
        return result_status(code)

    async def write(self, data: bytes) -> None:
        """Type."""
        await self._keyboard.write(data)

    def close_input(self) -> None:
        """A terminal has no end; the program may wait for keys until the client goes."""

    def resize(self, width: int, height: int) -> None:
        """Give the terminal the size of the client's."""
        self._terminal.resize(width, height)


class Attachment:
    """The program of the container itself, from now on; ``stdin`` is whether the client wants to type."""

    def __init__(self, container: ContainerProcess, *, stdin: bool) -> None:
        self._container = container
        self._input = container.input if stdin else None

    async def pass_on(self, send: Send) -> Status:
        """Ends with the container, or when the client does not keep up."""
        try:
            with self._container.followers.follow() as output:
                async for stream, data in output:
                    await send(_CHANNELS[stream], data)
        except TooSlow as error:
            return failure(str(error), "InternalError")
        return SUCCESS

    async def write(self, data: bytes) -> None:
        """Does nothing if the container has no open input, or the client did not ask for it."""
        if self._input:
            await self._input.write(data)

    def close_input(self) -> None:
        """The program reads the end if its input is for one client."""
        if self._input and self._container.console.once:
            self._input.close()

    def resize(self, width: int, height: int) -> None:
        """Give the container's terminal, if it has one, the size of the client's."""
        if self._container.terminal:
            self._container.terminal.resize(width, height)


async def _forward(reader: asyncio.StreamReader, channel: int, send: Send) -> None:
    while data := await _read(reader):
        await send(channel, data)


async def _read(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read(_OUTPUT_BYTES)
    except OSError:
        return b""  # so does a terminal end


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
