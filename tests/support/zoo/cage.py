"""A cluster whose operator runs as its Deployment runs it, and in which one tenant after the other lets a beast loose.

The API server is a process of its own, since a beast keeps it busy: the development cluster's, or with
``KUBEBUILDER_ASSETS`` a real one. Nodes are objects, and a stub says that bound pods run.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import envtest
from bare_node import bare_node
from dra_kube import NAMESPACES, PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, Api, Object, connection
from node_stub import node_stub
from operator_process import OperatorProcess, operator_process
from waiting import until

from zoo.asking import request, spec
from zoo.fleet import publish
from zoo.gauges import Gauges, probing, visiting, watching_lease, weighing
from zoo.neighbour import CONTROL
from zoo.tenant import Beast, Tenant

NODES = 8
RESIDENTS = 1_500
"""Pods that run already, with labels that affinity may look for."""
NEIGHBOUR = "neighbour"
LABELS = {f"zone{number}.example.com/name": "same" for number in range(12)}
"""Of each node, as a cloud gives them: topologies that constraints may name."""
GATES = "DRAListTypeAttributes=true"
LEASE = ("dra-operator-dra-scheduler", "kube-system")
PATIENCE = 150.0


@dataclass
class Cage:
    """``seconds``: how long each beast is loose."""

    kubeconfig: Path
    api: Api
    operator: OperatorProcess
    port: int
    seconds: float
    scale: float
    folder: Path = field(default_factory=Path)
    _serial: itertools.count[int] = field(default_factory=itertools.count)

    async def loose(self, beast: Beast) -> Gauges:
        """What was measured while it was loose. Raises AssertionError when its pods do not say why they wait."""
        tenant = Tenant(self.api, f"tenant-{next(self._serial)}", self.scale)
        await tenant.moves_in()
        gauges = Gauges()
        async with AsyncExitStack() as stack:
            stack.enter_context(probing(self.port, gauges))
            await stack.enter_async_context(watching_lease(self.api, *LEASE, gauges))
            await stack.enter_async_context(weighing(self.operator.pid, gauges))
            await stack.enter_async_context(visiting(self.kubeconfig, NEIGHBOUR, gauges))
            end = time.monotonic() + self.seconds
            await beast.release(tenant)
            while (left := end - time.monotonic()) > 0:
                if beast.repeat is not None:
                    await beast.repeat(tenant)
                await asyncio.sleep(min(left, 0.1))
        try:
            await self._explained(beast, tenant)
        finally:
            await self._cleaned(tenant)
        return gauges

    async def another_operator(self, stack: AsyncExitStack) -> OperatorProcess:
        """Kill the operator and start the next one, which is ready when it has listed everything."""
        await self.operator.kill()
        self.operator = await stack.enter_async_context(_operator(self.kubeconfig, self.folder, self.port))
        await self.operator.becomes_ready()
        return self.operator

    async def _explained(self, beast: Beast, tenant: Tenant) -> None:
        """Each of its pods says what is true of it."""

        async def all_say_so() -> bool:
            pods, _ = await self.api.list(
                PODS, tenant.namespace, keep=lambda it: {"name": it["metadata"]["name"], "said": _said(it)}
            )
            silent = {pod["name"]: pod["said"] for pod in pods if not re.search(beast.says, pod["said"])}
            some = dict(itertools.islice(silent.items(), 3))
            assert not silent, f"{len(silent)} of {len(pods)} pods do not say {beast.says!r}, such as {some}"
            return True

        await until("all pods have a true condition", all_say_so, PATIENCE)

    async def _cleaned(self, tenant: Tenant) -> None:
        """Nothing of the tenant is left: what is still being deleted would be measured with the next one."""

        async def empty() -> bool:
            await tenant.moves_out()
            return not any([(await self.api.list_versions(it, tenant.namespace))[0] for it in (PODS, RESOURCE_CLAIMS)])

        await until("the tenant's pods and claims are gone", empty, PATIENCE)


def _said(pod: Object) -> str:
    if pod["spec"].get("nodeName"):
        return "bound"
    conditions = (pod.get("status") or {}).get("conditions") or []
    waiting = [entry for entry in conditions if entry["type"] == "PodScheduled"]
    return str(waiting[0].get("message", "")) if waiting else ""


@asynccontextmanager
async def cage(folder: Path, *, seconds: float, scale: float) -> AsyncIterator[Cage]:
    """With nodes, devices, placed pods and an operator that is ready."""
    async with AsyncExitStack() as stack:
        kubeconfig = await stack.enter_async_context(_api_server(folder))
        api = await stack.enter_async_context(Api(connection(kubeconfig), timeout=PATIENCE))
        await stack.enter_async_context(node_stub(api))
        await _furnish(api, stack, max(100, round(RESIDENTS * scale)))
        port = _free_port()
        operator = await stack.enter_async_context(_operator(kubeconfig, folder, port))
        await operator.becomes_ready()
        yield Cage(kubeconfig, api, operator, port, seconds, scale, folder)


def _operator(kubeconfig: Path, folder: Path, port: int) -> AbstractAsyncContextManager[OperatorProcess]:
    command = ["--metrics-host", "127.0.0.1", "--metrics-port", str(port), "--feature-gates", GATES]
    return operator_process(kubeconfig, folder / "operator.log", "operator", *command, checks=False)


async def _furnish(api: Api, stack: AsyncExitStack, placed: int) -> None:
    nodes = [f"node-{number}" for number in range(NODES)]
    for node in nodes:
        await stack.enter_async_context(bare_node(api, node, labels=LABELS | {"kubernetes.io/hostname": node}))
    await publish(api, nodes)
    for namespace in (NEIGHBOUR, CONTROL, "residents"):
        await api.create(NAMESPACES, {"metadata": {"name": namespace}})
    body = {"metadata": {"name": "one", "namespace": NEIGHBOUR}, "spec": {"spec": spec(request("req", kind="visitor"))}}
    await api.create(RESOURCE_CLAIM_TEMPLATES, body)
    for number in range(placed):
        labels = {"app": f"a{number % 10}", "name": f"r{number}"}
        pod = {"nodeName": nodes[number % NODES], "containers": [{"name": "main", "image": "none"}]}
        meta = {"name": f"resident-{number}", "namespace": "residents", "labels": labels}
        await api.create(PODS, {"metadata": meta, "spec": pod})


@asynccontextmanager
async def _api_server(folder: Path) -> AsyncIterator[Path]:
    binaries = envtest.assets()
    if binaries is not None:
        servers = folder / "servers"
        servers.mkdir()
        with envtest.real_api_server(binaries, servers, gates={"DRAListTypeAttributes": True}) as kubeconfig:
            yield kubeconfig
        return
    kubeconfig = folder / "kubeconfig"
    command = [sys.executable, "-m", "dra_devcluster.cli", "up", "--nodes", "0", "--kubeconfig", str(kubeconfig)]
    with (folder / "server.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(*command, "--feature-gates", GATES, stdout=log, stderr=log)
    try:

        async def written() -> bool:
            assert process.returncode is None, (folder / "server.log").read_text()
            return kubeconfig.exists()

        await until("the API server has written its kubeconfig", written)
        yield kubeconfig
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
