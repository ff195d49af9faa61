"""What a device, or the room of a pod, that comes free costs the operator, by the number of pods that wait for it.

    python benchmarks/freed.py 100 1000

A development cluster of 50 nodes is full, with two devices on each or with cpu for two pods, and so many pods wait.
Then pods end, one after the other, when the operator is idle again. Times are medians over five of them: the operator's
processor time until it is idle, and from the deletion until the next pod has its node. Where what came free went to the
first pod that was tried, no other one has to be: the processor time should hardly grow with those that wait.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from dra_kube import Api, connection

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

from throughput_load import Load, Pods, clean, fill, for_each, furnish
from throughput_sides import Process, development_cluster, side_of

PODS_THAT_FIT = 100
"""For which the nodes have devices, or cpu."""
DEVICES = Load(nodes=50, devices=2, request="plain", sharing=1, clients=8, pods=0, waiting=0)
LOADS = {"devices": DEVICES, "cpu": replace(DEVICES, devices=4, cpu="200m")}
ENDS = 5
IDLE_SECONDS = 1.5
"""Seconds without work after which the operator is idle."""
NOISE_SECONDS = 0.05
"""Of processor time in these, which is no work."""


async def idle(operator: Process) -> None:
    """Wait until it has nothing to do."""
    while True:
        before = operator.seconds()
        await asyncio.sleep(IDLE_SECONDS)
        if operator.seconds() - before < NOISE_SECONDS:
            return


class Full(NamedTuple):
    """A full cluster, for which more pods wait, and its operator, which is idle."""

    api: Api
    pods: Pods
    operator: Process
    scheduler: str


@asynccontextmanager
async def full(kubeconfig: Path, load: Load, waiting: int) -> AsyncIterator[Full]:
    """Fill the cluster; empty it afterwards."""
    side = side_of("operator", kubeconfig, None)
    async with Api(connection(kubeconfig)) as api:
        await furnish(api, load)
        async with Pods.watched(api, load, side.scheduler, f"w{waiting}") as pods, side.at_work() as (operator,):
            await fill(pods, load, PODS_THAT_FIT)
            await for_each(pods.names(waiting), pods.create)
            await idle(operator)
            yield Full(api, pods, operator, side.scheduler)
            await clean(api, load)


async def measure(kubeconfig: Path, load: Load, waiting: int) -> tuple[float, float]:
    """Seconds of processor time for one pod that ends, and seconds until the next one has its place."""
    spent, taken = [], []
    async with full(kubeconfig, load, waiting) as (_, pods, operator, _):
        for number in range(ENDS):
            pods.latencies.clear()
            before, began = operator.seconds(), time.perf_counter()
            await pods.delete(f"w{waiting}-{number:05}")
            while not pods.latencies:  # noqa: ASYNC110 - the watch fills it
                await asyncio.sleep(0.005)
            taken.append(time.perf_counter() - began)
            await idle(operator)
            spent.append(operator.seconds() - before)
    return statistics.median(spent), statistics.median(taken)


def main() -> None:
    """Print a line for each number of pods."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("waiting", type=int, nargs="*", default=[100, 1000], help="pods that wait (100 1000)")
    numbers = parser.parse_args().waiting
    with development_cluster() as kubeconfig:
        for waiting in numbers:
            for what, load in LOADS.items():
                spent, taken = asyncio.run(measure(kubeconfig, load, waiting))
                times = f"{spent * 1e3:.0f} ms of processor time, bound after {taken * 1e3:.0f} ms"
                print(f"{waiting} pods wait for {what}: {times}", flush=True)


if __name__ == "__main__":
    main()
