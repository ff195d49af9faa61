"""What a driver that publishes anew all the time costs, by the number of pods that wait for devices.

    python benchmarks/flapping.py 100 1000

A development cluster of 50 nodes with two devices each is full, and so many pods wait. Each new version of a slice may
help any of them. Printed are the operator's processor time for one version, its share of a processor while one slice
gets ten versions a second, and how long a new pod of the same namespace that needs no device waits for its node then,
as the median of five.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

from dra_kube import PODS, RESOURCE_SLICES, Api
from freed import DEVICES, full, idle
from throughput_load import NAMESPACE
from throughput_sides import development_cluster

VERSIONS_PER_SECOND = 10
MEASURED_SECONDS = 5.0
NEW_PODS = 5
LONGEST_WAIT_SECONDS = 30.0


async def publish(api: Api, version: int) -> None:
    """One slice says something new of its first device."""
    slices, _ = await api.list(RESOURCE_SLICES)
    changed = slices[0]
    changed["spec"]["devices"][0].setdefault("attributes", {})["version"] = {"int": version}
    changed["spec"]["pool"]["generation"] = version
    await api.update(RESOURCE_SLICES, changed)


@asynccontextmanager
async def flapping(api: Api, first: int) -> AsyncIterator[None]:
    """Meanwhile the slice gets new versions."""

    async def flap() -> None:
        for version in count(first):
            await publish(api, version)
            await asyncio.sleep(1 / VERSIONS_PER_SECOND)

    task = asyncio.create_task(flap())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait((task,))


async def wait_of(api: Api, name: str, scheduler: str) -> float:
    """Seconds until a new pod has its node, or the longest that is waited."""
    containers = [{"name": "main", "image": "none"}]
    began = time.perf_counter()
    spec = {"schedulerName": scheduler, "containers": containers}
    await api.create(PODS, {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec})
    while time.perf_counter() - began < LONGEST_WAIT_SECONDS:
        if (await api.get(PODS, name, NAMESPACE))["spec"].get("nodeName"):
            break
        await asyncio.sleep(0.01)
    return time.perf_counter() - began


async def measure(kubeconfig: Path, waiting: int) -> tuple[float, float, float]:
    """Seconds of processor time for one version; the share of a processor; seconds until a new pod has its node."""
    async with full(kubeconfig, DEVICES, waiting) as (api, _, operator, scheduler):
        before = operator.seconds()
        await publish(api, 2)
        await idle(operator)
        spent = operator.seconds() - before
        async with flapping(api, 3):
            await asyncio.sleep(1)
            before = operator.seconds()
            await asyncio.sleep(MEASURED_SECONDS)
            share = (operator.seconds() - before) / MEASURED_SECONDS
            waits = [await wait_of(api, f"new-{waiting}-{number}", scheduler) for number in range(NEW_PODS)]
    return spent, share, statistics.median(waits)


def main() -> None:
    """Print a line for each number of pods."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("waiting", type=int, nargs="*", default=[100, 1000], help="pods that wait (100 1000)")
    numbers = parser.parse_args().waiting
    with development_cluster() as kubeconfig:
        for waiting in numbers:
            spent, share, wait = asyncio.run(measure(kubeconfig, waiting))
            print(
                f"{waiting} pods wait: {spent * 1e3:.0f} ms for one version; "
                f"with {VERSIONS_PER_SECOND} a second {share:.0%} of a processor, new pods wait {wait:.2f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
