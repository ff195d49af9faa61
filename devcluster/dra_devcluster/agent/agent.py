"""A node of the development cluster: behaves towards API server, plugins and pods as a kubelet does.

Several agents may live in one process, each with its own name and root directory. To stop an agent and start another
one on the same root is the restart of a kubelet: the new agent finds the claim checkpoint and the states of the
containers. The containers end with the agent, unless it shares a runtime that outlives it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from dra_cdi import CdiDirectory
from dra_kube import Api

from dra_devcluster.agent.claims.manager import ClaimsInUse

from .claims.manager import DraManager
from .containers.container import Node
from .containers.runtime import LocalRuntime
from .events import EventRecorder
from .files import HostPaths
from .node import NodePresence
from .plugins.metrics import NodeMetrics, PluginSocketCount
from .plugins.registration import Registrar
from .pods.pods import Pods
from .server.pod_resources import PodResources
from .server.server import ADDRESS, NodeServer
from .settings import AgentSettings

logger = logging.getLogger(__name__)
_REVIVAL_SECONDS = 1.0


class NodeAgent:
    """One node; an async context manager, entered when the node is registered.

    ``root`` stands for ``/var/lib/kubelet``: plugins find their registration directory in
    ``<root>/plugins_registry``. CDI files are read from ``cdi_root`` (default ``<root>/cdi``).
    Entering raises CheckpointCorrupted if the claim checkpoint is damaged (KM-11).
    """

    def __init__(
        self,
        api: Api,
        node_name: str,
        *,
        root: Path,
        cdi_root: Path | None = None,
        settings: AgentSettings | None = None,
        runtime: LocalRuntime | None = None,
    ) -> None:
        self.node_name = node_name
        self.root = root
        self.cdi_root = cdi_root or root / "cdi"
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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
            stack.push_async_callback(_end, asyncio.create_task(self._keep_running(name, work), name=name))

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


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
