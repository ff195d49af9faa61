"""What a device that comes free costs the operator on a full cluster, by the number of pods that wait for it.

    python benchmarks/freed_devices.py [WAITING ..., 100 and 1000 by default]

A development cluster of 50 nodes with two devices each is full, and so many pods wait. Then pods end, one after the
other, when the operator is idle again. Times are medians over five of them: the operator's processor time until it is
idle, and from the deletion until the next pod has its node. Where the device went to the first pod that was tried, no
other one has to be: the processor time should not grow with those that wait.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from pathlib import Path

from dra_kube import Api, connection

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

from throughput_load import Load, Pods, clean, fill, for_each, furnish
from throughput_sides import Process, development_cluster, side_of

LOAD = Load(nodes=50, devices=2, request="plain", sharing=1, clients=8, pods=0, waiting=0)
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


async def measure(kubeconfig: Path, waiting: int) -> tuple[float, float]:
    """Seconds of processor time for one freed device, and seconds until it has its next pod."""
    side, spent, taken = side_of("operator", kubeconfig, None), [], []
    async with Api(connection(kubeconfig)) as api:
        await furnish(api, LOAD)
        async with Pods.watched(api, LOAD, side.scheduler, f"w{waiting}") as pods, side.at_work() as (operator,):
            await fill(pods, LOAD, LOAD.capacity)
            await for_each(pods.names(waiting), pods.create)
            await idle(operator)
            for number in range(ENDS):
                pods.latencies.clear()
                before, began = operator.seconds(), time.perf_counter()
                await pods.delete(f"w{waiting}-{number:05}")
                while not pods.latencies:  # noqa: ASYNC110 - the watch fills it
                    await asyncio.sleep(0.005)
                taken.append(time.perf_counter() - began)
                await idle(operator)
                spent.append(operator.seconds() - before)
            await clean(api, LOAD)
    return statistics.median(spent), statistics.median(taken)


def main() -> None:
    """Print a line for each number of pods."""
    with development_cluster() as kubeconfig:
        for waiting in map(int, sys.argv[1:] or ("100", "1000")):
            spent, taken = asyncio.run(measure(kubeconfig, waiting))
            print(f"{waiting} pods wait: {spent * 1e3:.0f} ms of processor time, bound after {taken * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
