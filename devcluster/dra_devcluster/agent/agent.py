"""A node of the development cluster: behaves towards API server, plugins and pods as a kubelet does.

Several agents may live in one process, each with its own name and root directory. To stop an agent and start another
one on the same root is the restart of a kubelet: the new agent finds the claim checkpoint and the states of the
containers. The containers end with the agent, unless it shares a runtime that outlives it.

The Node object and its Lease show that the node exists, is ready, and is alive.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import secrets
import shutil
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Self

from dra_api.releases import Release
from dra_api.values import format_micro_time
from dra_cdi import CdiDirectory
from dra_kube import LEASES, NODES, AlreadyExists, Api, KubeError, NotFound

from dra_devcluster.agent.claims import ClaimsInUse, DraManager
from dra_devcluster.agent.containers.container import Node
from dra_devcluster.agent.containers.runtime import LocalRuntime
from dra_devcluster.agent.events import EventRecorder
from dra_devcluster.agent.files import HostPaths
from dra_devcluster.agent.plugins.plugin import NodeMetrics, PluginSocketCount
from dra_devcluster.agent.plugins.registration import Registrar
from dra_devcluster.agent.pod_resources import PodResources
from dra_devcluster.agent.pods import Pods
from dra_devcluster.agent.server import ADDRESS, NodeServer
from dra_devcluster.agent.settings import AgentSettings, declared_features
from dra_devcluster.background import cancelled
from dra_devcluster.clock import now
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
        presence = await self._register(server.port, server_key)
        manager.plugins.wiper.start()
        registrar = Registrar(self.registration_directory, {"DRAPlugin": manager.plugins}, settings, paths)
        metrics.registry.register(ClaimsInUse(manager.cache))
        metrics.registry.register(PluginSocketCount(registrar.sockets))
        loops: dict[str, Callable[[], Awaitable[None]]] = {
            "events": events.run,
            "node": presence.run,
            "plugins": registrar.run,
            "claims": partial(self._reconcile, manager, pods),
            "pods": pods.run,
        }
        for name, work in loops.items():
            stack.push_async_callback(cancelled, asyncio.create_task(self._keep_running(name, work), name=name))

    async def _register(self, port: int, server_key: str) -> NodePresence:
        presence = NodePresence(
            self._api,
            self.node_name,
            self.root,
            self.settings,
            address=ADDRESS,
            port=port,
            server_key=server_key,
        )
        await presence.register()
        return presence

    async def _reconcile(self, manager: DraManager, pods: Pods) -> None:
        """Unprepare periodically the claims of pods that are no longer active on the node (KM-20)."""
        await pods.synced.wait()
        while True:
            await manager.reconcile(pods.active)
            await asyncio.sleep(self.settings.claim_period)

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

    def __init__(
        self, api: Api, name: str, root: Path, settings: AgentSettings, *, address: str, port: int, server_key: str
    ) -> None:
        self._api = api
        self._name = name
        self._root = root
        self._settings = settings
        self._address = address
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
        machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
        labels = {"hostname": self._name, "os": platform.system().lower(), "arch": machine}
        metadata: Json = {
            "labels": {f"kubernetes.io/{key}": value for key, value in labels.items()},
            "annotations": {
                SERVER_KEY_ANNOTATION: self._server_key,
                SERVER_ADDRESS_ANNOTATION: f"{self._address}:{self._port}",
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
            "addresses": [
                {"type": "InternalIP", "address": self._address},
                {"type": "Hostname", "address": self._name},
            ],
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


def _condition(kind: str, status: str, reason: str, message: str) -> Json:
    return {"type": kind, "status": status, "reason": reason, "message": message}


_CONDITIONS = (
    _condition("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    _condition("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    _condition("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    _condition("Ready", "True", "KubeletReady", "the node agent is running"),
)


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
        "machineID": "",
        "systemUUID": "",
        "bootID": "",
        "kernelVersion": platform.release(),
        "osImage": platform.platform(terse=True),
        "containerRuntimeVersion": "local://0.1.0",
        "kubeletVersion": f"v{release}.0+devcluster",
        "kubeProxyVersion": "",
        "operatingSystem": platform.system().lower(),
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine()),
    }
