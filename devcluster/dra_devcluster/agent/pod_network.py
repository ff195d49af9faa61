"""Where the ports of a pod are: on the machine, or in a network of its own.

::

    container in the pod's network --> listener --+   sockets of the pause process      +--> API server
                                                  +--> this process, outside  ------------+
    container's port  <-- connection -------------+   probes, port-forward

A pause process keeps the network, and gives away sockets of it. Sockets stay in the network in which they were made.
So this process listens there, passes connections on to the API server, and connects to the pod's ports.
The pod reaches nothing else. If the pause process is killed, containers that run keep their network, but no other can
start in it.

A container may open connections without end, and read none of the answers. A network relays at most
``MOST_RELAYED_CONNECTIONS`` at a time, each with little memory; a newcomer ends the one in which nothing has moved for
longest. So a leak of a container costs its own pod, and not the descriptors of the agent that all pods need.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Final, Self

from dra_devcluster.agent.errors import NetworkError
from dra_devcluster.agent.processes.process import command_line, own_network
from dra_devcluster.background import cancelled

LOOPBACK = "127.0.0.1"
MOST_RELAYED_CONNECTIONS: Final = 256
"""Connections that one network relays. A client has one to the API server, or a few."""
_RELAYED_BYTES: Final = 16 * 1024
"""The limit of asyncio's buffers. A direction keeps about five times as many when its reader stops."""
_BACKLOG_CONNECTIONS: Final = 128
_SCARCE_SECONDS: Final = 0.05
Socket = socket.socket  # a network has a method of that name
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Network:
    """The network of the machine. ``pid`` is a process in it, None for the machine's."""

    pid: int | None = None

    def socket(self) -> socket.socket:
        """A new TCP socket in this network. Raises OSError."""
        return socket.socket()

    async def connect(self, port: int) -> Streams:
        """A connection to a port of the pod. Raises OSError, and ValueError for a number that no port has."""
        if not 0 < port < 2**16:
            raise ValueError(f"there is no port {port}")
        connection = self.socket()
        try:
            connection.setblocking(False)
            await asyncio.get_running_loop().sock_connect(connection, (LOOPBACK, port))
            return await asyncio.open_connection(sock=connection, limit=_RELAYED_BYTES)
        except BaseException:
            connection.close()
            raise

    @asynccontextmanager
    async def forwarded(self, port: int) -> AsyncIterator[int]:
        """A port of this machine that stands for a port of the pod, for clients that make their own sockets."""
        yield port

    async def close(self) -> None:
        """End what belongs to the network."""


