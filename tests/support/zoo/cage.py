"""What is measured while a beast is loose: probes, the Lease, memory, and how long a neighbour's pods wait."""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import math
import os
import re
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import envtest
from command import OperatorProcess, operator_process
from dra_kube import (
    LEASES,
    NAMESPACES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    Api,
    Object,
    Unreachable,
    connection,
)
from kueue_model import install_kueue
from proving_ground import bare_node, node_stub
from waiting import meanwhile, until
from zoo.asking import Beast, Tenant, request, spec
from zoo.neighbour import CONTROL, READY, publish

EVERY = 0.2
"""Seconds between two probes; a kubelet waits 5 and 10."""


@dataclass
class Gauges:
    """Seconds, except where it says bytes.

    ``waits`` has one entry for each pod of the neighbour that got a node; ``server`` has the same of pods that were
    placed at once: so long the API server lets them wait.
    """

    probes: list[float] = field(default_factory=list)
    bad_probes: list[str] = field(default_factory=list)
    renewals: list[float] = field(default_factory=list)
    holders: set[str] = field(default_factory=set)
    waits: list[float] = field(default_factory=list)
    server: list[float] = field(default_factory=list)
    memory: int = 0

    @property
    def slowest_probe(self) -> float:
        return max(self.probes, default=math.inf)

    @property
    def longest_silence(self) -> float:
        """The longest time between two renewals of the Lease."""
        return max((later - earlier for earlier, later in itertools.pairwise(self.renewals)), default=math.inf)

    @property
    def delay(self) -> float:
        """How much longer the neighbour's pods waited at p99 than the API server lets pods wait."""
        return quantile(self.waits, 0.99) - quantile(self.server, 0.99)

    def line(self, name: str) -> str:
        """A row of the table in docs/reliability.md."""
        waits = (quantile(self.waits, 0.5), quantile(self.waits, 0.99), quantile(self.server, 0.99))
        seconds = (self.slowest_probe, self.longest_silence, *waits)
        cells = [name, *(f"{value:.2f}" for value in seconds), f"{self.memory / 2**20:.0f}"]
        return f"| {' | '.join(cells)} |"


def quantile(waits: list[float], part: float) -> float:
    """What this part of the pods did not wait longer than; infinite if there are none."""
    if not waits:
        return math.inf
    return sorted(waits)[max(0, math.ceil(part * len(waits)) - 1)]


