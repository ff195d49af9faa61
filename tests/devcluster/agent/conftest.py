"""A node whose agent runs, with a kubelet's settings shortened for tests, and plugins for it."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from dra_devcluster.agent import AgentSettings, Backoff
from dra_devcluster.apiserver import DevApiServer
from dra_kube import Api, connection
from fake_plugin import FakePlugin, MakePlugin
from one_node import OneNode
from waiting import becomes

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


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder for unix sockets: their paths must not be longer than 107 characters, and ``tmp_path`` is long."""
    with tempfile.TemporaryDirectory(prefix="dra-") as folder:
        yield Path(folder)


@pytest.fixture
async def make_plugin(short_path: Path) -> AsyncIterator[MakePlugin]:
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


@pytest.fixture
async def node(tmp_path: Path, short_path: Path, fast: AgentSettings) -> AsyncIterator[OneNode]:
    """A node whose agent is running."""
    async with DevApiServer() as server, Api(connection(server.write_kubeconfig(tmp_path / "kubeconfig"))) as api:
        node = OneNode(api, short_path, fast)
        await node.start()
        yield node
        await node.stop()


@pytest.fixture
async def plugin(node: OneNode, make_plugin: MakePlugin) -> AsyncIterator[FakePlugin]:
    """A registered plugin on the node that writes CDI files."""
    plugin = make_plugin(root=node.root)
    plugin.cdi_root = node.cdi_root
    async with plugin:
        await becomes(lambda: plugin.statuses == [(True, "")])
        yield plugin
