"""A node of the development cluster: behaves towards API server, plugins and pods as a kubelet does.

Several agents may live in one process, each with its own name and root directory. To stop an agent and start another
one on the same root is the restart of a kubelet: the new agent finds the claim checkpoint and the states of the
containers. The containers end with the agent, unless it shares a runtime that outlives it.

The Node object and its Lease show that the node exists, is ready, and is alive. The pod-resources API says which
devices the containers of the node hold, for monitoring (KM-28): gRPC service ``v1.PodResourcesLister`` on the socket
``<root>/pod-resources/kubelet.sock``. All its clients together may send 100 requests per second, and 10 at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import secrets
import shutil
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import grpc
from dra_api.references import ClaimReferenceError
from dra_api.releases import Release
from dra_api.values import format_micro_time, now
from dra_cdi import CdiDirectory
from dra_kube import LEASES, NODES, AlreadyExists, Api, KubeError, NotFound
from dra_proto.podresources.v1 import api_pb2, api_pb2_grpc

from dra_devcluster.agent.checkpoint import ClaimCache, ClaimInfo
from dra_devcluster.agent.claims import ClaimsInUse, DraManager, claim_requests
from dra_devcluster.agent.containers.container import Node
from dra_devcluster.agent.containers.runtime import LocalRuntime
from dra_devcluster.agent.errors import ClaimError
from dra_devcluster.agent.events import EventRecorder
from dra_devcluster.agent.plugins.plugin import NodeMetrics, PluginSocketCount
from dra_devcluster.agent.plugins.registration import Registrar
from dra_devcluster.agent.pods import Pods
from dra_devcluster.agent.server import ADDRESS, NodeServer
from dra_devcluster.agent.settings import AgentSettings, HostPaths, KubeletDefect, declared_features
from dra_devcluster.agent.spec import RunContainer, RunPod
from dra_devcluster.background import cancelled
from dra_devcluster.node_protocol import SERVER_ADDRESS_ANNOTATION, SERVER_KEY_ANNOTATION

logger = logging.getLogger(__name__)
_REVIVAL_SECONDS = 1.0


class NodeAgent:
    """One node; an async context manager, entered when the node is registered.

    ``root`` stands for ``/var/lib/kubelet``: plugins find their registration directory in
    ``<root>/plugins_registry``. CDI files are read from ``<root>/cdi``.
    Entering raises CheckpointCorrupted if the claim checkpoint is damaged (KM-11).
    """

    def __init__(
        self,
        api: Api,
        node_name: str,
        *,
        root: Path,
        settings: AgentSettings | None = None,
        runtime: LocalRuntime | None = None,
    ) -> None:
        self.node_name = node_name
        self.root = root
        self.cdi_root = root / "cdi"
        self.settings = settings or AgentSettings()
        self._api = api
        self._runtime = runtime
        self._stack = AsyncExitStack()

    @property
    def registration_directory(self) -> Path:
        """Where plugins put their registration sockets."""
        return self.root / "plugins_registry"

    async def __aenter__(self) -> Self:
        self.registration_directory.mkdir(parents=True, exist_ok=True)
        self.cdi_root.mkdir(parents=True, exist_ok=True)
        async with AsyncExitStack() as stack:
            await self._start(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _start(self, stack: AsyncExitStack) -> None:
        settings = self.settings
        metrics = NodeMetrics()
        manager = DraManager(self._api, self.node_name, self.root, settings, metrics)
        stack.push_async_callback(manager.close)
        runtime = self._runtime
        if runtime is None:
            own = LocalRuntime(self.root, shutdown_grace=settings.shutdown_grace)
            runtime = await stack.enter_async_context(own)
        events = EventRecorder(self._api, self.node_name)
        cdi = CdiDirectory(self.cdi_root)
        paths = HostPaths(self.root, self.cdi_root)
        node = Node(self.node_name, ADDRESS, self._api, settings, manager, runtime, cdi, events, paths)
        pods = Pods(node)
        manager.pods_changed = pods.refresh
        server_key = secrets.token_urlsafe()
        server = await stack.enter_async_context(NodeServer(pods, runtime, server_key, metrics.registry))
        await stack.enter_async_context(PodResources(self.root, pods.running, manager.cache, settings))
        presence = NodePresence(self._api, self.node_name, self.root, settings, server.port, server_key)
        await presence.register()
        manager.plugins.wiper.start()
        registrar = Registrar(self.registration_directory, {"DRAPlugin": manager.plugins}, settings, paths)
        metrics.registry.register(ClaimsInUse(manager.cache))
        metrics.registry.register(PluginSocketCount(registrar.sockets))

        async def reconcile() -> None:
            """Unprepare periodically the claims of pods that are no longer active on the node (KM-20)."""
            await pods.synced.wait()
            while True:
                await manager.reconcile(pods.active)
                await asyncio.sleep(settings.claim_period)

        loops: dict[str, Callable[[], Awaitable[None]]] = {
            "events": events.run,
            "node": presence.run,
            "plugins": registrar.run,
            "claims": reconcile,
            "pods": pods.run,
        }
        for name, work in loops.items():
            stack.push_async_callback(cancelled, asyncio.create_task(self._keep_running(name, work), name=name))

    async def _keep_running(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """A bug that ends a loop is logged, and the loop starts again after a moment: it must not end the node."""
        while True:
            try:
                await work()
            except Exception:
                logger.exception("node %s: the task for %s has crashed and is restarted", self.node_name, name)
            await asyncio.sleep(_REVIVAL_SECONDS)


Json = dict[str, Any]
_LEASE_NAMESPACE = "kube-node-lease"
_LEASE_SECONDS = 40


class NodePresence:
    """Registers the node and keeps its status and Lease fresh."""

    def __init__(self, api: Api, name: str, root: Path, settings: AgentSettings, port: int, server_key: str) -> None:
        self._api = api
        self._name = name
        self._root = root
        self._settings = settings
        self._port = port
        self._server_key = server_key

    async def register(self) -> None:
        """Create or update the Node, until the API server takes it."""
        while True:
            try:
                await self._write_node()
                return
            except KubeError as error:
                logger.warning("node %s: registration failed: %s", self._name, error)
                await asyncio.sleep(self._settings.plugin_period)

    async def run(self) -> None:
        """Renew the lease and refresh the status until cancelled."""
        await asyncio.gather(
            self._repeat(self._renew_lease, self._settings.lease_period),
            self._repeat(self._write_status, self._settings.node_status_period),
        )

    async def _repeat(self, step: Any, period: float) -> None:
        while True:
            try:
                await step()
            except KubeError as error:
                logger.warning("node %s: %s", self._name, error)
            await asyncio.sleep(period)

    async def _write_node(self) -> None:
        labels = {"hostname": self._name, "os": platform.system().lower(), "arch": _architecture()}
        metadata: Json = {
            "labels": {f"kubernetes.io/{key}": value for key, value in labels.items()},
            "annotations": {
                SERVER_KEY_ANNOTATION: self._server_key,
                SERVER_ADDRESS_ANNOTATION: f"{ADDRESS}:{self._port}",
            },
        }
        try:
            metadata_of_new = metadata | {"name": self._name}
            await self._api.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": metadata_of_new})
        except AlreadyExists:
            await self._api.patch(NODES, self._name, {"metadata": metadata})
        await self._write_status()

    async def _write_status(self) -> None:
        moment = now()
        known = (await self._api.get(NODES, self._name)).get("status") or {}
        times = {
            condition["type"]: condition.get("lastTransitionTime")
            for condition in known.get("conditions") or ()
            if condition.get("status") == ("True" if condition["type"] == "Ready" else "False")
        }
        capacity = _capacity(self._root)
        status: Json = {
            "capacity": capacity,
            "allocatable": capacity,
            "addresses": [{"type": "InternalIP", "address": ADDRESS}, {"type": "Hostname", "address": self._name}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._port}},
            "nodeInfo": _node_info(self._settings.release),
            "declaredFeatures": declared_features(self._settings) or None,
            "conditions": [
                condition | {"lastHeartbeatTime": moment, "lastTransitionTime": times.get(condition["type"]) or moment}
                for condition in _CONDITIONS
            ],
        }
        await self._api.patch(NODES, self._name, {"status": status}, kind="strategic", subresource="status")

    async def _renew_lease(self) -> None:
        renewed = format_micro_time(datetime.now(UTC))
        spec = {"holderIdentity": self._name, "leaseDurationSeconds": _LEASE_SECONDS, "renewTime": renewed}
        try:
            await self._api.patch(LEASES, self._name, {"spec": spec}, _LEASE_NAMESPACE)
        except NotFound:
            lease = {"metadata": {"name": self._name, "namespace": _LEASE_NAMESPACE}, "spec": spec}
            await self._api.create(LEASES, {"apiVersion": LEASES.api_version(), "kind": "Lease"} | lease)


_CONDITIONS: list[Json] = [
    dict(zip(("type", "status", "reason", "message"), each, strict=True))
    for each in (
        ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        ("Ready", "True", "KubeletReady", "the node agent is running"),
    )
]


def _architecture() -> str:
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


def _capacity(root: Path) -> Json:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": str(os.cpu_count() or 1),
        "memory": f"{memory // 1024}Ki",
        "pods": "110",
        "ephemeral-storage": f"{shutil.disk_usage(root).total // 1024}Ki",
    }


def _node_info(release: Release) -> Json:
    return {
        **dict.fromkeys(("machineID", "systemUUID", "bootID", "kubeProxyVersion"), ""),
        "kernelVersion": platform.release(),
        "osImage": platform.platform(terse=True),
        "containerRuntimeVersion": "local://0.1.0",
        "kubeletVersion": f"v{release}.0+devcluster",
        "operatingSystem": platform.system().lower(),
        "architecture": _architecture(),
    }


SOCKET = Path("pod-resources") / "kubelet.sock"
_CALLS_PER_SECOND, _CALLS_AT_ONCE = 100.0, 10.0


class PodResources(api_pb2_grpc.PodResourcesListerServicer):
    """The server of one node; an async context manager. ``pods`` are the active pods."""

    def __init__(
        self, root: Path, pods: Callable[[], Iterable[RunPod]], cache: ClaimCache, settings: AgentSettings
    ) -> None:
        self._socket = root / SOCKET
        self._pods = pods
        self._cache = cache
        self._accumulates = KubeletDefect.ACCUMULATED_CDI_IDS in settings.defects
        self._limit = _Limit(_CALLS_PER_SECOND, _CALLS_AT_ONCE)
        self._server = grpc.aio.server()

    async def __aenter__(self) -> Self:
        self._socket.parent.mkdir(parents=True, exist_ok=True)
        self._socket.unlink(missing_ok=True)
        api_pb2_grpc.add_PodResourcesListerServicer_to_server(self, self._server)
        before = os.umask(0o077)  # others of this machine may not ask which pods have which devices
        try:
            self._server.add_insecure_port(f"unix:{self._socket}")
        finally:
            os.umask(before)
        try:
            await self._server.start()
        except BaseException:  # cancelled, for example: a server that is never stopped complains
            await self._server.stop(None)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(None)

    async def List(self, request: Any, context: Any) -> api_pb2.ListPodResourcesResponse:  # noqa: N802  (name of the RPC)
        await self._admit(context)
        return api_pb2.ListPodResourcesResponse(pod_resources=map(self._pod, self._pods()))

    async def Get(self, request: Any, context: Any) -> api_pb2.GetPodResourcesResponse:  # noqa: N802  (name of the RPC)
        await self._admit(context)
        key = (request.pod_namespace, request.pod_name)
        for pod in self._pods():
            if (pod.metadata.namespace, pod.metadata.name) == key:
                return api_pb2.GetPodResourcesResponse(pod_resources=self._pod(pod))
        message = f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
        await context.abort(grpc.StatusCode.UNKNOWN, message)
        raise AssertionError("abort raises")

    async def GetAllocatableResources(  # noqa: N802  (name of the RPC)
        self, request: Any, context: Any
    ) -> api_pb2.AllocatableResourcesResponse:
        """Devices of device plugins, cpus and memory that could be given exclusively: none here."""
        await self._admit(context)
        return api_pb2.AllocatableResourcesResponse()

    async def _admit(self, context: Any) -> None:
        if not self._limit.allows(asyncio.get_running_loop().time()):
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")

    def _pod(self, pod: RunPod) -> api_pb2.PodResources:
        sidecars = (one for one in pod.spec.init_containers or () if one.is_sidecar)
        return api_pb2.PodResources(
            name=pod.metadata.name,
            namespace=pod.metadata.namespace,
            containers=[self._container(pod, one) for one in (*sidecars, *(pod.spec.containers or ()))],
        )

    def _container(self, pod: RunPod, container: RunContainer) -> api_pb2.ContainerResources:
        """The whole claims, even if the container refers to one request; none if the node does not hold one of them."""
        try:
            names = dict.fromkeys(name for name, _ in claim_requests(pod, container))
        except (ClaimError, ClaimReferenceError):
            names = {}
        claims = [claim for name in names if (claim := self._cache.get(pod.metadata.namespace, name))]
        resources = [
            api_pb2.DynamicResource(
                claim_name=claim.name, claim_namespace=claim.namespace, claim_resources=self._devices(claim)
            )
            for claim in (claims if len(claims) == len(names) else ())
        ]
        return api_pb2.ContainerResources(name=container.name, dynamic_resources=resources)

    def _devices(self, claim: ClaimInfo) -> Iterator[api_pb2.ClaimResource]:
        for driver, devices in sorted(claim.drivers.items()):
            ids: list[str] = []
            for device in devices:
                ids = [*ids, *device.cdi_ids] if self._accumulates else list(device.cdi_ids)
                yield api_pb2.ClaimResource(
                    cdi_devices=[api_pb2.CDIDevice(name=name) for name in ids],
                    driver_name=driver,
                    pool_name=device.pool,
                    device_name=device.device,
                    share_id=device.share_id,
                )


class _Limit:
    """Lets ``rate`` calls per second pass, and ``burst`` at once after a pause."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._left = burst
        self._at: float | None = None

    def allows(self, now: float) -> bool:
        """Whether a call at this time passes; it counts if it does."""
        passed = 0.0 if self._at is None else now - self._at
        self._at = now
        self._left = min(self._burst, self._left + passed * self._rate)
        if self._left < 1:
            return False
        self._left -= 1
        return True
