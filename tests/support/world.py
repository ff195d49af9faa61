"""The cluster in which the end-to-end tests live: an API server, nodes that run pods, and the operator.

The API server is the development cluster's; or the one of ``KUBECONFIG``; or a real one started from
``KUBEBUILDER_ASSETS``, with ``KOPF_DRA_STOCK=1`` beside everything that a cluster has. The nodes are always node
agents of ours, which join whatever cluster it is: so every scenario that needs a node runs against a real API server
too. They live in a thread with a loop of its own, since a session outlives the loop of each test.

``second_operator`` is one more operator, which has what is off by default, and little patience. It places pods of its
own scheduler name. It evicts beside the first operator, or beside kube-controller-manager, and they do the same;
DeviceTaintRules and ResourcePoolStatusRequests are served by it alone.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import envtest
from command import OperatorProcess, operator_process
from dra_devcluster.agent import AgentSettings, Backoff, NodeAgent
from dra_devcluster.apiserver import serve_in_thread
from dra_kube import NODES, Api, Connection, NotFound, connection
from node_stub import bare_node

T = TypeVar("T")
NODE_LABEL = "e2e.kopf-dra/nodes"  # value: "running" where pods run, "objects" where only the control plane acts
SETTINGS = AgentSettings(
    pod_retry=0.5,
    lease_period=2.0,
    registration_backoff=Backoff(0.1, 1.0),
    plugin_period=0.1,
    wipe_delay=0.5,
    wipe_backoff=Backoff(0.2, 1.0),
    claim_period=2.0,
    restart_backoff=Backoff(0.2, 1.0),
)


@dataclass
class World:
    """``nodes`` run pods; ``object_nodes`` are names of Nodes where nothing runs, for control plane scenarios."""

    kubeconfig: Path
    kind: str
    nodes: list[NodeAgent] = field(default_factory=list)
    object_nodes: list[str] = field(default_factory=list)

    def connection(self) -> Connection:
        """How to reach the API server as administrator."""
        return connection(self.kubeconfig)


class LoopThread:
    """An event loop in a thread, for what outlives a test."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="e2e-world", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something there and wait for its result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def close(self) -> None:
        """End the loop and the thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@contextmanager
def api_server(folder: Path) -> Iterator[tuple[Path, str]]:
    """A kubeconfig, and which kind of API server is behind it."""
    given = os.environ.get("KUBECONFIG")
    binaries = envtest.assets()
    if given:
        yield Path(given), "KUBECONFIG"
    elif binaries:
        with envtest.real_api_server(binaries, folder, stock="KOPF_DRA_STOCK" in os.environ) as kubeconfig:
            yield kubeconfig, "KUBEBUILDER_ASSETS"
    else:
        with serve_in_thread() as server:
            yield server.write_kubeconfig(folder / "kubeconfig"), "development cluster"


@contextmanager
def world(folder: Path, nodes: int = 4) -> Iterator[World]:
    """Everything but the operator."""
    suffix = secrets.token_hex(3)
    with ExitStack() as stack:
        kubeconfig, kind = stack.enter_context(api_server(folder))
        thread = LoopThread()
        stack.callback(thread.close)
        running = World(kubeconfig, kind)
        agents = AsyncExitStack()
        stack.callback(lambda: thread.run(agents.aclose()))
        thread.run(_join(running, agents, folder, [f"e2e-{suffix}-{number}" for number in range(nodes)]))
        yield running


async def _join(running: World, stack: AsyncExitStack, folder: Path, names: list[str]) -> None:
    api = await stack.enter_async_context(Api(running.connection(), user_agent="node-agent"))
    for number, name in enumerate(names):
        agent = NodeAgent(api, name, root=folder / f"n{number}", settings=SETTINGS)
        running.nodes.append(await stack.enter_async_context(agent))
        stack.push_async_callback(_forget, api, name)
        await api.patch(NODES, name, {"metadata": {"labels": {NODE_LABEL: "running"}}})
        bare = f"{name}-object"
        objects = bare_node(api, bare, labels={NODE_LABEL: "objects"}, renewal_seconds=SETTINGS.lease_period)
        await stack.enter_async_context(objects)
        running.object_nodes.append(bare)


async def _forget(api: Api, node: str) -> None:
    with suppress(NotFound):
        await api.delete(NODES, node)


# --- One more operator ---

SECOND = "e2e-second"
"""Its scheduler name."""
FILTER_TIMEOUT = 0.1
OPTIONS = (
    *("--scheduler-name", SECOND, "--controllers", "placement,release,eviction"),
    *("--feature-gates", "DRAResourcePoolStatus=true,DRADeviceTaintRules=true"),
    *("--binding-timeout", "2", "--filter-timeout", str(FILTER_TIMEOUT)),
)


@contextmanager
def second_operator(kubeconfig: Path, folder: Path) -> Iterator[OperatorProcess]:
    """It is ready, and runs in a process of its own."""
    thread, stack = LoopThread(), AsyncExitStack()
    try:
        running = operator_process(kubeconfig, folder / "log", "second", *OPTIONS)
        operator = thread.run(stack.enter_async_context(running))
        thread.run(operator.becomes_ready())
        yield operator
    finally:
        thread.run(stack.aclose())
        thread.close()
