"""How fast pods leave tainted devices: the operator on a development cluster, each its own process.

    python benchmarks/evicting.py [--pods N] [--json FILE]

The pods run already, each with a claim and a device of its own. First drivers taint the devices of all of them in their
slices, then, with fresh pods, one DeviceTaintRule does. Time runs from the taint to the last pod that is being deleted.
Each pod costs three requests: it is read, marked with a condition, and deleted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dra_kube import (
    DEVICE_TAINT_RULES,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Api,
    Object,
    connection,
)

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

from throughput_load import CREATORS, DEADLINE, DRIVER, NAMESPACE
from throughput_sides import Side, development_cluster

DEVICES = 64  # of a slice; the most that may be tainted
TAINT = {"key": "example.com/broken", "effect": "NoExecute"}


def slice_of(node: str, devices: int, **more: Any) -> Object:
    """What the driver publishes for a node."""
    spec = {
        "driver": DRIVER,
        "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": f"gpu-{number}", **more} for number in range(devices)],
    }
    return {"metadata": {"name": f"{node}-gpu"}, "spec": spec}


async def add_pod(api: Api, name: str, node: str, device: int) -> None:
    """A pod on a node, and the claim with its device."""
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]
    meta = {"name": name, "namespace": NAMESPACE, "finalizers": ["resource.kubernetes.io/delete-protection"]}
    claim = await api.create(RESOURCE_CLAIMS, {"metadata": meta, "spec": {"devices": {"requests": requests}}})
    container = {"name": "main", "image": "none", "resources": {"claims": [{"name": "g"}]}}
    entries = [{"name": "g", "resourceClaimName": name}]
    spec = {"nodeName": node, "containers": [container], "resourceClaims": entries}
    pod = await api.create(PODS, {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec})
    result = {"request": "gpu", "driver": DRIVER, "pool": node, "device": f"gpu-{device}"}
    reserved = {"resource": "pods", "name": name, "uid": pod["metadata"]["uid"]}
    claim["status"] = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [reserved]}
    await api.update(RESOURCE_CLAIMS, claim, "status")


async def furnish(api: Api, prefix: str, pods: int) -> list[str]:
    """Nodes with slices, and pods on all devices; the names of the nodes."""
    nodes = [f"{prefix}-{number:03}" for number in range(-(-pods // DEVICES))]
    for node in nodes:
        await api.create(NODES, {"metadata": {"name": node}, "status": {"allocatable": {"cpu": "64", "pods": "110"}}})
        await api.create(RESOURCE_SLICES, slice_of(node, DEVICES))
    numbers = iter(range(pods))

    async def creator() -> None:
        for number in numbers:
            await add_pod(api, f"{prefix}-{number:05}", nodes[number // DEVICES], number % DEVICES)

    await asyncio.gather(*(creator() for _ in range(CREATORS)))
    return nodes


async def evicted(api: Api, prefix: str, pods: int, taint: Callable[[], Awaitable[None]]) -> float:
    """Seconds from the taint until the last pod is being deleted."""
    _, version = await api.list(PODS)
    gone: set[str] = set()
    start = time.perf_counter()
    await taint()
    async for event in api.watch(PODS, resource_version=version):
        meta = event.object["metadata"]
        if meta.get("deletionTimestamp") and meta["name"].startswith(prefix):
            gone.add(meta["name"])
            if len(gone) == pods:
                break
    return time.perf_counter() - start


async def heard(api: Api, name: str) -> None:
    """Wait until the operator places a pod that it can only know from its watch."""
    spec = {"schedulerName": "dra-scheduler", "containers": [{"name": "main", "image": "none"}]}
    await api.create(PODS, {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec})
    _, version = await api.list(PODS)
    while not (await api.get(PODS, name, NAMESPACE))["spec"].get("nodeName"):
        async for event in api.watch(PODS, resource_version=version, fieldSelector=f"metadata.name={name}"):
            if event.object["spec"].get("nodeName"):
                break


@dataclass(frozen=True, slots=True)
class Result:
    """``cpu``: the operator's processor time per pod in milliseconds."""

    tainted_by: str
    pods: int
    seconds: float
    cpu: float


async def taint_slices(api: Api, nodes: list[str]) -> None:
    """What drivers do that find their devices broken."""
    for node in nodes:
        current = await api.get(RESOURCE_SLICES, f"{node}-gpu")
        await api.update(RESOURCE_SLICES, current | {"spec": slice_of(node, DEVICES, taints=[TAINT])["spec"]})


async def add_rule(api: Api, nodes: list[str]) -> None:
    """What an administrator does."""
    spec = {"taint": TAINT, "deviceSelector": {"driver": DRIVER}}
    await api.create(DEVICE_TAINT_RULES, {"metadata": {"name": f"all-{len(nodes)}-nodes"}, "spec": spec})


async def measure(kubeconfig: Path, pods: int) -> list[Result]:
    """Both ways to taint devices, one after the other."""
    program = str(Path(sys.executable).with_name("dra-operator"))
    options = ("--kubeconfig", str(kubeconfig), "--feature-gates", "DRADeviceTaintRules=true", "--no-leader-elect")
    side = Side("operator", "dra-scheduler", ((program, "run", *options),))
    results: list[Result] = []
    async with Api(connection(kubeconfig)) as api, side.at_work() as [process], asyncio.timeout(DEADLINE):
        await api.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        for prefix, taint in (("slices", taint_slices), ("rule", add_rule)):
            nodes = await furnish(api, prefix, pods)
            await heard(api, f"heard-{prefix}")
            used = process.seconds()
            seconds = await evicted(api, prefix, pods, partial(taint, api, nodes))
            results.append(Result(prefix, pods, seconds, (process.seconds() - used) / pods * 1e3))
    return results


def main() -> int:
    """Measures, prints a table, and writes JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--json", metavar="FILE", help="write the results there as well")
    options = parser.parse_args()
    with development_cluster() as kubeconfig:
        results = asyncio.run(measure(kubeconfig, options.pods))
    print("| tainted by | pods | evicted within | pods/s | operator, processor time per pod |\n|---|---|---|---|---|")
    for it in results:
        rate = it.pods / it.seconds
        print(f"| {it.tainted_by} | {it.pods:,} | {it.seconds:.1f} s | {rate:,.0f} | {it.cpu:.1f} ms |")
    if options.json:
        Path(options.json).write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
