"""A development cluster as one object: API server, nodes, and optionally a plugin process on each node.

::

    async with DevCluster(folder, nodes=2, devices=4) as cluster, Api(cluster.connection()) as api:
        ...

The operator is not part of it: it runs *on* a cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

import yaml
from dra_api.releases import NEWEST, Component, FeatureGates, Release
from dra_kube import Api, Connection, connection

from dra_devcluster.apiserver.identity import NAME
from dra_devcluster.apiserver.registry import API_SERVER
from dra_devcluster.processes import ForkedProcess, ForkServer

from .agent import AgentSettings, NodeAgent
from .agent.settings import NODE_GATES, settings_for
from .apiserver import DevApiServer, Mode

DRIVER = "simulated.dra.example.com"
SETTINGS = AgentSettings(pod_retry=2.0)
"""Those of a kubelet, except for a shorter pause after a failed prepare, because a person waits for it."""
_CLUSTER: Final = Component("the development cluster", API_SERVER.gates | NODE_GATES)


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """One node: its agent, and the plugin process on it if there is one."""

    agent: NodeAgent
    plugin: ForkedProcess | None = None

    @property
    def name(self) -> str:
        """Name of the Node object."""
        return self.agent.node_name

    @property
    def cdi_dir(self) -> Path:
        """Where drivers on this node put their CDI files."""
        return self.agent.cdi_root

    @property
    def registry_dir(self) -> Path:
        """Where plugins on this node put their registration sockets."""
        return self.agent.registration_directory


class DevCluster:
    """An API server and ``nodes`` nodes named node-1, node-2, ...; an async context manager.

    With ``devices`` above 0 each node has a process of the simulated driver with that many devices. All files are
    below ``folder``, whose path must be short: unix sockets allow 107 bytes in all. ``progress`` is told how many of
    how many nodes are up. Raises ServerError, GateError.
    """

    def __init__(  # noqa: PLR0913  # each is named by the caller, and has a default
        self,
        folder: Path,
        *,
        nodes: int = 1,
        devices: int = 0,
        port: int = 0,
        release: Release = NEWEST,
        feature_gates: Mapping[str, bool] | None = None,
        snapshot: Path | None = None,
        authorization: Mode = "always-allow",
        name: str = NAME,
        progress: Callable[[int, int], None] | None = None,
        agent_settings: AgentSettings = SETTINGS,
    ) -> None:
        self.folder = folder
        changes = feature_gates or {}
        self._agent_settings = settings_for(release, FeatureGates.of(changes, release, _CLUSTER), agent_settings)
        self.server = DevApiServer(
            port=port,
            release=release,
            feature_gates={name: value for name, value in changes.items() if name in API_SERVER.gates},
            snapshot=snapshot,
            authorization=authorization,
            name=name,
        )
        self.nodes: list[ClusterNode] = []
        self._node_names = [f"node-{number}" for number in range(1, nodes + 1)]
        self._devices = devices
        self._progress = progress
        self._stack = AsyncExitStack()

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.folder / "kubeconfig"

    def connection(self) -> Connection:
        """How to reach the API server as administrator."""
        return connection(self.kubeconfig)

    async def __aenter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        async with AsyncExitStack() as stack:
            plugins = ForkServer("dra-kubelet-plugin", self.folder / "plugins.log") if self._devices else None
            if plugins is not None:
                await stack.enter_async_context(plugins)
            await stack.enter_async_context(self.server)
            self.server.write_kubeconfig(self.kubeconfig)
            administrator = self.connection()
            nodes: list[AsyncExitStack] = []
            stack.push_async_callback(_end_together, nodes)
            for name in self._node_names:
                nodes.append(AsyncExitStack())
                self.nodes.append(await self._start_node(name, administrator, nodes[-1], plugins))
                if self._progress is not None:
                    self._progress(len(self.nodes), len(self._node_names))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()
        self.nodes.clear()

    async def _start_node(
        self, name: str, administrator: Connection, stack: AsyncExitStack, plugins: ForkServer | None
    ) -> ClusterNode:
        after_agent = await stack.enter_async_context(AsyncExitStack())  # after the agent, which would miss the plugin
        api = await stack.enter_async_context(Api(self._node_connection(administrator, name), user_agent="node-agent"))
        agent = NodeAgent(api, name, root=self.folder / "nodes" / name, settings=self._agent_settings)
        await stack.enter_async_context(agent)
        plugin = self._plugin(agent, plugins) if plugins is not None else None
        if plugin is not None:
            after_agent.push_async_callback(plugin.stop)
        return ClusterNode(agent, plugin)

    def _node_connection(self, administrator: Connection, name: str) -> Connection:
        """How a node reaches the API server: under its own name, as a kubelet does."""
        token = f"Bearer {self.server.node_token(name)}"
        return replace(administrator, authorization=lambda: token)

    def _plugin(self, agent: NodeAgent, plugins: ForkServer) -> ForkedProcess:
        config = agent.root / "simulated.yaml"
        config.write_text(
            yaml.safe_dump(
                {
                    "driverName": DRIVER,
                    "nodeName": agent.node_name,
                    "numDevices": self._devices,
                    "kubeconfig": str(self.kubeconfig),
                    "pluginRegistrationPath": str(agent.registration_directory),
                    "datadir": str(agent.root / "plugins"),
                    "cdiDir": str(agent.cdi_root),
                }
            )
        )
        name = f"plugin-{agent.node_name}"
        return plugins.start(name, ["simulated", "--config", str(config)], self.folder / f"{name}.log")


async def _end_together(nodes: Iterable[AsyncExitStack]) -> None:
    """End what was started of each node; two hundred plugins take their leave at the same time."""
    ends = await asyncio.gather(*(node.aclose() for node in nodes), return_exceptions=True)
    if failed := next((end for end in ends if isinstance(end, BaseException)), None):
        raise failed
