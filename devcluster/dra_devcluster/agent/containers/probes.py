"""Probes and lifecycle hooks of a container: they run a program in it, ask over HTTP, TCP or gRPC, or sleep.

While a startup probe has not succeeded, the other probes wait. A readiness probe decides whether the container is
ready. A startup or liveness probe that fails often enough in a row stops the container, and so does a start hook that
fails. The restart policy decides about a restart. The stop hook takes its time from the grace period; the container
still gets two seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import aiohttp
import grpc
from google.protobuf.wrappers_pb2 import StringValue, UInt32Value

from dra_devcluster.agent.containers.runtime import LocalRuntime
from dra_devcluster.agent.errors import ContainerError
from dra_devcluster.agent.events import EventRecorder
from dra_devcluster.agent.pod_network import LOOPBACK, Network
from dra_devcluster.agent.processes.process import ContainerProcess, exit_code
from dra_devcluster.agent.settings import AgentSettings
from dra_devcluster.agent.spec import (
    ExecAction,
    GrpcAction,
    Handler,
    HttpGetAction,
    Probe,
    RunContainer,
    RunPod,
    TcpSocketAction,
)
from dra_devcluster.background import cancelled

_LONGEST_OUTPUT_BYTES = 10 * 1024
_SERVING_CODE = 1  # HealthCheckResponse.ServingStatus


class HandlerFailed(Exception):
    """The text says what went wrong, as the event shows it."""


@dataclass(frozen=True, slots=True)
class ProbeTarget:
    """The container that a handler concerns: its process, where it listens, its ports by name."""

    process: ContainerProcess
    network: Network
    ports: Mapping[str, int]

    def port(self, port: int | str) -> int:
        """The number of a port. Raises HandlerFailed."""
        number = self.ports.get(port, port) if isinstance(port, str) else port
        if not str(number).isdecimal() or not 0 < int(number) < 2**16:
            raise HandlerFailed(f"couldn't find port: {port}")
        return int(number)


async def perform(handler: Handler, target: ProbeTarget, timeout: float) -> None:
    """Carry out the handler. Raises HandlerFailed, also when it takes longer than ``timeout`` seconds."""
    try:
        async with asyncio.timeout(timeout):
            if handler.exec is not None:
                await _execute(handler.exec, target)
            elif handler.http_get is not None:
                await _get(handler.http_get, target)
            elif handler.tcp_socket is not None:
                await _connect(handler.tcp_socket, target)
            elif handler.grpc is not None:
                await _check(handler.grpc, target)
            elif handler.sleep is not None:
                await asyncio.sleep(handler.sleep.seconds)
    except TimeoutError:
        raise HandlerFailed(f"timed out after {timeout:g} s") from None
    except OSError as error:
        raise HandlerFailed(str(error)) from error


async def _execute(action: ExecAction, target: ProbeTarget) -> None:
    try:
        process = await target.process.execute(action.command, stdin=False)
    except ContainerError as error:
        raise HandlerFailed(error.message) from error
    try:
        output, errors = await process.communicate()
    finally:
        target.process.leave(process)
        await process.wait()  # killed, if the time is over
    if exit_code(process.returncode or 0) != 0:
        raise HandlerFailed((output + errors)[:_LONGEST_OUTPUT_BYTES].decode(errors="replace"))


async def _connect(action: TcpSocketAction, target: ProbeTarget) -> None:
    port = target.port(action.port)
    if action.host:
        _, writer = await asyncio.open_connection(action.host, port)
    else:
        _, writer = await target.network.connect(port)
    writer.close()
    with suppress(OSError):  # the connection was made: that is all that counts
        await writer.wait_closed()


async def _get(action: HttpGetAction, target: ProbeTarget) -> None:
    path = action.path if action.path.startswith("/") else f"/{action.path}"
    url = f"{action.scheme.lower()}://{action.host or LOOPBACK}:{target.port(action.port)}{path}"
    network = Network() if action.host else target.network
    headers = {"User-Agent": "kube-probe/1.36", "Accept": "*/*"}
    headers |= {header.name: header.value for header in action.http_headers or ()}
    try:
        # A probe does not verify certificates: it asks whether the server answers, not who it is.
        connector = aiohttp.TCPConnector(ssl=False, socket_factory=lambda _: network.socket())
        async with aiohttp.ClientSession(connector=connector) as session, session.get(url, headers=headers) as answer:
            if not 200 <= answer.status < 400:
                raise HandlerFailed(f"HTTP probe failed with statuscode: {answer.status}")
    except aiohttp.ClientConnectorError as error:
        raise HandlerFailed(f'Get "{url}": {error.strerror}') from error
    except aiohttp.ClientError as error:
        raise HandlerFailed(f'Get "{url}": {error}') from error


async def _check(action: GrpcAction, target: ProbeTarget) -> None:
    """Ask the health service of gRPC, ``grpc.health.v1``.

    Its two messages have one field each, and so look on the wire like the messages for single values.
    """
    request = StringValue(value=action.service or "")
    async with (
        target.network.forwarded(target.port(action.port)) as port,
        grpc.aio.insecure_channel(f"{LOOPBACK}:{port}") as channel,
    ):
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=StringValue.SerializeToString,
            response_deserializer=UInt32Value.FromString,
        )
        try:
            answer = await check(request)
        except grpc.aio.AioRpcError as error:
            raise HandlerFailed(f"gRPC probe failed: {error.code().name}: {error.details()}") from error
    if answer.value != _SERVING_CODE:
        raise HandlerFailed("service unhealthy (responded with another status than SERVING)")


_LONGEST_HOOK_SECONDS = 365 * 24 * 3600.0  # a start hook has no time limit in Kubernetes
_LEAST_GRACE_SECONDS = 2.0


class Prober:
    """Runs the hooks and probes of one container. ``changed`` is called when ``started`` or ``ready`` has changed.

    These two are what the startup and the readiness probe say of the container that runs.
    """

    def __init__(
        self,
        runtime: LocalRuntime,
        settings: AgentSettings,
        events: EventRecorder,
        pod: Callable[[], RunPod],
        container: RunContainer,
        changed: Callable[[], None],
    ) -> None:
        self._runtime = runtime
        self._least_timeout = settings.probe_timeout
        self._events = events
        self._pod = pod
        self._container = container
        self._changed = changed
        self.reset()

    def reset(self) -> None:
        """The container is about to start (again)."""
        self.started = self._container.startup_probe is None
        self.ready = self.started and self._container.readiness_probe is None

    async def run(self, *, fresh: bool) -> None:
        """Run the hooks and probes of the container that runs now, until a failure ends it.

        The start hook runs only if the container is ``fresh``: started just now, not by an earlier node agent.
        """
        lifecycle, name = self._container.lifecycle, self._container.name
        try:
            target = self._target()
        except ContainerError:
            return  # the container has ended already
        if fresh and lifecycle is not None and lifecycle.post_start is not None:
            try:
                await perform(lifecycle.post_start, target, _LONGEST_HOOK_SECONDS)
            except HandlerFailed as error:
                self._events.warning(self._pod(), "FailedPostStartHook", f"PostStartHook failed: {error}", name)
                await self.stop(self._pod().grace_seconds)
                return
        kind, probe = await self._condemned(target)
        self._events.normal(self._pod(), "Killing", f"Container {name} failed {kind} probe, will be restarted", name)
        own = probe.termination_grace_period_seconds
        await self.stop(self._pod().grace_seconds if own is None else float(own))

    async def stop(self, grace: float) -> None:
        """The stop hook, then the end of the container within what is left of the grace period."""
        loop, uid, name = asyncio.get_running_loop(), self._pod().metadata.uid, self._container.name
        began, lifecycle = loop.time(), self._container.lifecycle
        hook = lifecycle.pre_stop if lifecycle is not None else None
        if grace > 0 and hook is not None and self._runtime.is_running(uid, name):
            try:
                await perform(hook, self._target(), grace)
            except HandlerFailed as error:
                self._events.warning(self._pod(), "FailedPreStopHook", f"PreStopHook failed: {error}", name)
            grace = max(_LEAST_GRACE_SECONDS, grace - (loop.time() - began))
        await self._runtime.stop(uid, name, grace)

    def _target(self) -> ProbeTarget:
        """Raises ContainerError when the container is not running."""
        ports = {port.name: port.container_port for port in self._container.ports or () if port.name}
        uid = self._pod().metadata.uid
        process = self._runtime.process(uid, self._container.name)
        return ProbeTarget(process, self._runtime.network(uid), ports)

    async def _condemned(self, target: ProbeTarget) -> tuple[str, Probe]:
        """Check until a startup or liveness probe gives up; returns its kind and itself."""
        startup, liveness = self._container.startup_probe, self._container.liveness_probe
        if startup is not None:
            if not await self._holds("Startup", startup, target, until_success=True):
                return "startup", startup
            self.started, self.ready = True, self._container.readiness_probe is None
            self._changed()
        watching = asyncio.create_task(self._watch_readiness(target))
        try:
            if liveness is None:
                await watching
                await asyncio.Event().wait()  # nothing condemns the container
            assert liveness is not None
            await self._holds("Liveness", liveness, target)
            return "liveness", liveness
        finally:
            await cancelled(watching)

    async def _watch_readiness(self, target: ProbeTarget) -> None:
        """Keep ``ready`` as the readiness probe says."""
        probe = self._container.readiness_probe
        if probe is None:
            return
        successes = failures = 0
        await asyncio.sleep(probe.initial_delay_seconds)
        while True:
            good = await self._check("Readiness", probe, target)
            successes, failures = (successes + 1, 0) if good else (0, failures + 1)
            is_enough = failures >= probe.failure_threshold if self.ready else successes >= probe.success_threshold
            if is_enough:
                self.ready = not self.ready
                self._changed()
            await asyncio.sleep(probe.period_seconds)

    async def _holds(self, kind: str, probe: Probe, target: ProbeTarget, *, until_success: bool = False) -> bool:
        """Check until the probe fails often enough in a row, or has its first success if that is enough."""
        failures = 0
        await asyncio.sleep(probe.initial_delay_seconds)
        while True:
            good = await self._check(kind, probe, target)
            if good and until_success:
                return True
            failures = 0 if good else failures + 1
            if failures >= probe.failure_threshold:
                return False
            await asyncio.sleep(probe.period_seconds)

    async def _check(self, kind: str, probe: Probe, target: ProbeTarget) -> bool:
        try:
            await perform(probe, target, max(probe.timeout_seconds, self._least_timeout))
        except HandlerFailed as error:
            message = f"{kind} probe failed: {error}"
            self._events.warning(self._pod(), "Unhealthy", message, self._container.name)
            return False
        return True
