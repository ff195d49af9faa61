"""What a kubelet finds of a plugin: its sockets and its registration.

A gRPC server never shows a socket without a listener. It binds a hidden name first, and gives the socket its own name
when it serves, because the kubelet watches the directory. The hidden name stays, since a kubelet that looks at it later
than it is gone logs an error. This also keeps grpc from unlinking *by path* when it stops: that would remove the socket
of a successor. The server removes a socket only while it is its own (PH-02).

A killed process leaves its hidden name behind. The next start removes it: hidden names begin with a mark of the driver,
``.<mark><random>``, so other drivers in the kubelet's folder keep theirs, and so does another instance of the same
driver whose socket is still listened on.

A process killed later leaves its socket in place. In a rolling update the next pod has another uid, and with it other
sockets, and the kubelet would try to reach the old ones every few seconds for ever. So a start removes the sockets of
all instances of the driver at which nothing listens.

The kubelet finds the registration socket, asks which plugin it is, and says whether it is registered.

Every call has a request id, is logged, and answers errors as text that the kubelet shows. ``Interceptor`` is also the
base for a driver's own: override ``unary`` or ``stream``. Spec: plugin-helper.md section 2.3, PH-03, PH-04 and PH-06.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import itertools
import logging
import os
import re
import secrets
import socket
import stat
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from dra_cdi import CdiError
from dra_kube import KubeError, NotFound
from dra_proto.registration.v1 import api_pb2, api_pb2_grpc
from google.protobuf.message import Message
from google.protobuf.text_format import MessageToString

from dra_kubeletplugin.driver import text_of
from dra_kubeletplugin.errors import PluginError, RegistrationRefused, ServerDied, StartError, with_remedy

log = logging.getLogger(__name__)


Unary = Callable[[Message, Any], Awaitable[Message]]
Stream = Callable[[Message, Any], AsyncIterator[Message]]

request_id: ContextVar[int] = ContextVar("request_id", default=0)
"""Number of the gRPC call that the current task serves; 0 outside of calls."""

_numbers = itertools.count(1)


class Interceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic only in the stubs
    """Sees each call with its full method name; ``proceed`` calls the next interceptor or the service."""

    async def unary(self, method: str, request: Message, context: Any, proceed: Unary) -> Message:
        """A call with one answer."""
        return await proceed(request, context)

    async def stream(self, method: str, request: Message, context: Any, proceed: Stream) -> AsyncIterator[Message]:
        """A call with a stream of answers."""
        async for message in proceed(request, context):
            yield message

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """Called by grpc for every request."""
        handler = await continuation(handler_call_details)
        method: str = handler_call_details.method
        if handler is None:
            return None  # an unknown method, which grpc answers itself
        codec = {
            "request_deserializer": handler.request_deserializer,
            "response_serializer": handler.response_serializer,
        }
        if handler.unary_unary:

            async def unary(request: Message, context: Any) -> Message:
                return await self.unary(method, request, context, handler.unary_unary)

            return grpc.unary_unary_rpc_method_handler(unary, **codec)
        if handler.unary_stream:

            async def stream(request: Message, context: Any) -> AsyncIterator[Message]:
                async for message in self.stream(method, request, context, handler.unary_stream):
                    yield message

            return grpc.unary_stream_rpc_method_handler(stream, **codec)
        return handler


class LoggingInterceptor(Interceptor):
    """Numbers the requests of this process and logs them at ``level`` (None: not at all). Always logs failures."""

    def __init__(self, logger: logging.Logger, level: int | None) -> None:
        self._logger = logger
        self._level = level

    async def unary(self, method: str, request: Message, context: Any, proceed: Unary) -> Message:
        """Log request and answer."""
        self._begin(method, request)
        started = time.monotonic()
        try:
            answer = await proceed(request, context)
        except asyncio.CancelledError:
            seconds = time.monotonic() - started
            self._logger.warning(
                "request %d %s was cancelled by the caller after %.1f s", request_id.get(), method, seconds
            )
            raise
        except Exception as error:
            await self._fail(method, context, error)
            raise
        self._say("answer", method, answer)
        return answer

    async def stream(self, method: str, request: Message, context: Any, proceed: Stream) -> AsyncIterator[Message]:
        """Log the request and each message sent."""
        self._begin(method, request)
        try:
            async for message in proceed(request, context):
                self._say("message", method, message)
                yield message
        except Exception as error:
            await self._fail(method, context, error)
            raise

    def _begin(self, method: str, request: Message) -> None:
        request_id.set(next(_numbers))
        self._say("request", method, request)

    def _say(self, what: str, method: str, message: Message) -> None:
        if self._level is not None and self._logger.isEnabledFor(self._level):
            text = MessageToString(message, as_one_line=True)
            self._logger.log(self._level, "%s %d %s: %s", what, request_id.get(), method, text)

    async def _fail(self, method: str, context: Any, error: Exception) -> None:
        """Log the failure and end the call with its text; a bug of ours is logged with its trace."""
        if isinstance(error, grpc.aio.AbortError):
            self._logger.error("request %d %s failed: %s", request_id.get(), method, context.details())
            return
        expected = isinstance(error, PluginError | CdiError | KubeError | OSError)
        text = text_of(PluginError(with_remedy(error)) if isinstance(error, KubeError) else error)
        self._logger.error("request %d %s failed: %s", request_id.get(), method, text, exc_info=not expected)
        await context.abort(_code(error), text)


def _code(error: Exception) -> grpc.StatusCode:
    if isinstance(error, NotFound):
        return grpc.StatusCode.NOT_FOUND
    if isinstance(error, PluginError | CdiError):
        return grpc.StatusCode.FAILED_PRECONDITION
    return grpc.StatusCode.UNKNOWN


@dataclass(frozen=True, slots=True)
class RegistrationStatus:
    """The kubelet's last word; ``error`` is its reason if the plugin is not ``registered``."""

    registered: bool
    error: str = ""


