"""How much the development cluster's API server bears: requests per second, lists, watches, over TLS on loopback.

The server runs in a process of its own, as the clients do. On a busy machine the second figure says more: what the
server would do with a core of its own, reckoned from the processor time that it used.

    python benchmarks/apiserver.py [--json] [--objects N]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import resource
import ssl
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import aiohttp
from dra_devcluster.apiserver import DevApiServer

CLIENTS = 16
DEVICES = 128
WATCHERS = 100


@dataclass(frozen=True)
class Result:
    """One line of the table."""

    what: str
    value: float
    unit: str
    per_core: float | None = None


def _serve(pipe: Connection) -> None:
    async def main() -> None:
        began = time.perf_counter()
        async with DevApiServer() as server:
            pipe.send((server.url, server.ca.decode(), server.token, time.perf_counter() - began))
            await asyncio.to_thread(pipe.recv)
            pipe.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)

    asyncio.run(main())


def pod(index: int) -> dict[str, Any]:
    """A pod as an operator's users write them."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"pod-{index:05}", "labels": {"app": f"app-{index % 50}"}},
        "spec": {
            "schedulerName": "dra-scheduler",
            "containers": [{"name": "main", "image": "example.com/app:1", "resources": {"claims": [{"name": "gpu"}]}}],
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}],
        },
    }


def resource_slice(index: int) -> dict[str, Any]:
    """A slice with as many devices as one can have."""
    devices = [
        {
            "name": f"gpu-{number}",
            "attributes": {
                "uuid": {"string": f"gpu-{index:05}-{number:03}"},
                "model": {"string": "example-1000"},
                "driverVersion": {"version": "1.2.3"},
            },
            "capacity": {"memory": {"value": "80Gi"}},
        }
        for number in range(DEVICES)
    ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"slice-{index:05}"},
        "spec": {
            "driver": "gpu.example.com",
            "nodeName": f"node-{index:05}",
            "pool": {"name": f"node-{index:05}", "generation": 1, "resourceSliceCount": 1},
            "devices": devices,
        },
    }


class Client:
    """A bare HTTP client: the server is measured, not the client."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self._url = session, url

    async def call(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> bytes:
        data = None if body is None else json.dumps(body)
        async with self._session.request(method, self._url + path, data=data, headers={"Content-Type": kind}) as answer:
            content = await answer.read()
            if answer.status >= 300:
                raise RuntimeError(f"{method} {path}: {answer.status} {content[:300]!r}")
            return content

    async def many(self, count: int, one: Callable[[int], Awaitable[Any]]) -> None:
        """``count`` calls made by all clients together."""
        numbers = iter(range(count))

        async def work() -> None:
            for number in numbers:
                await one(number)

        await asyncio.gather(*(work() for _ in range(CLIENTS)))

    async def watch(self, path: str, events: int, ready: asyncio.Event) -> None:
        """Read a watch until that many events have come."""
        async with self._session.get(self._url + path) as answer:
            ready.set()
            seen = 0
            async for chunk in answer.content.iter_any():
                seen += chunk.count(b"\n")
                if seen >= events:
                    return


PODS = "/api/v1/namespaces/default/pods"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
MERGE = "application/merge-patch+json"


class Bench:
    """Takes the time, of the clock and of the server's processor, and keeps the results."""

    def __init__(self, pid: int) -> None:
        self.results: list[Result] = []
        self._pid = pid

    async def rate(self, what: str, count: int, work: Awaitable[Any]) -> None:
        """How many of ``count`` things per second."""
        began, used = time.perf_counter(), self._cpu()
        await work
        spent = self._cpu() - used
        per_core = round(count / spent, 1) if spent else None
        self.results.append(Result(what, round(count / (time.perf_counter() - began), 1), "/s", per_core))

    async def duration(self, what: str, work: Awaitable[bytes]) -> None:
        """How long one answer takes, and how large it is."""
        began = time.perf_counter()
        size = len(await work) / 2**20
        self.results.append(Result(f"{what}, {size:.0f} MiB", round(1000 * (time.perf_counter() - began), 1), "ms"))

    def _cpu(self) -> float:
        """Processor seconds that the server has used; 0 where there is no /proc."""
        try:
            fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(client: Client, bench: Bench, objects: int) -> None:
    """All measurements, in an order in which each finds what it needs."""

    def get(number: int) -> Awaitable[bytes]:
        return client.call("GET", f"{PODS}/pod-{number:05}")

    def patch(number: int) -> Awaitable[bytes]:
        body = {"status": {"phase": "Running", "podIP": "10.0.0.1"}}
        return client.call("PATCH", f"{PODS}/pod-{number:05}/status", body, MERGE)

    def select(number: int) -> Awaitable[bytes]:
        return client.call("GET", f"{PODS}?labelSelector=app%3Dapp-{number}")

    pods = client.many(objects, lambda n: client.call("POST", PODS, pod(n)))
    await bench.rate("POST pod", objects, pods)
    await bench.rate("GET pod", objects, client.many(objects, get))
    await bench.rate("PATCH pod status", objects, client.many(objects, patch))
    await bench.rate("LIST pods of one app (label selector)", 50, client.many(50, select))
    await bench.duration(f"LIST all {objects} pods", client.call("GET", PODS))
    slices = client.many(objects, lambda n: client.call("POST", SLICES, resource_slice(n)))
    await bench.rate(f"POST slice of {DEVICES} devices", objects, slices)
    await bench.duration(f"LIST all {objects} slices", client.call("GET", SLICES))
    await bench.rate("GET pod beside all that", objects, client.many(objects, get))
    changes = min(objects, 500)
    await bench.rate(f"events to {WATCHERS} watchers", changes * WATCHERS, fan_out(client, changes))


async def fan_out(client: Client, changes: int) -> None:
    """Label so many pods, and wait until all watchers have seen it."""
    revision = json.loads(await client.call("GET", f"{PODS}?limit=1"))["metadata"]["resourceVersion"]
    ready = [asyncio.Event() for _ in range(WATCHERS)]
    path = f"{PODS}?watch=1&resourceVersion={revision}"
    watches = [asyncio.create_task(client.watch(path, changes, event)) for event in ready]
    await asyncio.gather(*(event.wait() for event in ready))

    def label(number: int) -> Awaitable[bytes]:
        return client.call("PATCH", f"{PODS}/pod-{number:05}", {"metadata": {"labels": {"round": "2"}}}, MERGE)

    await client.many(changes, label)
    await asyncio.gather(*watches)


async def _client(url: str, ca: str, token: str, bench: Bench, objects: int) -> None:
    connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cadata=ca), limit=0)
    headers = {"Authorization": f"Bearer {token}", "User-Agent": "benchmark/1"}
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout) as session:
        await measure(Client(session, url), bench, objects)


def main() -> int:
    """Run the benchmark and print its results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", type=int, default=2000, help="pods, and slices, to hold (default 2000)")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    arguments = parser.parse_args()
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=_serve, args=(there,), daemon=True)
    server.start()
    url, ca, token, started = here.recv()
    bench = Bench(server.pid or 0)
    results = bench.results
    results.append(Result("start of the server", round(started * 1000, 1), "ms"))
    asyncio.run(_client(url, ca, token, bench, arguments.objects))
    here.send("stop")
    results.append(Result("memory of the server", round(here.recv(), 1), "MiB"))
    server.join()
    if arguments.json:
        print(json.dumps([asdict(result) for result in results], indent=2))
    else:
        for result in results:
            core = f"   {result.per_core:12,.1f} /s per core" if result.per_core else ""
            print(f"{result.what:40} {result.value:12,.1f} {result.unit:4}{core}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
