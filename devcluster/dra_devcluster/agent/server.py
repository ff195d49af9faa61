"""The node's own HTTP server: the API server passes requests for logs, ``exec``, ``attach`` and ``port-forward`` to it.

It listens on loopback at a free port and answers only to clients that know the key that the agent gives the API server
when it registers its node.

===================================================  ==========================================================
``GET /containerLogs/<ns>/<pod>/<container>``         log text; query as for ``pods/log``
``GET /exec/<ns>/<pod>/<container>``                  websocket, sub-protocol ``v5.channel.k8s.io`` or ``v4``
``GET /attach/<ns>/<pod>/<container>``                the same, with the program that the container runs
``GET /portForward/<ns>/<pod>``                       websocket, sub-protocol ``SPDY/3.1+portforward.k8s.io``
``GET /metrics``                                      metrics in the Prometheus format
``GET /healthz``                                      ``ok``
===================================================  ==========================================================

In an ``exec`` or ``attach`` session each message of the websocket is a channel number, then data. Channels: 0 stdin,
1 stdout, 2 stderr, 3 the result as a Status object, 4 the size of the client's terminal as JSON. From version 5 of the
sub-protocol on, the message ``255 <channel>`` closes a channel. So stdin gets its end.
"""

from __future__ import annotations

import asyncio
import json
import math
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Self

import msgspec
from aiohttp import WSMsgType, web
from dra_kube.door import is_same_secret, open_door, request_log
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from dra_devcluster.agent.containers.runtime import LocalRuntime
from dra_devcluster.agent.errors import ContainerError
from dra_devcluster.agent.pods import Pods, PodWorker
from dra_devcluster.agent.port_forward import PortForward
from dra_devcluster.agent.processes.logs import LogQuery, TooSlow, read_log
from dra_devcluster.agent.processes.process import ContainerProcess, Input, Terminal, exit_code
from dra_devcluster.background import cancelled
from dra_devcluster.node_protocol import EXEC_PROTOCOLS, LONGEST_MESSAGE_BYTES, PORT_FORWARD_PROTOCOLS

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


Send = Callable[[int, bytes], Awaitable[None]]
Status = dict[str, Any]


class Program(ABC):
    """What a session connects its client with."""

    @abstractmethod
    async def pass_on(self, send: Send) -> Status:
        """Send all output by its channel; returns the result when the program has ended."""

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """To its standard input. Raises OSError when it reads no more."""

    def close_input(self) -> None:  # noqa: B027  (a terminal has no end; the program waits for keys until the client goes)
        """The client will type no more."""

    def resize(self, width: int, height: int) -> None:  # noqa: B027  (there may be no terminal)
        """The client's terminal has this size."""


class WithPipes(Program):
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
        if self._process.stdin:
            self._process.stdin.close()


class InTerminal(Program):
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
            await cancelled(forwarding)
            transport.close()
        return result_status(code)

    async def write(self, data: bytes) -> None:
        await self._keyboard.write(data)

    def resize(self, width: int, height: int) -> None:
        self._terminal.resize(width, height)


class Attachment(Program):
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
        if self._container.terminal:
            self._container.terminal.resize(width, height)


async def _forward(reader: asyncio.StreamReader, channel: int, send: Send) -> None:
    while True:
        data = b""
        with suppress(OSError):  # so does a terminal end
            data = await reader.read(_OUTPUT_BYTES)
        if not data:
            return
        await send(channel, data)


_STDIN_CHANNEL, _RESULT_CHANNEL, _SIZE_CHANNEL, _CLOSE_CHANNEL = 0, 3, 4, 255
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
        await cancelled(feeding, ending)


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


ADDRESS = "127.0.0.1"
_SHUTDOWN_SECONDS = 0.5
_QUIET_SECONDS = 75.0
_SESSION_CONNECTIONS = 512  # each log that is followed, and each session of exec, has one