class RegistrationService(api_pb2_grpc.RegistrationServicer):
    """Answers the kubelet and remembers what it said; calls ``on_registered`` each time that it registers us."""

    def __init__(
        self, driver_name: str, endpoint: str, services: Sequence[str], on_registered: Callable[[], None]
    ) -> None:
        self._on_registered = on_registered
        self._info = api_pb2.PluginInfo(
            type="DRAPlugin", name=driver_name, endpoint=endpoint, supported_versions=services
        )
        self._changed = asyncio.Condition()
        self.status: RegistrationStatus | None = None

    async def registered(self) -> None:
        """Wait until the kubelet has registered the plugin."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.status is not None and self.status.registered)

    async def GetInfo(self, request: api_pb2.InfoRequest, context: Any) -> api_pb2.PluginInfo:  # noqa: N802  # grpc
        """Name, socket and versions of this plugin."""
        return self._info

    async def NotifyRegistrationStatus(  # noqa: N802  # grpc's name
        self, request: api_pb2.RegistrationStatus, context: Any
    ) -> api_pb2.RegistrationStatusResponse:
        """Remember the kubelet's word; a refusal is answered with an error, so that both sides log it."""
        async with self._changed:
            self.status = RegistrationStatus(request.plugin_registered, request.error)
            self._changed.notify_all()
        if request.plugin_registered:
            log.info("the kubelet registered the plugin")
            self._on_registered()
        else:
            raise RegistrationRefused(f"the kubelet did not register the plugin: {request.error}")
        return api_pb2.RegistrationStatusResponse()


_SOCKET_LOOK_SECONDS = 1.0