class PodNetwork(Network):
    """A network for one pod, in which its containers share ports that no other pod has."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket, server: tuple[str, int]) -> None:
        self.pid = process.pid
        self._pause_process = process
        self._control = control
        self._api = server
        self._relays: dict[asyncio.Task[None], None] = {}  # that in which something moved last is the last one
        self._accepting: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, host: str, port: int) -> Self:
        """A new network, from which the server at this address is reached, and nothing else. Raises NetworkError."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = _start_pause_process(theirs)
            except OSError as error:
                ours.close()
                raise NetworkError(str(error)) from error
        network = cls(process, ours, (host, port))
        try:
            await network._listen()
        except BaseException:
            await network.close()
            raise
        return network

    def socket(self) -> socket.socket:
        self._control.sendall(b"s")
        _, files, _, _ = socket.recv_fds(self._control, 1, 1)
        if not files:
            raise ConnectionError("the network of the pod is gone")
        return socket.socket(fileno=files[0])

    @asynccontextmanager
    async def forwarded(self, port: int) -> AsyncIterator[int]:
        listener = socket.create_server((LOOPBACK, 0), backlog=_BACKLOG_CONNECTIONS)
        accepting = self._accept_on(listener, lambda: self.connect(port))
        try:
            yield listener.getsockname()[1]
        finally:
            await cancelled(accepting)

    async def close(self) -> None:
        tasks = [*self._relays, *([self._accepting] if self._accepting else [])]
        await cancelled(*tasks)
        self._control.close()
        self._pause_process.kill()
        await asyncio.to_thread(self._pause_process.wait)
        if self._pause_process.stderr is not None:
            self._pause_process.stderr.close()

    async def _listen(self) -> None:
        """Take connections to the API server. Raises NetworkError."""
        try:
            listener = await _in_thread(self.socket)  # the pause process takes a moment to start
        except OSError:
            assert self._pause_process.stderr is not None
            problem = await asyncio.to_thread(self._pause_process.stderr.read)
            raise NetworkError(problem.decode(errors="replace").strip()) from None
        try:
            listener.bind(self._api)
            listener.listen(_BACKLOG_CONNECTIONS)
        except OSError as error:
            listener.close()
            raise NetworkError(str(error)) from error
        reach = partial(asyncio.open_connection, *self._api, limit=_RELAYED_BYTES)
        self._accepting = self._accept_on(listener, reach)

    def _accept_on(self, listener: Socket, reach: Callable[[], Awaitable[Streams]]) -> asyncio.Task[None]:
        """Relay the connections to a listener, which is closed with the task."""
        task = asyncio.create_task(self._accept(listener, reach))
        task.add_done_callback(lambda _: listener.close())
        return task

    async def _accept(self, listener: Socket, reach: Callable[[], Awaitable[Streams]]) -> None:
        """Relay each connection. Where there are too many, the one that was still for longest ends first."""
        listener.setblocking(False)
        while True:
            try:
                connection, _ = await asyncio.get_running_loop().sock_accept(listener)
            except OSError:  # for want of descriptors, for example
                await asyncio.sleep(_SCARCE_SECONDS)
                continue
            while len(self._relays) >= MOST_RELAYED_CONNECTIONS:
                stillest = next(iter(self._relays))
                stillest.cancel()
                await asyncio.wait([stillest])
            streams = await asyncio.open_connection(sock=connection, limit=_RELAYED_BYTES)
            task = asyncio.create_task(self._take(streams, reach))
            self._relays[task] = None
            task.add_done_callback(partial(self._ended, streams[1].transport))

    def _ended(self, transport: asyncio.WriteTransport, relay: asyncio.Task[None]) -> None:
        transport.abort()  # it may have been cancelled before it began
        del self._relays[relay]

    async def _take(self, streams: Streams, reach: Callable[[], Awaitable[Streams]]) -> None:
        """Join a connection with another one to where it wants to."""
        task = asyncio.current_task()
        assert task is not None

        def moved() -> None:
            del self._relays[task]
            self._relays[task] = None

        try:
            await _relay(streams, await reach(), moved)
        except OSError:
            await _closed(streams[1])  # nothing listens there now


def _start_pause_process(control: socket.socket) -> subprocess.Popen[bytes]:
    command = command_line(own_network(control.fileno()), {})
    return subprocess.Popen(command, pass_fds=[control.fileno()], stderr=subprocess.PIPE, env={})


def can_be_relayed(host: str) -> bool:
    """Whether a server at this address can be reached from a network of its own, where only loopback exists."""
    with suppress(ValueError):
        return ipaddress.IPv4Address(host).is_loopback
    return False


async def _in_thread(make: Callable[[], socket.socket]) -> socket.socket:
    """What ``make`` makes; if the wait is cancelled, it is closed as soon as it is there. Raises OSError."""
    made: Future[socket.socket] = Future()

    def work() -> None:
        try:
            made.set_result(make())
        except OSError as error:
            made.set_exception(error)

    try:
        await asyncio.to_thread(work)
    except asyncio.CancelledError:
        made.add_done_callback(_close_unused)
        raise
    return made.result()


def _close_unused(made: Future[socket.socket]) -> None:
    if made.exception() is None:
        made.result().close()


async def _relay(one: Streams, other: Streams, moved: Callable[[], None] = lambda: None) -> None:
    """Join two connections until both directions have ended, or one of them fails; both are closed then.

    Who cancels does not wait for a peer that reads no more: what it has not read is dropped.
    """
    writers = (one[1], other[1])
    try:
        try:
            async with asyncio.TaskGroup() as directions:
                directions.create_task(_copy(one[0], other[1], moved))
                directions.create_task(_copy(other[0], one[1], moved))
        except* OSError:
            pass  # a connection that breaks ends the other as well
        await _closed(*writers)
    except asyncio.CancelledError:
        for writer in writers:
            writer.transport.abort()
        await _closed(*writers)
        raise


async def _closed(*writers: asyncio.StreamWriter) -> None:
    for writer in writers:
        writer.close()
    for writer in writers:
        with suppress(OSError):
            await writer.wait_closed()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, moved: Callable[[], None]) -> None:
    writer.transport.set_write_buffer_limits(_RELAYED_BYTES)
    while chunk := await reader.read(_RELAYED_BYTES):
        moved()
        writer.write(chunk)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
