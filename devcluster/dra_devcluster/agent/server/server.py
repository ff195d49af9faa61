"""The node's own HTTP server, to which the API server passes requests for container logs, ``exec``,
``attach`` and ``port-forward``.

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
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Self

from aiohttp import web
from dra_kube.door import is_same_secret, open_door
from dra_kube.request_log import request_log
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from dra_devcluster.agent.containers.runtime import LocalRuntime
from dra_devcluster.agent.errors import ContainerError
from dra_devcluster.agent.network.port_forward import PortForward
from dra_devcluster.agent.pods.pod_worker import PodWorker
from dra_devcluster.agent.pods.pods import Pods
from dra_devcluster.agent.processes.logs import LogQuery, read_log
from dra_devcluster.agent.server.session import Attachment, started
from dra_devcluster.node_protocol import EXEC_PROTOCOLS, LONGEST_MESSAGE_BYTES, PORT_FORWARD_PROTOCOLS

from .session import refuse, run_session

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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
            raise web.HTTPBadRequest(text=_no_log(worker, name, previous))
        path = self._runtime.log_path(uid, name, record.attempt)
        attempt = record.attempt

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


def _no_log(worker: PodWorker, container: str, previous: bool) -> str:
    where = f'container "{container}" in pod "{worker.pod.metadata.name}"'
    if previous:
        return f"previous terminated {where} not found"
    return f"{where} is waiting to start: {worker.waiting_reason(container)}"


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
