"""What is measured while a beast is loose: probes, the Lease, memory, and how long a neighbour's pods wait."""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import math
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from dra_kube import LEASES, Api, Object, Unreachable

from zoo.neighbour import CONTROL, READY

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


def peak_memory(process: int) -> int:
    """The largest resident size that a process had so far, in bytes."""
    return _status(process, "VmHWM")


def _resident(process: int) -> int:
    return _status(process, "VmRSS")


def _status(process: int, name: str) -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) * 1024


@asynccontextmanager
async def visiting(kubeconfig: Path, namespace: str, gauges: Gauges) -> AsyncIterator[None]:
    """A pod a second meanwhile, by a process of its own (``zoo.neighbour``): this one is busy with the beast."""
    command = [sys.executable, "-m", "zoo.neighbour", str(kubeconfig), namespace, CONTROL]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, env=env, stdin=pipe, stdout=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert await process.stdout.readline() == READY
        yield
        process.stdin.close()
        gauges.waits, gauges.server = json.loads(await process.stdout.read())
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
        await process.wait()


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
