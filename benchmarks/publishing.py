"""How fast slices are published, how few a small change writes, and what a restart of a thousand nodes does.

The Go library (k8s.io/dynamic-resource-allocation/resourceslice, v0.36) writes all 79 slices of 10,000 devices when the
first device is gone, since each device behind it moves up by one place.

The API server of the development cluster runs in a process of its own, all nodes in this one. Their publishers are
those of the plugin library, with its usual rate limit. Lost slices end the benchmark with exit code 1.

    python benchmarks/publishing.py [--nodes N] [--kubeconfig FILE] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from dra_api.resource import Device, DeviceTaint
from dra_devcluster.apiserver import DevApiServer
from dra_kube import NODES, RESOURCE_SLICES, Api, connection
from dra_kubeletplugin import Owner, Pool, Recoverable, SlicePublisher, device
from msgspec import structs

DRIVER = "gpu.example.com"
DEVICES = 8


@dataclass
class Result:
    """One line of the table: how long it took, and how many slices were written for how many that changed."""

    what: str
    seconds: float = 0.0
    writes: int = 0
    slices: int = 0
    failures: int = 0


class Failures:
    """Counts requests that failed and were repeated: on a busy machine a server does not answer everyone in time."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, error: Recoverable, message: str) -> None:
        """One more."""
        self.count += 1


FAILURES = Failures()


@dataclass
class Node:
    """One node's publisher, and what it wrote before its last restart."""

    name: str
    publisher: SlicePublisher
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    @property
    def writes(self) -> int:
        """Slices written since the last start."""
        statistics = self.publisher.statistics
        return statistics.creates + statistics.updates + statistics.deletes


def _serve(pipe: Connection) -> None:
    async def main() -> None:
        async with DevApiServer() as server:
            with tempfile.TemporaryDirectory() as folder:
                pipe.send(server.write_kubeconfig(Path(folder) / "kubeconfig").read_text())
            await asyncio.to_thread(pipe.recv)

    asyncio.run(main())


