"""A development cluster as one object: API server, nodes, and optionally a plugin process on each node.

::

    async with DevCluster(folder, nodes=2, devices=4) as cluster, Api(cluster.connection()) as api:
        ...

The operator is not part of it: it runs *on* a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

import yaml
from dra_kube import Api, Connection, connection

from .agent import AgentSettings, NodeAgent
from .agent.gates import with_gates
from .apiserver import DevApiServer, Mode
from .apiserver.kubeconfig import NAME
from .processes import ChildProcess, command

DRIVER = "simulated.dra.example.com"
SETTINGS = AgentSettings(pod_retry=2.0)
"""Those of a kubelet, except for a shorter pause after a failed prepare, because a person waits for it."""


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """One node: its agent, and the plugin process on it if there is one."""

    agent: NodeAgent
    plugin: ChildProcess | None = None

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
    how many nodes are up. Raises ServerError, UnknownGate.
    """

    def __init__(
        self,
        folder: Path,
        *,
        nodes: int = 1,
        devices: int = 0,
        port: int = 0,
        feature_gates: Mapping[str, bool] | None = None,
        snapshot: Path | None = None,
        authorization: Mode = "always-allow",
        name: str = NAME,
        progress: Callable[[int, int], None] | None = None,
        agent_settings: AgentSettings = SETTINGS,
    ) -> None:
        self.folder = folder
        self._agent_settings, server_gates = with_gates(agent_settings, feature_gates or {})
        self.server = DevApiServer(
            port=port, feature_gates=server_gates, snapshot=snapshot, authorization=authorization, name=name
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
            await stack.enter_async_context(self.server)
            self.server.write_kubeconfig(self.kubeconfig)
            administrator = self.connection()
            for name in self._node_names:
                api = await stack.enter_async_context(
                    Api(self._node_connection(administrator, name), user_agent="node-agent")
                )
                root = self.folder / "nodes" / name
                agent = NodeAgent(api, name, root=root, settings=self._agent_settings)
                await stack.enter_async_context(agent)
                plugin = await stack.enter_async_context(self._plugin(agent)) if self._devices else None
                self.nodes.append(ClusterNode(agent, plugin))
                if self._progress is not None:
                    self._progress(len(self.nodes), len(self._node_names))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()
        self.nodes.clear()

    def _node_connection(self, administrator: Connection, name: str) -> Connection:
        """How a node reaches the API server: under its own name, as a kubelet does."""
        token = f"Bearer {self.server.node_token(name)}"
        return replace(administrator, authorization=lambda: token)

    def _plugin(self, agent: NodeAgent) -> ChildProcess:
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
        arguments = command("dra-kubelet-plugin", "simulated", "--config", str(config))
        name = f"plugin-{agent.node_name}"
        return ChildProcess(name, arguments, self.folder / f"{name}.log")