class NodeServer:
    """An async context manager; ``port`` is known once it is entered."""

    def __init__(self, pods: Pods, runtime: LocalRuntime, key: str, metrics: CollectorRegistry) -> None:
        self.port = 0
        self._pods = pods
        self._runtime = runtime
        self._key = f"Bearer {key}"
        self._metrics = metrics
        self._closing = asyncio.Event()
        app = web.Application(middlewares=[self._authorize])
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._logs)
        app.router.add_get("/exec/{namespace}/{pod}/{container}", self._exec)
        app.router.add_get("/attach/{namespace}/{pod}/{container}", self._attach)
        app.router.add_get("/portForward/{namespace}/{pod}", self._port_forward)
        app.router.add_get("/metrics", self._expose)
        app.router.add_get("/healthz", self._healthz)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=request_log(),
            shutdown_timeout=_SHUTDOWN_SECONDS,
            keepalive_timeout=_QUIET_SECONDS,
        )

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        self._door = open_door(self._runner, ADDRESS, 0, math.inf, most=_SESSION_CONNECTIONS, keeps_alive=True)
        _, self.port = await self._door.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closing.set()
        await self._door.__aexit__(None, None, None)
        await self._runner.cleanup()

    @web.middleware
    async def _authorize(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if not is_same_secret(request.headers.get("Authorization", ""), self._key):
            raise web.HTTPUnauthorized(text="the node answers only to its API server")
        return await handler(request)

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _expose(self, request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._metrics), headers={"Content-Type": CONTENT_TYPE_LATEST})

    def _worker(self, request: web.Request) -> PodWorker:
        """The worker of the pod. Raises HTTPNotFound."""
        names = request.match_info
        worker = self._pods.find(names["namespace"], names["pod"])
        if worker is None:
            raise web.HTTPNotFound(text=f'pod "{names["pod"]}" is not on this node')
        return worker

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        worker, name = self._worker(request), request.match_info["container"]
        uid = worker.pod.metadata.uid
        query = _log_query(request)
        state = self._runtime.state(uid, name)
        previous = _flag(request, "previous")
        record = (state.previous if previous else state.current) if state else None
        if record is None:
            where = f'container "{name}" in pod "{worker.pod.metadata.name}"'
            if previous:
                raise web.HTTPBadRequest(text=f"previous terminated {where} not found")
            raise web.HTTPBadRequest(text=f"{where} is waiting to start: {worker.waiting_reason(name)}")
        attempt = record.attempt
        path = self._runtime.log_path(uid, name, attempt)

        def is_over() -> bool:
            latest = self._runtime.state(uid, name)
            running = latest is not None and latest.current.attempt == attempt
            return self._closing.is_set() or not running or not self._runtime.is_running(uid, name)

        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        async for text in read_log(path, query, is_over):
            await response.write(text)
        return response

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        uid, name = self._worker(request).pod.metadata.uid, request.match_info["container"]
        command = request.query.getall("command", [])
        if not command:
            raise web.HTTPBadRequest(text="you must specify at least 1 command for the container")
        socket = web.WebSocketResponse(protocols=EXEC_PROTOCOLS)
        await socket.prepare(request)
        try:
            container = self._runtime.process(uid, name)
            async with started(container, command, stdin=_flag(request, "stdin"), tty=_flag(request, "tty")) as program:
                await run_session(socket, program)
        except ContainerError as error:
            await refuse(socket, error.message)
        return socket

    async def _attach(self, request: web.Request) -> web.StreamResponse:
        uid, name = self._worker(request).pod.metadata.uid, request.match_info["container"]
        socket = web.WebSocketResponse(protocols=EXEC_PROTOCOLS)
        await socket.prepare(request)
        try:
            program = Attachment(self._runtime.process(uid, name), stdin=_flag(request, "stdin"))
        except ContainerError as error:
            await refuse(socket, error.message)
            return socket
        try:
            await run_session(socket, program)
        finally:
            program.close_input()
        return socket

    async def _port_forward(self, request: web.Request) -> web.StreamResponse:
        pod = self._worker(request).pod
        if not self._runtime.has_sandbox(pod.metadata.uid):
            raise web.HTTPBadRequest(text=f"unable to forward port because pod is not running: {pod.metadata.name}")
        socket = web.WebSocketResponse(protocols=PORT_FORWARD_PROTOCOLS, max_msg_size=LONGEST_MESSAGE_BYTES)
        await socket.prepare(request)
        await PortForward(socket, self._runtime.network(pod.metadata.uid)).run()
        return socket


def _flag(request: web.Request, name: str) -> bool:
    return request.query.get(name, "").lower() in ("true", "1")


def _log_query(request: web.Request) -> LogQuery:
    """The filters of a request. Raises HTTPBadRequest, which names the field."""
    numbers: dict[str, int | None] = {}
    for name in ("tailLines", "limitBytes", "sinceSeconds"):
        text = request.query.get(name)
        if text is not None and not text.isdigit():
            raise web.HTTPBadRequest(text=f"{name}: {text!r} is not a number that is zero or more")
        numbers[name] = None if text is None else int(text)
    since = None
    if numbers["sinceSeconds"] is not None:
        since = datetime.now(UTC) - timedelta(seconds=numbers["sinceSeconds"])
    elif "sinceTime" in request.query:
        try:
            since = datetime.fromisoformat(request.query["sinceTime"])
        except ValueError as error:
            raise web.HTTPBadRequest(text=f"sinceTime: {error}") from error
    return LogQuery(
        follow=_flag(request, "follow"),
        timestamps=_flag(request, "timestamps"),
        tail_lines=numbers["tailLines"],
        limit_bytes=numbers["limitBytes"],
        since=since,
    )
