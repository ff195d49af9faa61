"""The cluster in which the end-to-end tests live: an API server, nodes that run pods, and the operator.

The API server is the development cluster's; or the one of ``KUBECONFIG``; or a real one started from
``KUBEBUILDER_ASSETS``. The nodes are always node agents of ours, which join whatever cluster it is: so every
scenario that needs a node runs against a real API server too. They live in a thread with a loop of its own,
since a session outlives the loop of each test. Nodes without an agent have their Leases renewed all the same:
a node lifecycle controller taints a node that it has not heard of for 50 s.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import envtest
from dra_devcluster.agent import AgentSettings, Backoff, NodeAgent
from dra_devcluster.apiserver import serve_in_thread
from dra_kube import LEASES, NODES, Api, Connection, NotFound, Object, connection

T = TypeVar("T")
NODE_LABEL = "e2e.kopf-dra/nodes"  # value: "running" where pods run, "objects" where only the control plane acts
_LEASE_NAMESPACE = "kube-node-lease"
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
        with envtest.real_api_server(binaries, folder) as kubeconfig:
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
        node = await api.create(NODES, {"metadata": {"name": bare, "labels": {NODE_LABEL: "objects"}}})
        stack.push_async_callback(_forget, api, bare)
        await api.patch(NODES, bare, _READY, subresource="status", kind="strategic")
        stack.push_async_callback(_stop, asyncio.create_task(_beat(api, node), name=f"heartbeat of {bare}"))
        running.object_nodes.append(bare)


async def _beat(api: Api, node: Object) -> None:
    """Renew the Lease of a node behind which nothing runs, until cancelled."""
    name = node["metadata"]["name"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node["metadata"]["uid"]}
    metadata = {"name": name, "namespace": _LEASE_NAMESPACE, "ownerReferences": [owner]}
    spec = {"holderIdentity": name, "leaseDurationSeconds": 40}
    await api.create(LEASES, {"metadata": metadata, "spec": spec})
    while True:
        now = datetime.now(UTC).isoformat(timespec="microseconds")
        await api.patch(LEASES, name, {"spec": {"renewTime": now}}, _LEASE_NAMESPACE)
        await asyncio.sleep(SETTINGS.lease_period)


async def _stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def _forget(api: Api, node: str) -> None:
    with suppress(NotFound):
        await api.delete(NODES, node)


_READY = {
    "status": {
        "conditions": [{"type": "Ready", "status": "True"}],
        "capacity": {"cpu": "64", "memory": "256Gi", "pods": "500"},
        "allocatable": {"cpu": "64", "memory": "256Gi", "pods": "500"},
    }
}