@contextmanager
def probing(port: int, gauges: Gauges) -> Iterator[None]:
    """``/livez`` and ``/readyz`` are asked meanwhile, from a thread: this process is busy as well."""
    over = threading.Event()
    thread = threading.Thread(target=_probe, args=(port, gauges, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(15)


def _probe(port: int, gauges: Gauges, over: threading.Event) -> None:
    for path in itertools.cycle(("/livez", "/readyz")):
        if over.wait(EVERY):
            return
        begun = time.monotonic()
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            connection.request("GET", path)
            answer = connection.getresponse()
            text = answer.read().decode()
            connection.close()
            if answer.status != 200:
                gauges.bad_probes.append(f"{path}: {answer.status} {text[:500]}")
        except OSError as error:
            gauges.bad_probes.append(f"{path}: {error!r} after {time.monotonic() - begun:.1f} s")
        gauges.probes.append(time.monotonic() - begun)


@asynccontextmanager
async def watching_lease(api: Api, name: str, namespace: str, gauges: Gauges) -> AsyncIterator[None]:
    """Each renewal is noted meanwhile, by the time in the Lease."""

    def note(lease: Object) -> None:
        when = datetime.fromisoformat(lease["spec"]["renewTime"]).timestamp()
        if not gauges.renewals or when > gauges.renewals[-1]:
            gauges.renewals.append(when)
        gauges.holders.add(lease["spec"].get("holderIdentity", ""))

    async def look() -> None:
        while True:
            with suppress(Unreachable):
                note(await api.get(LEASES, name, namespace))
            await asyncio.sleep(0.3)

    async with meanwhile(look()):
        yield
    note(await api.get(LEASES, name, namespace))


@asynccontextmanager
async def weighing(process: int, gauges: Gauges) -> AsyncIterator[None]:
    async def look() -> None:
        while True:
            gauges.memory = max(gauges.memory, _resident(process))
            await asyncio.sleep(0.3)

    async with meanwhile(look()):
        yield


def peak_memory(process: int) -> int:
    """The largest resident size that a process had so far, in bytes."""
    return _status(process, "VmHWM")


def _resident(process: int) -> int:
    return _status(process, "VmRSS")


def _status(process: int, name: str) -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) * 1024


class Visitors:
    """A pod a second in rounds, by a process of its own (``zoo.neighbour``): this one is busy with the beast.

    The process serves all rounds of a cage: its start takes as much of a processor as a round.
    """

    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        self._command = [sys.executable, "-m", "zoo.neighbour", str(kubeconfig), namespace, CONTROL]
        self._process: asyncio.subprocess.Process | None = None

    @asynccontextmanager
    async def visiting(self, gauges: Gauges) -> AsyncIterator[None]:
        """Pods come meanwhile."""
        process = self._process
        if process is None:
            pipe = asyncio.subprocess.PIPE
            process = await asyncio.create_subprocess_exec(
                *self._command, env=_environment(), stdin=pipe, stdout=pipe, limit=2**20
            )
        self._process = None  # unless the round goes well
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(b"\n")
            assert await process.stdout.readline() == READY
            yield
            process.stdin.write(b"\n")
            gauges.waits, gauges.server = json.loads(await process.stdout.readline())
            self._process = process
        finally:
            if self._process is None:
                await _killed(process)

    async def end(self) -> None:
        """No more rounds."""
        if self._process is not None:
            await _killed(self._process)


async def _killed(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
    await process.wait()


def _environment() -> dict[str, str]:
    """The environment of a process that runs a module of the zoo."""
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}


# --- cage ---

NODES = 8
RESIDENTS = 1_500
"""Pods that run already, with labels that affinity may look for."""
NEIGHBOUR = "neighbour"
LABELS = {f"zone{number}.example.com/name": "same" for number in range(12)}
"""Of each node, as a cloud gives them: topologies that constraints may name."""
GATES = "DRAListTypeAttributes=true"
ALWAYS_SERVED = ("DRADeviceTaintRules", "DRAResourcePoolStatus")
"""Gates whose kinds the development server serves in any case."""
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
    visitors: Visitors
    folder: Path = field(default_factory=Path)
    gates: str = GATES
    controllers: str = "auto"
    _serial: itertools.count[int] = field(default_factory=itertools.count)

    async def loose(self, beast: Beast, namespace: str = "") -> Gauges:
        """What was measured while it was loose. Raises AssertionError when its pods do not say why they wait."""
        tenant = Tenant(self.api, namespace or f"tenant-{next(self._serial)}", self.scale)
        await tenant.moves_in()
        gauges = Gauges()
        async with AsyncExitStack() as stack:
            stack.enter_context(probing(self.port, gauges))
            await stack.enter_async_context(watching_lease(self.api, *LEASE, gauges))
            await stack.enter_async_context(weighing(self.operator.pid, gauges))
            await stack.enter_async_context(self.visitors.visiting(gauges))
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
        settings = self.gates, self.controllers
        self.operator = await stack.enter_async_context(_operator(self.kubeconfig, self.folder, self.port, *settings))
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
async def cage(
    folder: Path,
    *,
    seconds: float,
    scale: float,
    server: Sequence[str] = (),
    gates: str = GATES,
    controllers: str = "auto",
) -> AsyncIterator[Cage]:
    """With nodes, devices, placed pods and an operator that is ready; ``server``: the command of an API server.

    With the controller ``admission`` the kinds of Kueue are there, without Kueue.
    """
    async with AsyncExitStack() as stack:
        kubeconfig = await stack.enter_async_context(_running(folder, server) if server else _api_server(folder, gates))
        api = await stack.enter_async_context(Api(connection(kubeconfig), timeout=PATIENCE))
        await stack.enter_async_context(node_stub(api))
        if "admission" in controllers:
            await install_kueue(api)
        await _furnish(api, stack, max(100, round(RESIDENTS * scale)))
        (port,) = envtest.free_ports(1)
        operator = await stack.enter_async_context(_operator(kubeconfig, folder, port, gates, controllers))
        await operator.becomes_ready()
        visitors = Visitors(kubeconfig, NEIGHBOUR)
        stack.push_async_callback(visitors.end)
        yield Cage(kubeconfig, api, operator, port, seconds, scale, visitors, folder, gates, controllers)


def _operator(
    kubeconfig: Path, folder: Path, port: int, gates: str, controllers: str
) -> AbstractAsyncContextManager[OperatorProcess]:
    command = ["--metrics-host", "127.0.0.1", "--metrics-port", str(port), "--feature-gates", gates]
    command += ["--controllers", controllers]
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
async def _api_server(folder: Path, gates: str) -> AsyncIterator[Path]:
    binaries = envtest.assets()
    if binaries is not None:
        servers = folder / "servers"
        servers.mkdir()
        with envtest.real_api_server(binaries, servers, gates=_switches(gates)) as kubeconfig:
            yield kubeconfig
        return
    known = ",".join(pair for pair in gates.split(",") if pair.partition("=")[0] not in ALWAYS_SERVED)
    command = [sys.executable, "-m", "dra_devcluster.cli", "up", "--nodes", "0", "--feature-gates", known]
    async with _running(folder, [*command, "--kubeconfig"]) as kubeconfig:
        yield kubeconfig


def _switches(gates: str) -> dict[str, bool]:
    return {name: value == "true" for name, value in (pair.split("=") for pair in gates.split(","))}


@asynccontextmanager
async def _running(folder: Path, command: Sequence[str]) -> AsyncIterator[Path]:
    """A server whose command ends with the path of the kubeconfig that it writes."""
    kubeconfig = folder / "kubeconfig"
    with (folder / "server.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *command, str(kubeconfig), env=_environment(), stdout=log, stderr=log
        )
    try:

        async def written() -> bool:
            assert process.returncode is None, (folder / "server.log").read_text()
            return kubeconfig.exists()

        await until("the API server has written its kubeconfig", written, PATIENCE)
        yield kubeconfig
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.wait()
