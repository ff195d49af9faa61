"""A plugin that speaks the wire protocol and nothing else, and what the node agent's tests share."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
import pytest
from dra_devcluster.agent import AgentSettings, Backoff, LocalRuntime, NodeAgent
from dra_devcluster.apiserver import DevApiServer
from dra_kube import EVENTS, PODS, RESOURCE_CLAIMS, Api, NotFound, connection
from dra_proto.dra.v1 import api_pb2 as v1
from dra_proto.dra.v1 import api_pb2_grpc as v1_grpc
from dra_proto.dra.v1beta1 import api_pb2 as v1beta1
from dra_proto.dra.v1beta1 import api_pb2_grpc as v1beta1_grpc
from dra_proto.registration.v1 import api_pb2 as registration
from dra_proto.registration.v1 import api_pb2_grpc as registration_grpc

Json = dict[str, Any]
FAST = AgentSettings(
    plugin_period=0.02,
    dial_timeout=1.0,
    registration_backoff=Backoff(0.02, 0.1),
    wipe_backoff=Backoff(0.05, 0.2),
    claim_period=0.1,
    pod_retry=0.05,
    restart_backoff=Backoff(0.05, 0.4),
    shutdown_grace=0.5,
)


@pytest.fixture
def call_timeout() -> float:
    """How long a plugin may take for an answer: long enough on a busy machine. Short where a test waits for its end."""
    return 20.0


@pytest.fixture
def wipe_delay() -> float:
    """How long the slices of a lost driver stay: short, because tests wait for their end. Long where they must stay."""
    return 0.3


@pytest.fixture
def fast(call_timeout: float, wipe_delay: float) -> AgentSettings:
    """A kubelet's settings, shortened for tests."""
    return replace(FAST, call_timeout=call_timeout, wipe_delay=wipe_delay)


async def _until(condition: Callable[[], Any], *, timeout: float = 30.0, what: str = "") -> Any:
    """Wait until the condition holds and return its value; it may be a coroutine function."""
    deadline = asyncio.get_running_loop().time() + timeout
    while True:
        value = condition()
        if isinstance(value, Awaitable):
            value = await value
        if value:
            return value
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"timed out waiting for {what or condition}")
        await asyncio.sleep(0.01)


@pytest.fixture
def until() -> Callable[..., Awaitable[Any]]:
    return _until


class FakePlugin:
    """A driver's plugin: a registration socket and a service socket, with faults to order.

    ``devices`` maps a claim's name to its devices as keyword arguments of the ``Device`` message (other claims get
    one device each). With ``cdi_root`` every prepared claim gets a CDI file that sets ``CLAIM_<name>=true``.
    """

    def __init__(self, folder: Path, driver: str, *, services: tuple[str, ...], instance: str = "") -> None:
        self.driver = driver
        self.services = services
        self.registration_socket = folder / "plugins_registry" / f"{driver}{instance}-reg.sock"
        self.service_socket = folder / "plugins" / f"{driver}{instance}" / "dra.sock"
        self.type = "DRAPlugin"
        self.endpoint: str | None = None
        self.devices: dict[str, list[dict[str, Any]]] = {}
        self.cdi_root: Path | None = None
        self.prepare_error = ""
        self.unprepare_error = ""
        self.prepare_aborts = False
        self.info_failures = 0
        self.notify_failures = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.prepared: list[list[str]] = []
        self.unprepared: list[list[str]] = []
        self.statuses: list[tuple[bool, str]] = []
        self.infos = 0
        self.results: Callable[[dict[str, Any]], dict[str, Any]] = lambda results: results
        self._servers: dict[Path, grpc.aio.Server] = {}

    # --- life ---

    async def __aenter__(self) -> Self:
        await self.serve()
        await self.register()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for socket in list(self._servers):
            await self._end(socket)

    async def serve(self) -> None:
        """Open the service socket."""
        server = grpc.aio.server()
        if "v1.DRAPlugin" in self.services:
            v1_grpc.add_DRAPluginServicer_to_server(_Dra(self, v1), server)
        if "v1beta1.DRAPlugin" in self.services:
            v1beta1_grpc.add_DRAPluginServicer_to_server(_Dra(self, v1beta1), server)
        await self._begin(self.service_socket, server)

    async def register(self) -> None:
        """Open the registration socket."""
        server = grpc.aio.server()
        registration_grpc.add_RegistrationServicer_to_server(_Registration(self), server)
        await self._begin(self.registration_socket, server)

    async def stop_serving(self) -> None:
        """Close the service socket only."""
        await self._end(self.service_socket)

    async def unregister(self) -> None:
        """Close the registration socket only."""
        await self._end(self.registration_socket)

    async def _begin(self, socket: Path, server: grpc.aio.Server) -> None:
        socket.parent.mkdir(parents=True, exist_ok=True)
        server.add_insecure_port(f"unix:{socket}")
        await server.start()
        self._servers[socket] = server

    async def _end(self, socket: Path) -> None:
        server = self._servers.pop(socket, None)
        if server is not None:
            await server.stop(None)
            _remove(socket)

    # --- answers ---

    async def prepare(self, request: Any, messages: Any, context: Any) -> Any:
        self.prepared.append([claim.name for claim in request.claims])
        await self.gate.wait()
        if self.prepare_aborts:
            await context.abort(grpc.StatusCode.INTERNAL, "injected")
        results = {claim.uid: self._result(claim, messages) for claim in request.claims}
        return messages.NodePrepareResourcesResponse(claims=self.results(results))

    async def unprepare(self, request: Any, messages: Any) -> Any:
        self.unprepared.append([claim.name for claim in request.claims])
        await self.gate.wait()
        result = messages.NodeUnprepareResourceResponse(error=self.unprepare_error)
        if self.cdi_root and not self.unprepare_error:
            for claim in request.claims:
                _remove(self.cdi_root / f"{self.driver}-{claim.name}.json")
        return messages.NodeUnprepareResourcesResponse(
            claims=self.results({claim.uid: result for claim in request.claims})
        )

    def _result(self, claim: Any, messages: Any) -> Any:
        if self.prepare_error:
            return messages.NodePrepareResourceResponse(error=self.prepare_error)
        ids = self._write_cdi(claim.name)
        default = [{"pool_name": "pool", "device_name": "device-0", "cdi_device_ids": ids}]
        devices = self.devices.get(claim.name, default)
        return messages.NodePrepareResourceResponse(devices=[messages.Device(**device) for device in devices])

    def _write_cdi(self, claim: str) -> list[str]:
        if self.cdi_root is None:
            return [f"{self.driver}/claim={claim}"]
        edits = {"env": [f"CLAIM_{claim}=true"]}
        spec = {
            "cdiVersion": "0.6.0",
            "kind": f"{self.driver}/claim",
            "devices": [{"name": claim, "containerEdits": edits}],
        }
        (self.cdi_root / f"{self.driver}-{claim}.json").write_text(json.dumps(spec))
        return [f"{self.driver}/claim={claim}"]


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


