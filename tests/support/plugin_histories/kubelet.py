"""Sockets of the plugin without sockets: a server in a table, whose services are called in its own process.

What ``SocketServer`` promises holds: a path has one server, the one that was shown last is the newest, and stopping
cancels the calls that run. A client is told when the process is gone, as by a connection that is closed.

The kubelet: calls the plugin for the claims of its pods until it succeeds, and starts and ends containers.

A claim in its checkpoint is prepared again after its own restart, and unprepared once its pod has ended (KM-12 to
KM-20). It calls the instance that registered last. A call has 45 s; it is given up as well when the pod ends. A pod
waits while an older claim of the same name is not unprepared. A kubelet that starts removes the slices of its node, and
those of a driver that is gone for half a minute (KM-10).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
from dra_kubeletplugin.claims.calls import V1, V1BETA1
from dra_kubeletplugin.errors import StartError
from dra_kubeletplugin.kubelet import Interceptor
from dra_proto.registration.v1 import api_pb2 as registration

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
        return next((server for server in self.servers if server.path == path), None)

    def drop(self, process: Process) -> None:
        for server in [server for server in self.servers if server.process is process]:
            self.servers.remove(server)
            server.lost()


class Server:
    """Takes the place of ``dra_kubeletplugin.kubelet.SocketServer``."""

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
        self.check()
        self._register(self)  # type: ignore[arg-type]  # it only adds handlers
        await asyncio.sleep(0.001)
        self._sockets.servers.append(self)

    async def stop(self) -> None:
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


if TYPE_CHECKING:
    from .stage import Stage

DEADLINE = 45.0  # seconds of a call
RETRIES = (0.5, 1.0, 2.0)  # seconds between two attempts; the last one is repeated
WIPE_SECONDS = 30.0
END_SECONDS, FORCED_SECONDS = 2.0, 15.0  # until the container of a pod has ended, at most
SEE_SECONDS = 0.05  # until it has seen a new socket


@dataclass(eq=False)
class Claim:
    """A claim as the kubelet knows it; ``shares`` are those devices of which it has a share only."""

    name: str
    uid: str
    devices: tuple[str, ...]
    is_admin: bool = False
    shares: frozenset[str] = frozenset()

    def share_of(self, device: str) -> str | None:
        """The id of its share of a device, if it has one."""
        return f"share-of-{self.uid}" if device in self.shares and not self.is_admin else None

    def excludes(self, other: Claim) -> bool:
        """Whether the two cannot be prepared at the same time."""
        both = set(self.devices) & set(other.devices)
        return not (self.is_admin or other.is_admin) and bool(both - (self.shares & other.shares))


@dataclass(eq=False)
class Pod:
    """A pod on the node, deleted by force or not.

    ``is_prepared`` is what this kubelet knows, ``is_running`` lasts longer than the kubelet.
    """

    name: str
    claims: tuple[Claim, ...]
    is_wanted: bool = True
    is_forced: bool = False
    is_prepared: bool = False
    is_running: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    error: str = ""


class Kubelet:
    """``pods`` are those that it has not forgotten: their claims are wanted, or not unprepared yet."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.pods: list[Pod] = []
        self._tasks: dict[Pod, asyncio.Task[None]] = {}
        self._registered: list[Server] = []
        self.is_running = False
        self._gone_since: float | None = None

    # --- itself ---

    def start(self) -> None:
        """A kubelet without memory, but for its checkpoint."""
        self.is_running = True
        self._stage.wipe_slices("at the kubelet's start")
        for pod in self.pods:
            pod.is_prepared = False
            self._work_on(pod)
        self._registered = []
        self.look()

    def stop(self) -> None:
        """It gives all calls up; containers run on."""
        self.is_running = False
        for task in self._tasks.values():
            task.cancel()
        self._tasks.clear()

    def add(self, pod: Pod) -> None:
        self.pods.append(pod)
        if self.is_running:
            self._work_on(pod)

    def end(self, pod: Pod, *, gives_up: bool) -> None:
        """A pod is deleted, or done."""
        pod.is_wanted = False
        pod.changed.set()
        if gives_up and (task := self._tasks.get(pod)):
            task.cancel()
            self._work_on(pod)

    def repeat(self) -> None:
        """It asks again for what is prepared."""
        for pod in self.pods:
            pod.is_prepared = False
            pod.changed.set()

    def forget(self, pod: Pod) -> None:
        """A pod was deleted by force while the kubelet was not looking: another one has its claim."""
        self.pods.remove(pod)
        if task := self._tasks.pop(pod, None):
            task.cancel()

    # --- plugins ---

    def look(self) -> None:
        """Sockets have come or gone."""
        if self.is_running:
            asyncio.get_running_loop().call_later(SEE_SECONDS, self._see)

    def _see(self) -> None:
        if not self.is_running:
            return
        shown = [server for server in self._stage.sockets.servers if server.path.name.endswith("-reg.sock")]
        self._registered = [server for server in self._registered if server in shown]
        for server in shown:
            if server not in self._registered:
                self._registered.append(server)
                self._stage.spawn(self._register(server))
        now = asyncio.get_running_loop().time()
        if self._registered:
            self._gone_since = None
        elif self._gone_since is None:
            self._gone_since = now
            asyncio.get_running_loop().call_later(WIPE_SECONDS, self._wipe, now)

    def _wipe(self, since: float) -> None:
        if self._gone_since == since:
            self._stage.wipe_slices("since the driver is gone")

    async def _register(self, server: Server) -> None:
        prefix = "/pluginregistration.Registration"
        try:
            await server.call(f"{prefix}/GetInfo", registration.InfoRequest())
            status = registration.RegistrationStatus(plugin_registered=True)
            await server.call(f"{prefix}/NotifyRegistrationStatus", status)
        except CallFailed:
            self._registered = [other for other in self._registered if other is not server]
            self.look()

    def _plugin(self) -> Server:
        for registered in reversed(self._registered):
            for server in self._stage.sockets.servers:
                if server.process is registered.process and server is not registered:
                    return server
        raise CallFailed("DRA driver is not registered")

    # --- pods ---

    def _work_on(self, pod: Pod) -> None:
        self._tasks[pod] = self._stage.spawn(self._work(pod))

    async def _work(self, pod: Pod) -> None:
        attempt = 0
        while True:
            pod.changed.clear()
            try:
                if not pod.is_wanted:
                    await self._end(pod)
                    return
                if not pod.is_prepared:
                    await self._prepare(pod)
                pod.error = ""
                await pod.changed.wait()
                attempt = 0
            except (CallFailed, TimeoutError) as error:
                pod.error = f"{error or type(error).__name__}"
                self._stage.tell(f"    {pod.name}: {pod.error}")
                await asyncio.sleep(RETRIES[min(attempt, len(RETRIES) - 1)])
                attempt += 1

    async def _prepare(self, pod: Pod) -> None:
        for claim in pod.claims:
            if any(other.name == claim.name and other is not claim for each in self.pods for other in each.claims):
                raise CallFailed(f"old ResourceClaim with same name {claim.name} and different UID still exists")
        answer = await self._call("NodePrepareResources", pod, self._stage.judge.answered)
        pod.is_prepared = True
        self._stage.judge.prepared(pod, answer)
        if not pod.is_running:
            await asyncio.sleep(0.1)
            self._stage.judge.starts(pod)
            pod.is_running = True

    async def _end(self, pod: Pod) -> None:
        if pod.is_running:
            seconds = FORCED_SECONDS if pod.is_forced else END_SECONDS
            await asyncio.sleep(self._stage.weather.chance("end", pod.claims[0].uid) * seconds)
            pod.is_running = False
            self._stage.judge.ends(pod)
        await self._call("NodeUnprepareResources", pod, lambda pod, answer: None)
        self.pods.remove(pod)
        self._tasks.pop(pod, None)
        self._stage.judge.unprepared(pod)
        self._stage.forget_claims(pod)

    async def _call(self, method: str, pod: Pod, look: Callable[[Pod, Any], None]) -> Any:
        """The answer, if it has no error. Raises CallFailed or TimeoutError."""
        version = V1 if self._stage.weather.chance("version") < 0.8 else V1BETA1
        claims = [version.messages.Claim(namespace="default", name=claim.name, uid=claim.uid) for claim in pod.claims]
        request = getattr(version.messages, f"{method}Request")(claims=claims)
        self._stage.tell(f"    {method} {' '.join(claim.uid for claim in pod.claims)}")
        self._stage.judge.asks(method, pod)
        async with asyncio.timeout(DEADLINE):
            answer = await self._plugin().call(f"/{version.service}/{method}", request)
        look(pod, answer)
        for claim in pod.claims:
            if claim.uid not in answer.claims:
                raise CallFailed(f"{method} skipped {claim.uid}")
            if error := answer.claims[claim.uid].error:
                raise CallFailed(f"{method} failed for {claim.uid}: {error}")
        self._stage.tell(f"    {method} {' '.join(claim.uid for claim in pod.claims)}: done")
        return answer