@contextmanager
def api_server(folder: Path) -> Iterator[Path]:
    """A server; yields the path of its kubeconfig file."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    path = folder / "kubeconfig"
    path.write_text(ours.recv())
    try:
        yield path
    finally:
        ours.send(None)
        process.join()


async def new_node(api: Api, name: str) -> str:
    """Make a node; returns its uid."""
    node = await api.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    uid: str = node["metadata"]["uid"]
    return uid


async def start(api: Api, uids: dict[str, str]) -> list[Node]:
    """Start the publishers of these nodes, which publish one slice each."""
    nodes = []
    for name, uid in uids.items():
        owner = Owner.node(name, uid)
        nodes.append(Node(name, SlicePublisher(api, DRIVER, owner=owner, on_error=FAILURES.add)))
    for node in nodes:
        await node.stack.enter_async_context(node.publisher)
        devices = [device(f"gpu-{number}", attributes={"index": number}) for number in range(DEVICES)]
        node.publisher.publish({node.name: Pool.of(devices)})
    return nodes


async def stop(nodes: list[Node]) -> None:
    """Stop them as a process that ends."""
    await asyncio.gather(*(node.stack.aclose() for node in nodes))


async def complete(api: Api, count: int) -> None:
    """Wait until there are so many slices."""
    async with asyncio.timeout(200):
        while len((await api.list_versions(RESOURCE_SLICES))[0]) != count:  # noqa: ASYNC110  # in another process
            await asyncio.sleep(0.25)


async def one_large_pool(api: Api, devices: int) -> Result:
    """Publish a pool of so many devices."""
    await new_node(api, "large")
    pool = Pool.of([device(f"gpu-{number}", attributes={"index": number, "model": "A"}) for number in range(devices)])
    async with SlicePublisher(api, DRIVER, owner=Owner.node("large")) as publisher:
        began = time.perf_counter()
        publisher.publish({"large": pool})
        await publisher.settled()
        seconds = time.perf_counter() - began
        writes = publisher.statistics.creates
        publisher.publish({})
        await publisher.settled()
    return Result(f"{devices:,} devices of one node are published", seconds, writes, len(pool.slices))


async def small_changes(api: Api) -> list[Result]:
    """Change little of 10,000 devices in 79 slices, one after the other, and publish them again."""
    await new_node(api, "wide")
    devices = [device(f"gpu-{number}", attributes={"index": number, "model": "A"}) for number in range(10_000)]
    taint = (DeviceTaint(key="example.com/broken", effect="NoSchedule"),)
    changes: list[tuple[str, Callable[[list[Device]], list[Device]]]] = [
        ("10,000 devices are published", lambda now: now),
        ("one attribute of them changes", lambda now: [*now[:-1], device("gpu-9999", attributes={"index": 1})]),
        ("the first device is gone", lambda now: now[1:]),
        ("one device is tainted", lambda now: [structs.replace(now[0], taints=taint), *now[1:]]),
        ("another one is tainted", lambda now: [now[0], structs.replace(now[1], taints=taint), *now[2:]]),
        ("the taints are removed", lambda now: [structs.replace(one, taints=None) for one in now]),
        ("the driver restarts and publishes all", lambda now: now),
    ]
    results = []
    for what, change in changes:
        devices = change(devices)
        async with SlicePublisher(api, DRIVER, owner=Owner.node("wide")) as publisher:  # each in a new process
            began = time.perf_counter()
            publisher.publish({"wide": Pool.of(devices)})
            await publisher.settled()
            statistics = publisher.statistics
            writes = statistics.creates + statistics.updates + statistics.deletes
            results.append(result(what, began, writes, 0))
    await api.delete(NODES, "wide")
    await api.delete_collection(RESOURCE_SLICES)
    return results


async def many_nodes(api: Api, count: int) -> list[Result]:
    """Start, restart, restart of kubelets, and slices that vanish without a word, on all nodes at once."""
    names = [f"node-{number:04}" for number in range(count)]
    uids = {name: await new_node(api, name) for name in names}
    results = []

    began = time.perf_counter()
    nodes = await start(api, uids)
    await complete(api, count)
    results.append(result(f"{count:,} nodes start at once", began, written(nodes), count))

    await stop(nodes)
    began = time.perf_counter()
    nodes = await start(api, uids)
    await asyncio.gather(*(node.publisher.settled() for node in nodes))
    results.append(result(f"{count:,} drivers restart at once", began, written(nodes), 0))
    await complete(api, count)

    began = time.perf_counter()
    await api.delete_collection(RESOURCE_SLICES)  # what kubelets that start do
    for node in nodes:
        node.publisher.restore_soon()  # what follows from their registration
    await complete(api, count)
    results.append(result(f"{count:,} kubelets restart at once", began, written(nodes), count))
    before = written(nodes)

    await asyncio.sleep(61)  # after which a slice that another client deletes is restored after 30 s
    await api.delete_collection(RESOURCE_SLICES)
    began = time.perf_counter()
    await complete(api, count)
    results.append(result(f"all slices of {count:,} nodes are deleted", began, written(nodes) - before, count))
    await stop(nodes)
    return results


def result(what: str, began: float, writes: int, slices: int) -> Result:
    """A line of the table that ends now."""
    failures, FAILURES.count = FAILURES.count, 0
    return Result(what, time.perf_counter() - began, writes, slices, failures)


def written(nodes: list[Node]) -> int:
    """Slices written by all."""
    return sum(node.writes for node in nodes)


async def measure(kubeconfig: Path, nodes: int) -> list[Result]:
    """All lines of the table."""
    async with Api(connection(kubeconfig)) as api:
        large = [await one_large_pool(api, 1_000), await one_large_pool_again(api)]
        return [*large, *await small_changes(api), *await many_nodes(api, nodes)]


async def one_large_pool_again(api: Api) -> Result:
    """A pool of a hundred slices, the most that is sent at once."""
    await api.delete(NODES, "large")
    return await one_large_pool(api, 12_800)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1_000, help="nodes that restart at once (1000)")
    parser.add_argument("--kubeconfig", type=Path, metavar="FILE", help="another API server, which should be empty")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        kubeconfig = options.kubeconfig or stack.enter_context(api_server(Path(folder)))
        try:
            results = asyncio.run(measure(kubeconfig, options.nodes))
        except TimeoutError:
            sys.exit("slices were lost: not all were there after 200 s")
    if options.json:
        print(json.dumps([asdict(result) for result in results], indent=2))
        return
    for line in results:
        per_slice = f"{line.writes / line.slices:.2f}" if line.slices else "-"
        figures = f"{line.seconds:7.2f} s {line.writes:7,} writes {per_slice:>6} per changed slice"
        print(f"{line.what:45} {figures} {line.failures:5,} failed")


if __name__ == "__main__":
    main()
