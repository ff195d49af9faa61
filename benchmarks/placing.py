"""How fast pods with devices are placed: the operator and the development cluster's API server, each its own process.

    python benchmarks/placing.py [--nodes N] [--pods N] [--json FILE]

Every pod has a claim of its own from a template, so each one needs a claim made and recorded, devices found, the claim
allocated and reserved, and a binding. First pods come one at a time on an idle cluster, then all the rest at once. The
seconds of processor time say more than those of the clock where the three processes share few cores.
(This file is not called ``operator.py``: it would hide the module of the standard library.)
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from dra_devcluster.apiserver import DevApiServer
from dra_kube import (
    DEVICE_CLASSES,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_SLICES,
    Api,
    connection,
)

DRIVER = "gpu.example.com"
SELECTOR = f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].model == "A"'
ALONE = 20  # pods that come one at a time
CREATORS = 16
DEADLINE = 600.0


@dataclass(frozen=True)
class Result:
    """One line of the table."""

    what: str
    value: float
    unit: str


def _serve(folder: str, pipe: Connection) -> None:
    async def main() -> None:
        async with DevApiServer() as server:
            pipe.send(str(server.write_kubeconfig(Path(folder) / "kubeconfig")))
            await asyncio.to_thread(pipe.recv)

    asyncio.run(main())


class Process:
    """A process whose processor time is watched."""

    def __init__(self, pid: int) -> None:
        self._stat = Path(f"/proc/{pid}/stat")

    def seconds(self) -> float:
        """Processor time so far."""
        fields = self._stat.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def furniture(nodes: int, devices: int) -> Iterable[tuple[Any, dict[str, Any]]]:
    """A class, a template, nodes, and a slice for each."""
    yield NAMESPACES, {"metadata": {"name": "bench"}}
    yield DEVICE_CLASSES, {"metadata": {"name": "gpu"}, "spec": {"selectors": [{"cel": {"expression": SELECTOR}}]}}
    exactly = {"deviceClassName": "gpu"}
    spec = {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}}
    yield RESOURCE_CLAIM_TEMPLATES, {"metadata": {"name": "gpu", "namespace": "bench"}, "spec": spec}
    for number in range(nodes):
        name = f"node-{number:04}"
        yield NODES, {"metadata": {"name": name}, "status": {"allocatable": {"cpu": "64", "pods": "110"}}}
        published = {
            "driver": DRIVER,
            "nodeName": name,
            "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": f"gpu-{each}", "attributes": {"model": {"string": "A"}}} for each in range(devices)],
        }
        yield RESOURCE_SLICES, {"metadata": {"name": f"{name}-gpu"}, "spec": published}


def pod(number: int) -> dict[str, Any]:
    """A pod that wants one device of its own."""
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "100m"}, "claims": [{"name": "g"}]}}
    spec = {
        "schedulerName": "dra-scheduler",
        "containers": [container],
        "resourceClaims": [{"name": "g", "resourceClaimTemplateName": "gpu"}],
    }
    return {"metadata": {"name": f"pod-{number:05}", "namespace": "bench"}, "spec": spec}


class Clock:
    """When each pod was created, and when it was seen on a node."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._created: dict[str, float] = {}
        self._bound: dict[str, asyncio.Event] = {}
        self.latency: dict[str, float] = {}

    async def create(self, number: int) -> None:
        """Create a pod; remembers the moment before."""
        body = pod(number)
        name = body["metadata"]["name"]
        self._bound[name] = asyncio.Event()
        self._created[name] = time.perf_counter()
        await self._api.create(PODS, body)

    async def bound(self, number: int) -> None:
        """Wait until the pod has a node."""
        await self._bound[f"pod-{number:05}"].wait()

    async def watch(self, version: str) -> None:
        """Take the times, until cancelled."""
        async for event in self._api.watch(PODS, resource_version=version):
            obj = event.object
            name = obj["metadata"]["name"]
            if obj["spec"].get("nodeName") and name not in self.latency:
                self.latency[name] = time.perf_counter() - self._created[name]
                self._bound[name].set()


@asynccontextmanager
async def operator(kubeconfig: str) -> AsyncIterator[int]:
    """The operator as its image runs it; its process id."""
    command = [str(Path(sys.executable).with_name("dra-operator")), "run", "--kubeconfig", kubeconfig]
    process = await asyncio.create_subprocess_exec(*command, stderr=subprocess.DEVNULL)
    try:
        yield process.pid
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def measure(kubeconfig: str, server: int, nodes: int, pods: int) -> list[Result]:
    """The whole course."""
    async with Api(connection(Path(kubeconfig))) as api:
        for resource, body in furniture(nodes, devices=max(1, -(-(pods + ALONE) // nodes))):
            await api.create(resource, body)
        clock = Clock(api)
        _, version = await api.list(PODS)
        async with operator(kubeconfig) as pid, asyncio.timeout(DEADLINE):
            watch = asyncio.create_task(clock.watch(version))
            try:
                await clock.create(0)  # this one waits for the operator to be there
                await clock.bound(0)
                return await _timed(clock, Process(pid), Process(server), pods)
            finally:
                watch.cancel()


async def _timed(clock: Clock, operator: Process, server: Process, pods: int) -> list[Result]:
    for number in range(1, ALONE):
        await clock.create(number)
        await clock.bound(number)
    alone = [seconds for name, seconds in clock.latency.items() if name != "pod-00000"]
    used, served, start = operator.seconds(), server.seconds(), time.perf_counter()
    numbers = iter(range(ALONE, ALONE + pods))

    async def creator() -> None:
        for number in numbers:
            await clock.create(number)

    await asyncio.gather(*(creator() for _ in range(CREATORS)))
    await asyncio.gather(*(clock.bound(number) for number in range(ALONE, ALONE + pods)))
    wall = time.perf_counter() - start
    together = sorted(list(clock.latency.values())[ALONE:])
    spent = operator.seconds() - used
    return [
        Result("one pod at a time: created to bound, median", statistics.median(alone) * 1e3, "ms"),
        Result("one pod at a time: slowest", max(alone) * 1e3, "ms"),
        Result(f"{pods} pods at once: bound per second", pods / wall, "pods/s"),
        Result(f"{pods} pods at once: created to bound, median", statistics.median(together) * 1e3, "ms"),
        Result(f"{pods} pods at once: 99 of 100 within", together[int(len(together) * 0.99) - 1] * 1e3, "ms"),
        Result("operator: processor time per pod", spent / pods * 1e3, "ms"),
        Result("operator: pods per second with a core of its own", pods / spent, "pods/s"),
        Result("API server: processor time per pod", (server.seconds() - served) / pods * 1e3, "ms"),
    ]


def main() -> int:
    """Measures, prints a table, and writes JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--pods", type=int, default=300)
    parser.add_argument("--json", metavar="FILE", help="write the results there, too")
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        here, there = context.Pipe()
        server = context.Process(target=_serve, args=(folder, there), daemon=True)
        server.start()
        results = asyncio.run(measure(here.recv(), server.pid or 0, options.nodes, options.pods))
        here.send("stop")
        server.join()
    print(f"| {options.nodes} nodes | |\n|---|---|")
    for result in results:
        print(f"| {result.what} | {result.value:,.1f} {result.unit} |")
    if options.json:
        Path(options.json).write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