class _Dra(v1_grpc.DRAPluginServicer, v1beta1_grpc.DRAPluginServicer):
    """Serves either version: they have the same methods."""

    def __init__(self, plugin: FakePlugin, messages: Any) -> None:
        self._plugin = plugin
        self._messages = messages

    async def NodePrepareResources(self, request: Any, context: Any) -> Any:  # noqa: N802  (name of the RPC)
        return await self._plugin.prepare(request, self._messages, context)

    async def NodeUnprepareResources(self, request: Any, context: Any) -> Any:  # noqa: N802  (name of the RPC)
        return await self._plugin.unprepare(request, self._messages)


class _Registration(registration_grpc.RegistrationServicer):
    def __init__(self, plugin: FakePlugin) -> None:
        self._plugin = plugin

    async def GetInfo(self, request: Any, context: Any) -> Any:  # noqa: N802  (name of the RPC)
        plugin = self._plugin
        plugin.infos += 1
        if plugin.info_failures:
            plugin.info_failures -= 1
            await context.abort(grpc.StatusCode.INTERNAL, "injected")
        endpoint = str(plugin.service_socket) if plugin.endpoint is None else plugin.endpoint
        return registration.PluginInfo(
            type=plugin.type, name=plugin.driver, endpoint=endpoint, supported_versions=plugin.services
        )

    async def NotifyRegistrationStatus(self, request: Any, context: Any) -> Any:  # noqa: N802  (name of the RPC)
        plugin = self._plugin
        if plugin.notify_failures:
            plugin.notify_failures -= 1
            await context.abort(grpc.StatusCode.INTERNAL, "injected")
        plugin.statuses.append((request.plugin_registered, request.error))
        return registration.RegistrationStatusResponse()


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder for unix sockets: their paths must not be longer than 107 characters, and ``tmp_path`` is long."""
    with tempfile.TemporaryDirectory(prefix="dra-") as folder:
        yield Path(folder)


@pytest.fixture
async def make_plugin(short_path: Path) -> AsyncIterator[Callable[..., FakePlugin]]:
    """Makes plugins below one folder; whatever they still serve is closed at the end."""
    made: list[FakePlugin] = []

    def make(
        driver: str = "gpu.example.com",
        *,
        services: tuple[str, ...] = ("v1.DRAPlugin", "v1beta1.DRAPlugin"),
        instance: str = "",
        root: Path | None = None,
    ) -> FakePlugin:
        plugin = FakePlugin(root or short_path, driver, services=services, instance=instance)
        made.append(plugin)
        return plugin

    yield make
    for plugin in made:
        await plugin.__aexit__(None, None, None)


class OneNode:
    """An API server, one node's agent that can be stopped and started, and short ways to make and watch objects."""

    name = "node-1"

    def __init__(self, api: Api, root: Path, settings: AgentSettings) -> None:
        self.api = api
        self.root = root
        self.settings = settings
        self.runtime: LocalRuntime | None = None
        self._agent: NodeAgent | None = None

    @property
    def cdi_root(self) -> Path:
        return self.root / "cdi"

    until = staticmethod(_until)

    async def start(self) -> NodeAgent:
        """Start the agent (again)."""
        self._agent = NodeAgent(self.api, self.name, root=self.root, settings=self.settings, runtime=self.runtime)
        return await self._agent.__aenter__()

    async def stop(self) -> None:
        """Stop the agent as a kubelet is stopped."""
        agent, self._agent = self._agent, None
        if agent is not None:
            await agent.__aexit__(None, None, None)

    async def claim(self, name: str, *pods: str, drivers: tuple[str, ...] = ("gpu.example.com",)) -> Json:
        """A claim that is allocated on the node and reserved for the pods (by name; they must exist)."""
        requests = [{"name": f"req-{index}", "exactly": {"deviceClassName": "c"}} for index in range(len(drivers))]
        claim = await self.api.create(
            RESOURCE_CLAIMS,
            {"metadata": {"name": name, "namespace": "default"}, "spec": {"devices": {"requests": requests}}},
        )
        results = [
            {"request": f"req-{index}", "driver": driver, "pool": "pool", "device": f"device-{index}"}
            for index, driver in enumerate(drivers)
        ]
        claim["status"] = {
            "allocation": {"devices": {"results": results}},
            "reservedFor": [
                {"resource": "pods", "name": pod, "uid": (await self.get(pod))["metadata"]["uid"]} for pod in pods
            ],
        }
        return await self.api.update(RESOURCE_CLAIMS, claim, "status")

    async def pod(
        self, name: str, script: str = "", *, claims: tuple[str, ...] = (), policy: str = "Never", **spec: Any
    ) -> Json:
        """A pod on the node whose container runs the script (or idles) and uses the claims."""
        container: Json = {"name": "c", "image": "busybox", "resources": {"claims": [{"name": c} for c in claims]}}
        if script:
            container["command"] = ["sh", "-c", script]
        default: Json = {
            "nodeName": self.name,
            "restartPolicy": policy,
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
            "resourceClaims": [{"name": claim, "resourceClaimName": claim} for claim in claims],
        }
        body = {"metadata": {"name": name, "namespace": "default"}, "spec": default | spec}
        return await self.api.create(PODS, body)

    async def get(self, pod: str) -> Json:
        return await self.api.get(PODS, pod, "default")

    async def phase(self, pod: str, phase: str) -> Json:
        """The pod's status, once it has that phase."""

        async def reached() -> Json | None:
            status = (await self.get(pod)).get("status") or {}
            return status if status.get("phase") == phase else None

        status: Json = await _until(reached, what=f"pod {pod} to be {phase}")
        return status

    async def gone(self, pod: str) -> None:
        """Wait until the pod object no longer exists."""

        async def is_gone() -> bool:
            try:
                await self.get(pod)
            except NotFound:
                return True
            return False

        await _until(is_gone, what=f"pod {pod} to be gone")

    async def delete(self, pod: str, grace_seconds: int | None = None) -> None:
        await self.api.delete(PODS, pod, "default", grace_seconds=grace_seconds)

    async def delete_claim(self, claim: str) -> None:
        await self.api.delete(RESOURCE_CLAIMS, claim, "default")

    async def event(self, pod: str, reason: str, text: str = "") -> Json:
        """The first event on the pod with that reason and text, once there is one."""

        async def find() -> Json | None:
            events, _ = await self.api.list(EVENTS, "default")
            for event in events:
                if event["involvedObject"]["name"] == pod and event["reason"] == reason and text in event["message"]:
                    return event
            return None

        event: Json = await _until(find, what=f"event {reason} on pod {pod}")
        return event

    async def log(self, pod: str, **query: str) -> str:
        """The pod's log through the API server."""
        return await self.api.raw_text(f"/api/v1/namespaces/default/pods/{pod}/log", **query)


@pytest.fixture
async def node(tmp_path: Path, short_path: Path, fast: AgentSettings) -> AsyncIterator[OneNode]:
    """A node whose agent is running."""
    async with DevApiServer() as server, Api(connection(server.write_kubeconfig(tmp_path / "kubeconfig"))) as api:
        node = OneNode(api, short_path, fast)
        await node.start()
        yield node
        await node.stop()


@pytest.fixture
async def plugin(node: OneNode, make_plugin: Callable[..., FakePlugin]) -> AsyncIterator[FakePlugin]:
    """A registered plugin on the node that writes CDI files."""
    plugin = make_plugin(root=node.root)
    plugin.cdi_root = node.cdi_root
    async with plugin:
        await _until(lambda: plugin.statuses == [(True, "")], what="the registration")
        yield plugin
