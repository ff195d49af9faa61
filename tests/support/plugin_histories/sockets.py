"""Sockets of the plugin without sockets: a server in a table, whose services are called in its own process.

What ``SocketServer`` promises holds: a path has one server, the one that was shown last is the newest, and stopping
cancels the calls that run. A client is told when the process is gone, as by a connection that is closed.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from dra_kubeletplugin.errors import StartError
from dra_kubeletplugin.kubelet.server import Interceptor

from .process import Process


class CallFailed(Exception):
    """The call has no answer."""


class _Details(NamedTuple):
    method: str
    invocation_metadata: tuple[()] = ()


class _Aborted(Exception):
    pass


class _Context:
    """What a service may do with its call."""

    def time_remaining(self) -> float:
        """The seconds until its caller gives it up, when it begins."""
        return 45.0

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        """End it with an error."""
        raise _Aborted(f"{code.name}: {details}")


class Sockets:
    """``servers`` are those that listen, the newest last."""

    def __init__(self) -> None:
        self.servers: list[Server] = []

    def server(self, *arguments: Any) -> Server:
        """In place of ``SocketServer``."""
        return Server(self, *arguments)

    def is_newest(self, path: Path, instances: re.Pattern[str]) -> bool:
        """In place of that function: the server that was shown last is at this path."""
        shown = [server.path for server in self.servers if instances.fullmatch(server.path.name)]
        return bool(shown) and shown[-1] == path

    def at(self, path: Path) -> Server | None:
        """Who listens there."""
        return next((server for server in self.servers if server.path == path), None)

    def drop(self, process: Process) -> None:
        """A process is gone."""
        for server in [server for server in self.servers if server.process is process]:
            self.servers.remove(server)
            server.lost()


class Server:
    """Takes the place of ``dra_kubeletplugin.kubelet.server.SocketServer``."""

    def __init__(
        self,
        sockets: Sockets,
        _driver_name: str,
        path: Path,
        _instances: re.Pattern[str],
        register: Callable[[grpc.aio.Server], None],
        interceptors: Sequence[Interceptor],
        _died: Callable[[Exception], None],
    ) -> None:
        self.path = path
        self.process = Process.present()
        self._sockets = sockets
        self._register = register
        self._interceptors = interceptors
        self._handlers: list[Any] = []
        self._running: dict[asyncio.Task[Any], asyncio.Future[Any]] = {}

    def check(self) -> None:
        """Raise StartError if another process serves on the path."""
        if self._sockets.at(self.path):
            raise StartError(f"another process serves on the socket {self.path}")

    async def start(self) -> None:
        """Listen."""
        self.check()
        self._register(self)  # type: ignore[arg-type]  # it only adds handlers
        await asyncio.sleep(0.001)
        self._sockets.servers.append(self)

    async def stop(self) -> None:
        """Cancel running calls, stop listening."""
        if self in self._sockets.servers:
            self._sockets.servers.remove(self)
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)

    def lost(self) -> None:
        """The process is gone, and with it the connections."""
        for answer in self._running.values():
            if not answer.done():
                answer.set_exception(CallFailed("UNAVAILABLE: the connection was closed"))

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        """As of a gRPC server."""
        self._handlers += handlers

    def add_registered_method_handlers(self, service: str, methods: Any) -> None:
        """As of a gRPC server, which has the same ones as generic handlers."""

    async def call(self, method: str, request: Any) -> Any:
        """The answer of a service. Cancelled, the call is cancelled in the process as well. Raises CallFailed."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        task = loop.create_task(self._serve(method, request, answer), context=self.process.context.copy())
        self._running[task] = answer
        task.add_done_callback(partial(self._served, answer))
        try:
            return await answer
        except asyncio.CancelledError:
            loop.call_soon(task.cancel, context=self.process.context)
            raise

    def _served(self, answer: asyncio.Future[Any], task: asyncio.Task[Any]) -> None:
        self._running.pop(task, None)
        if not answer.done():
            answer.set_exception(CallFailed("CANCELLED: the server has stopped"))

    async def _serve(self, method: str, request: Any, answer: asyncio.Future[Any]) -> None:
        try:
            details = _Details(method)
            proceed: Any = self._find
            for interceptor in reversed(self._interceptors):
                proceed = partial(interceptor.intercept_service, proceed)
            handler = await proceed(details)
            made = await handler.unary_unary(request, _Context())
            result = type(made).FromString(handler.response_serializer(made))
        except Exception as error:
            if not answer.done():
                answer.set_exception(CallFailed(str(error)))
        else:
            if not answer.done():
                answer.set_result(result)

    async def _find(self, details: _Details) -> Any:
        return next(found for each in self._handlers if (found := each.service(details)) is not None)
