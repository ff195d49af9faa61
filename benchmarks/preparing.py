"""What the plugin library adds to a driver's prepare and unprepare, and whether its memory stays flat.

    python benchmarks/preparing.py [--folder DIR] [--quick] [--json FILE]

A driver that does nothing, a kubelet that calls it over its socket, and an API server in memory, all in one process:
what is measured is decoding, the record, the CDI file, the lock and gRPC on both sides. ``--folder`` is on the disk to
measure; ``fsync`` off shows the disk's share, and a bare record written in the same way what the disk can do.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from unittest.mock import patch

from dra_api.codec import to_dict
from dra_api.resource import ResourceClaim
from dra_kube import RESOURCE_CLAIMS
from dra_kubeletplugin import (
    ClaimRef,
    ContainerEdits,
    Driver,
    KubeletPlugin,
    PluginSettings,
    Prepared,
    PreparedDevice,
    results_for,
)
from dra_kubeletplugin.testing import FakeKubelet, PluginApi, allocated_claim

NAME = "gpu.example.com"
AT_ONCE = 32
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


@dataclass(frozen=True)
class Figure:
    """Milliseconds."""

    what: str
    fsync: bool
    p50: float
    p99: float
    cpu: float


class Nothing(Driver):
    """Gives each device one variable."""

    async def prepare(self, claim: ResourceClaim) -> Prepared:
        edits = ContainerEdits(env=("A=b",))
        return [PreparedDevice.of(result, edits=edits) for result in results_for(NAME, claim)]


class Bench:
    """A plugin and its kubelet; ``claims`` hold a device each."""

    def __init__(self, kubelet: FakeKubelet, claims: list[ClaimRef]) -> None:
        self.kubelet = kubelet
        self.claims = claims

    async def alone(self, rounds: int) -> tuple[list[float], list[float]]:
        """Seconds of prepare and of unprepare, one after the other."""
        prepare, unprepare = [], []
        for number in range(rounds):
            claim = [self.claims[number % len(self.claims)]]
            started = time.perf_counter()
            assert (await self.kubelet.prepare(claim))[claim[0].uid].devices
            prepared = time.perf_counter()
            await self.kubelet.unprepare(claim)
            prepare.append(prepared - started)
            unprepare.append(time.perf_counter() - prepared)
        return prepare, unprepare

    async def at_once(self, rounds: int) -> list[float]:
        """Seconds until each of many calls that begin together has its answer."""

        async def call(claim: ClaimRef) -> float:
            started = time.perf_counter()
            assert (await self.kubelet.prepare([claim]))[claim.uid].devices
            return time.perf_counter() - started

        seconds: list[float] = []
        for _ in range(rounds):
            seconds += await asyncio.gather(*(call(claim) for claim in self.claims[:AT_ONCE]))
            await self.kubelet.unprepare(self.claims[:AT_ONCE])
        return seconds

    async def all(self) -> None:
        """Prepare each claim, and then unprepare each."""
        for claim in self.claims:
            await self.kubelet.prepare([claim])
        for claim in self.claims:
            await self.kubelet.unprepare([claim])


async def opened(stack: AsyncExitStack, folder: Path, count: int) -> Bench:
    """A bench with so many claims. CDI files are in memory, where it can be, as below /var/run."""
    cdi = stack.enter_context(tempfile.TemporaryDirectory(dir=MEMORY or folder))
    api = PluginApi()
    for number in range(count):
        claim = to_dict(allocated_claim(NAME, f"pool/gpu-{number}", name=f"claim-{number}"))
        await api.put(RESOURCE_CLAIMS, claim)
    settings = PluginSettings(driver_name=NAME, registry_dir=folder, data_dir=folder, cdi_dir=cdi)
    await stack.enter_async_context(KubeletPlugin(Nothing(), settings, api.client))
    kubelet = await stack.enter_async_context(FakeKubelet(settings))
    return Bench(kubelet, [ClaimRef("default", f"claim-{n}", f"uid-of-claim-{n}") for n in range(count)])


async def times(folder: Path, *, fsync: bool, rounds: int) -> list[Figure]:
    """Prepare and unprepare alone, and many at once."""
    async with AsyncExitStack() as stack:
        bench = await opened(stack, folder, AT_ONCE)
        await bench.alone(5)
        cpu = time.process_time()
        prepare, unprepare = await bench.alone(rounds)
        alone = (time.process_time() - cpu) / rounds / 2
        cpu = time.process_time()
        together = await bench.at_once(max(rounds // AT_ONCE, 2))
        return [
            figure("prepare, 1 device", fsync, prepare, alone),
            figure("unprepare", fsync, unprepare, alone),
            figure(f"prepare, {AT_ONCE} calls at once", fsync, together, (time.process_time() - cpu) / len(together)),
        ]


def bare_records(folder: Path, rounds: int) -> Figure:
    """What a record costs that is written whole and synced, without anything around it."""
    seconds = []
    for _ in range(rounds):
        started = time.perf_counter()
        hidden = folder / ".bare"
        with hidden.open("wb") as file:
            file.write(b"x" * 500)
            file.flush()
            os.fsync(file.fileno())
        hidden.replace(folder / "bare")
        descriptor = os.open(folder, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
        seconds.append(time.perf_counter() - started)
    return figure("a bare record of 500 bytes", True, seconds, 0.0)


def figure(what: str, fsync: bool, seconds: list[float], cpu: float) -> Figure:
    """The middle and the slowest hundredth."""
    p99 = statistics.quantiles(seconds, n=100)[98]
    return Figure(what, fsync, statistics.median(seconds) * 1000, p99 * 1000, cpu * 1000)


async def memory(folder: Path, count: int, rounds: int) -> list[float]:
    """Megabytes after each round of preparing and unpreparing so many claims."""
    found = []
    async with AsyncExitStack() as stack:
        bench = await opened(stack, folder, count)
        for _ in range(rounds):
            await bench.all()
            gc.collect()
            found.append(resident())
    return found


def resident() -> float:
    """Megabytes of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@contextmanager
def syncing(on: bool) -> Iterator[None]:
    """Without it, files stay in the memory of the machine."""
    nothing: Callable[[int], None] = lambda descriptor: None  # noqa: E731
    with patch("os.fsync", os.fsync if on else nothing):
        yield


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where the files go, with a short path (temporary)")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    options = parser.parse_args()
    rounds, claims = (64, 100) if options.quick else (640, 1000)
    figures: list[Figure] = []
    for fsync in (False, True):
        with tempfile.TemporaryDirectory(dir=options.folder) as folder, syncing(fsync):
            figures += asyncio.run(times(Path(folder), fsync=fsync, rounds=rounds))
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        figures.append(bare_records(Path(folder), rounds))
    for item in figures:
        print(f"{item.what:30} fsync {'on ' if item.fsync else 'off'}  p50 {item.p50:7.2f} ms  p99 {item.p99:7.2f} ms"
              f"  cpu {item.cpu:5.2f} ms")  # fmt: skip
    with tempfile.TemporaryDirectory(dir=options.folder) as folder, syncing(False):
        megabytes = [round(value, 1) for value in asyncio.run(memory(Path(folder), claims, 5))]
    print(f"memory after each round of {claims} claims: {', '.join(map(str, megabytes))} MB")
    if options.json:
        options.json.write_text(json.dumps({"figures": [asdict(item) for item in figures], "megabytes": megabytes}))


if __name__ == "__main__":
    main()
