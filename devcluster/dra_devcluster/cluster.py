"""A development cluster as one object: API server, nodes, and optionally a plugin process on each node.

::

    async with DevCluster(folder, nodes=2, devices=4) as cluster, Api(cluster.connection()) as api:
        ...

The operator is not part of it: it runs *on* a cluster. ``run`` is the command ``dra-devcluster up``: it keeps a cluster
until a signal stops it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Self

import yaml
from dra_api.command_line import shell
from dra_api.gates import Component, FeatureGates, GateError
from dra_api.meta import RESOURCE_SLICES
from dra_api.releases import BUILT, NEWEST, Release
from dra_kube import Api, Connection, connection

from dra_devcluster.apiserver.identity import NAME, living, merged, read_kubeconfig, write_kubeconfig
from dra_devcluster.apiserver.registry import API_SERVER
from dra_devcluster.processes import ForkedProcess, ForkServer, ProcessFailed

from .agent import AgentSettings, KubeletDefect, NodeAgent
from .agent.settings import NODE_GATES, settings_for
from .apiserver import DevApiServer, Mode, ServerError

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
        token = f"Bearer {self.server.node_token(name)}"  # under its own name, as a kubelet
        own = replace(administrator, authorization=lambda: token)
        api = await stack.enter_async_context(Api(own, user_agent="node-agent"))
        agent = NodeAgent(api, name, root=self.folder / "nodes" / name, settings=self._agent_settings)
        await stack.enter_async_context(agent)
        plugin = self._plugin(agent, plugins) if plugins is not None else None
        if plugin is not None:
            after_agent.push_async_callback(plugin.stop)
        return ClusterNode(agent, plugin)

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


_PUBLICATION_SECONDS: Final = 0.05  # seconds


async def devices_published(cluster: DevCluster) -> None:
    """Wait until every node whose plugin lives has all slices of its pool. What a snapshot brought counts."""
    registry = cluster.server.registry
    slices = registry.collection(registry.resource(RESOURCE_SLICES.group, "v1", RESOURCE_SLICES.plural))
    missing = {node.name: node.plugin for node in cluster.nodes if node.plugin is not None}
    seen: set[str] = set()
    found: Counter[str] = Counter()
    while missing := {name: plugin for name, plugin in missing.items() if not plugin.has_ended}:
        for stored in slices.all():
            if stored.name not in seen:
                seen.add(stored.name)
                spec = stored.decode()["spec"]
                node = spec.get("nodeName", "")
                found[node] += 1
                if found[node] >= spec["pool"]["resourceSliceCount"]:
                    missing.pop(node, None)
        await asyncio.sleep(_PUBLICATION_SECONDS)


_MANY_NODES = 100
"""From so many nodes on the start takes long enough to report progress."""


class UsageError(Exception):
    """The command line asks for something impossible; the text has cause and remedy."""


def run(arguments: argparse.Namespace) -> int:
    """Run until SIGINT, SIGTERM or SIGHUP; returns the exit code: 2 for settings that cannot be used."""
    try:
        return asyncio.run(_up(arguments, Path(arguments.kubeconfig).absolute()))
    except (ServerError, GateError, UsageError, ProcessFailed) as error:
        print(f"dra-devcluster: {error}", file=sys.stderr)
        return 1 if isinstance(error, ProcessFailed) else 2


def parse_gates(text: str) -> dict[str, bool]:
    """``A=true,B=false`` as a mapping. Raises UsageError."""
    gates = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        if value.lower() not in ("true", "false"):
            raise UsageError(f"--feature-gates: {part!r} is not of the form NAME=true or NAME=false")
        gates[name.strip()] = value.lower() == "true"
    return gates


def parse_defects(text: str) -> frozenset[KubeletDefect]:
    """``a,b`` as defects. Raises UsageError."""
    names = frozenset(part.strip() for part in text.split(",") if part.strip())
    known = {defect.value for defect in KubeletDefect}
    if unknown := sorted(names - known):
        raise UsageError(
            f"--kubelet-defects: {', '.join(unknown)} is not known; choose from {', '.join(sorted(known))}"
        )
    return frozenset(map(KubeletDefect, names))


def _agent_settings(arguments: argparse.Namespace) -> AgentSettings:
    """Raises UsageError."""
    settings = replace(SETTINGS, defects=parse_defects(arguments.kubelet_defects))
    if arguments.programs is None:
        return settings
    programs = Path(arguments.programs).absolute()
    if not programs.is_dir():
        raise UsageError(f"--programs: {programs} is not a folder; make it, and put the programs of your images there")
    return replace(settings, search_path=f"{programs}:{settings.search_path}")


async def _up(arguments: argparse.Namespace, kubeconfig: Path) -> int:
    """A signal cancels the cluster, be it up or not yet; it is taken down without being cancelled again."""
    running = asyncio.create_task(_run(arguments, kubeconfig))
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores it
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({running, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if not running.done():
        print("Stopping.", flush=True)
        running.cancel()
        await asyncio.wait({running})
    stopped.cancel()
    if not running.cancelled():
        await running
    return 0


async def _run(arguments: argparse.Namespace, kubeconfig: Path) -> None:
    """Until it is cancelled."""
    _check_kubeconfig(kubeconfig, arguments.name)
    with TemporaryDirectory(prefix="dra-") as folder:
        cluster = DevCluster(
            Path(folder),
            nodes=arguments.nodes,
            devices=arguments.devices,
            port=arguments.port,
            release=BUILT[arguments.kubernetes_version],
            feature_gates=parse_gates(arguments.feature_gates),
            snapshot=Path(arguments.snapshot) if arguments.snapshot else None,
            authorization=arguments.authorization,
            name=arguments.name,
            progress=_progress if arguments.nodes >= _MANY_NODES else None,
            agent_settings=_agent_settings(arguments),
        )
        async with cluster:
            await devices_published(cluster)
            _write_kubeconfig(cluster, kubeconfig)
            print(_what_next(cluster, kubeconfig), flush=True)
            await _report_ends(cluster)


def _progress(done: int, wanted: int) -> None:
    if done % _MANY_NODES == 0 and done < wanted:
        print(f"{done} of {wanted} nodes are up", flush=True)


def _check_kubeconfig(path: Path, name: str) -> None:
    """Say before the cluster starts that its kubeconfig cannot be written, or is that of one that runs."""
    if not path.parent.is_dir():
        raise UsageError(f"cannot write the kubeconfig {path}: there is no folder {path.parent}; make it first")
    if path.is_dir():
        raise UsageError(f"cannot write the kubeconfig {path}: it is a folder; name a file with --kubeconfig")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"cannot write the kubeconfig {path}: permission denied; name another with --kubeconfig")
    try:
        address = living(read_kubeconfig(path), name)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} exists, and {error}: remove it, or name another file with --kubeconfig") from error
    if address:
        raise UsageError(
            f"{path} is the kubeconfig of a cluster {name} that runs at {address}: "
            "choose another --kubeconfig, or another --name for a second cluster in the same file"
        )


def _write_kubeconfig(cluster: DevCluster, path: Path) -> None:
    """Written last, so that a process that waits for the file finds a usable cluster. Other clusters in it stay."""
    try:
        write_kubeconfig(path, merged(read_kubeconfig(path), cluster.server.kubeconfig))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"cannot write the kubeconfig {path}: {reason}; name another with --kubeconfig") from error


async def _report_ends(cluster: DevCluster) -> None:
    """Report plugin processes that end, and keep the cluster running."""
    alive = [node.plugin for node in cluster.nodes if node.plugin]
    while True:
        for plugin in list(alive):
            try:
                plugin.check()
            except ProcessFailed as error:
                alive.remove(plugin)
                print(error, file=sys.stderr, flush=True)
        await asyncio.sleep(1.0)


def _what_next(cluster: DevCluster, kubeconfig: Path) -> str:
    nodes = "\n".join(f"  {node.name}: {node.agent.root}" for node in cluster.nodes)
    return f"""The API server listens on {cluster.server.url}.
Nodes, and the folders that stand for their /var/lib/kubelet:
{nodes or "  none"}

In another shell:

  {shell("export", f"KUBECONFIG={kubeconfig}")}    # context {cluster.server.name}
  kubectl get nodes,resourceslices
  dra-operator run                  # generates and allocates claims, places pods of dra-scheduler

Ctrl-C ends the cluster."""