class SocketServer:
    """Serves ``driver_name`` on ``path``; ``register`` adds the services. Calls ``died`` if it ends by itself.

    ``instances`` fits the names of such sockets of all instances of the driver.
    """

    def __init__(
        self,
        driver_name: str,
        path: Path,
        instances: re.Pattern[str],
        register: Callable[[grpc.aio.Server], None],
        interceptors: Sequence[Interceptor],
        died: Callable[[ServerDied], None],
    ) -> None:
        self.path = path
        self._mark = _mark(driver_name)
        self._instances = instances
        self._register = register
        self._interceptors = interceptors
        self._died = died
        self._server: grpc.aio.Server | None = None
        self._hidden: Path | None = None
        self._identity: tuple[int, int] | None = None
        self._watch: asyncio.Task[None] | None = None

    def check(self) -> None:
        """Raise StartError if another process serves on the path, or something else than a socket is there.

        Two processes that took the socket from each other would restart for ever.
        """
        try:
            if not stat.S_ISSOCK(os.lstat(self.path).st_mode):
                raise StartError(f"{self.path} exists and is not a socket: remove it")
            if _is_listened_on(self.path):
                raise StartError(
                    f"another process serves on the socket {self.path}: stop it first, or give instances that overlap "
                    "rolling_update_uid, which is the uid of their pod"
                )
        except FileNotFoundError:
            pass
        except OSError as error:
            raise StartError(f"cannot inspect the socket {self.path}: {error}") from error

    async def start(self) -> None:
        """Listen. Raises StartError, which names the path."""
        self.check()
        try:
            self.path.unlink(missing_ok=True)  # of a killed process
            self._remove_abandoned()
        except OSError as error:
            raise StartError(f"cannot remove stale sockets in {self.path.parent}: {error}") from error
        hidden = self.path.with_name(f".{self._mark}{secrets.token_urlsafe(2)}")
        server = grpc.aio.server(interceptors=self._interceptors)
        self._register(server)
        try:
            _bind(server, hidden)
            await server.start()
            self._server = server
            _show(hidden, self.path)
            self._hidden = hidden
            self._become_newest()
        except (RuntimeError, OSError) as error:
            await server.stop(None)
            raise StartError(f"cannot serve on the socket {self.path}: {error}; is its folder writable?") from error
        self._identity = _identity(self.path)
        self._watch = asyncio.create_task(self._look(server), name=f"watch {self.path}")

    async def stop(self) -> None:
        """Cancel running calls, stop listening, remove the socket. Harmless when not started."""
        if self._watch:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        shown = [self.path] if self._identity and _identity(self.path) == self._identity else []
        for path in [*shown, *([self._hidden] if self._hidden else [])]:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:  # the next start removes it
                log.warning("the socket %s is left: %s", path, error)
        self._identity = self._hidden = None
        if self._server:
            server, self._server = self._server, None
            await server.stop(None)

    def _remove_abandoned(self) -> None:
        """Remove sockets of this driver, hidden or not, that have no listener any more. Raises OSError."""
        for path in list(self.path.parent.iterdir()):
            if not (path.name.startswith(f".{self._mark}") or self._instances.fullmatch(path.name)):
                continue
            try:
                if stat.S_ISSOCK(os.lstat(path).st_mode) and not _is_listened_on(path):
                    path.unlink()
            except FileNotFoundError:
                pass  # it was moved into place, or another instance was quicker

    def _become_newest(self) -> None:
        """Give the socket a later time than those of the other instances have: the clock may have been set back."""
        with suppress(OSError):  # the clock alone counts then
            others = [path for path in self.path.parent.iterdir() if self._instances.fullmatch(path.name)]
            latest = max((_shown_at(path) for path in others if path != self.path), default=0)
            if latest >= _shown_at(self.path):
                os.utime(self.path, ns=(latest + 1, latest + 1))

    async def _look(self, server: grpc.aio.Server) -> None:
        """Report a server that ended, or whose socket was removed or replaced, so that clients cannot reach it."""
        while await server.wait_for_termination(timeout=_SOCKET_LOOK_SECONDS):
            if _identity(self.path) != self._identity:
                self._died(ServerDied(f"the socket {self.path} was removed or replaced: restart the plugin"))
                return
        self._died(ServerDied(f"the gRPC server on {self.path} ended unexpectedly: restart the plugin"))


def is_newest(path: Path, instances: re.Pattern[str]) -> bool:
    """Whether no instance that has shown its socket later than this one, at ``path``, is listening beside it.

    False if this one shows no socket: it ends.
    """
    shown = _shown_at(path)
    if not shown:
        return False
    try:
        others = [other for other in path.parent.iterdir() if instances.fullmatch(other.name)]
    except OSError:  # the socket was there just now
        return True
    return not any(_is_newer(other, shown) for other in others)


def beside(path: Path, instances: re.Pattern[str]) -> list[Path]:
    """Return the sockets of other instances that listen beside the one at ``path``."""
    with suppress(OSError):
        others = [other for other in path.parent.iterdir() if instances.fullmatch(other.name) and other != path]
        return sorted(other for other in others if _is_newer(other, -1))
    return []


def _shown_at(path: Path) -> int:
    """When the socket was shown, in nanoseconds; 0 if it is gone."""
    try:
        return os.lstat(path).st_mtime_ns
    except OSError:
        return 0


def _is_newer(other: Path, shown: int) -> bool:
    try:
        return _shown_at(other) > shown and _is_listened_on(other)
    except OSError:  # that instance has just ended
        return False


def _bind(server: grpc.aio.Server, path: Path) -> None:
    """Listen with a socket that only its owner may use, whatever the umask of the process is."""
    before = os.umask(0o077)
    try:
        server.add_insecure_port(f"unix:{path}")
    finally:
        os.umask(before)


def _show(hidden: Path, path: Path) -> None:
    """Give the socket a second name. Raises OSError."""
    try:
        os.link(hidden, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links to sockets
        hidden.rename(path)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _mark(driver_name: str) -> str:
    """Four characters: a hidden name must be no longer than ``dra.sock``, paths of sockets have at most 107 bytes."""
    return base64.urlsafe_b64encode(hashlib.sha256(driver_name.encode()).digest()[:3]).decode()


def _is_listened_on(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        client.setblocking(False)
        try:
            client.connect(str(path))
        except ConnectionRefusedError:
            return False
        except BlockingIOError:
            pass  # its backlog is full
    return True
