"""What is measured while a beast is loose: probes, the Lease, memory, and how long a neighbour's pods wait."""

from __future__ import annotations

import asyncio
import http.client
import itertools
import math
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from dra_kube import LEASES, PODS, Api, Gone, NotFound, Object, Unreachable
from waiting import NotObserved, becomes

_visitors = itertools.count()
EVERY = 0.2
"""Seconds between two probes; a kubelet waits 5 and 10."""


@dataclass
class Gauges:
    """Seconds, except where it says bytes. ``waits`` has one entry for each pod of the neighbour that got a node."""

    probes: list[float] = field(default_factory=list)
    bad_probes: list[str] = field(default_factory=list)
    renewals: list[float] = field(default_factory=list)
    holders: set[str] = field(default_factory=set)
    waits: list[float] = field(default_factory=list)
    memory: int = 0

    @property
    def slowest_probe(self) -> float:
        return max(self.probes, default=math.inf)

    @property
    def longest_silence(self) -> float:
        """The longest time between two renewals of the Lease."""
        return max((later - earlier for earlier, later in itertools.pairwise(self.renewals)), default=math.inf)

    def wait(self, part: float) -> float:
        """What this part of the neighbour's pods did not wait longer than."""
        if not self.waits:
            return math.inf
        return sorted(self.waits)[max(0, math.ceil(part * len(self.waits)) - 1)]

    def line(self, name: str) -> str:
        """A row of the table in docs/reliability.md."""
        seconds = (self.slowest_probe, self.longest_silence, self.wait(0.5), self.wait(0.99))
        cells = [name, *(f"{value:.2f}" for value in seconds), f"{self.memory / 2**20:.0f}"]
        return f"| {' | '.join(cells)} |"


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

    async with _meanwhile(look()):
        yield
    note(await api.get(LEASES, name, namespace))


@asynccontextmanager
async def weighing(process: int, gauges: Gauges) -> AsyncIterator[None]:
    """The largest resident size of a process, in bytes."""

    async def look() -> None:
        while True:
            gauges.memory = max(gauges.memory, _resident(process))
            await asyncio.sleep(0.3)

    async with _meanwhile(look()):
        yield


def _resident(process: int) -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) * 1024


@asynccontextmanager
async def visiting(api: Api, namespace: str, template: str, gauges: Gauges) -> AsyncIterator[None]:
    """A pod a second meanwhile; each goes when it has its node. What has none a minute after the end never got one.

    Its wait begins when the API server has it: how long a server takes that is busy with megabytes of others is not
    the operator's doing.
    """
    begun: dict[str, float] = {}

    async def come() -> None:
        while True:
            name = f"visitor-{next(_visitors)}"
            begun[name] = time.monotonic()
            try:
                await api.create(PODS, _visitor(name, namespace, template))
            except asyncio.CancelledError:
                begun.pop(name, None)  # the end came before the answer: it is not known whether there is such a pod
                raise
            if name in begun:  # it may have its node before the answer comes
                begun[name] = time.monotonic()
            await asyncio.sleep(1.0)

    async def go() -> None:
        while True:
            with suppress(Unreachable, Gone):
                pods, revision = await api.list(PODS, namespace)
                for pod in pods:
                    await _note(pod, begun, gauges, api)
                async for event in api.watch(PODS, namespace, resource_version=revision):
                    if event.type == "BOOKMARK":
                        continue
                    await _note(event.object, begun, gauges, api)

    async with _meanwhile(go()):
        async with _meanwhile(come()):
            yield
        with suppress(NotObserved):
            await becomes(lambda: not begun)
        gauges.waits += [math.inf] * len(begun)
    await api.delete_collection(PODS, namespace)


async def _note(pod: Object, begun: dict[str, float], gauges: Gauges, api: Api) -> None:
    name = pod["metadata"]["name"]
    if pod["spec"].get("nodeName") and name in begun:
        gauges.waits.append(time.monotonic() - begun.pop(name))
        with suppress(NotFound):
            await api.delete(PODS, name, pod["metadata"]["namespace"], grace_seconds=0)


def _visitor(name: str, namespace: str, template: str) -> Object:
    entry = {"name": "device", "resourceClaimTemplateName": template}
    container = {"name": "main", "image": "none", "resources": {"claims": [{"name": "device"}]}}
    spec = {"schedulerName": "dra-scheduler", "containers": [container], "resourceClaims": [entry]}
    return {"metadata": {"name": name, "namespace": namespace}, "spec": spec}


@asynccontextmanager
async def _meanwhile(work: object) -> AsyncIterator[None]:
    task = asyncio.ensure_future(work)  # type: ignore[call-overload]
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait((task,))
        if not task.cancelled():
            task.result()
