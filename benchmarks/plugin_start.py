"""The processor time of a plugin from its start until the kubelet has registered it, with and without prepared claims.

A driver of the plugin library is started as a process, against the API server of the development cluster and a fake
kubelet. Beside it stands the time of an empty Python, and of one that only imports what such a driver imports.

    python benchmarks/plugin_start.py [--runs N] [--claims N]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dra_devcluster.apiserver import DevApiServer
from dra_kube import NODES, Api, connection
from dra_kubeletplugin import PluginSettings
from dra_kubeletplugin.files.checkpoint import ClaimRecords
from dra_kubeletplugin.testing import FakeKubelet

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from node_world import prepared_claim

NAME, NODE = "gpu.example.com", "node-1"
DRIVER = f"""
import dra_kubeletplugin as dra

class Gpu(dra.Driver):
    async def prepare(self, claim):
        return [dra.PreparedDevice.of(each) for each in dra.results_for({NAME!r}, claim)]

dra.run(Gpu(), {NAME!r}, [dra.device(f"gpu-{{number}}") for number in range(8)])
"""
IMPORTS = """
import aiohttp, grpc.aio, dra_kube
import dra_kubeletplugin as dra, dra_kubeletplugin.commands.command, dra_kubeletplugin.plugin
dra.KubeletPlugin, dra.SlicePublisher
"""
Times = tuple[float, float]
"""Seconds of processor time, and seconds by the clock."""


def once(code: str) -> Times:
    """A program that ends by itself."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, time.perf_counter() - began


def processor_seconds(pid: int) -> float:
    """What a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def fill(settings: PluginSettings, claims: int) -> None:
    """Write the records of prepared claims."""
    records = ClaimRecords(settings.records_dir)
    records.create()
    for number in range(claims):
        _, record = prepared_claim(NAME, NODE, f"old-{number}", f"claim-{number}")
        records.write(record, durable=False)


async def start(folder: Path, kubeconfig: Path, claims: int) -> Times:
    """A plugin until it is registered; the comparison of the claims' files in its thread goes on after that."""
    kubelet_dir = folder / "kubelet"
    registry, data = kubelet_dir / "plugins_registry", kubelet_dir / "plugins" / NAME
    registry.mkdir(parents=True)
    cdi = folder / "cdi"
    settings = PluginSettings(driver_name=NAME, node_name=NODE, registry_dir=registry, data_dir=data, cdi_dir=str(cdi))
    fill(settings, claims)
    began = time.perf_counter()
    flags = ["--node-name", NODE, "--kubelet-dir", kubelet_dir, "--cdi-dir", cdi, "--kubeconfig", kubeconfig]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", DRIVER, *map(str, flags), stderr=asyncio.subprocess.DEVNULL
    )
    try:
        while not list(registry.glob("*.sock")):  # noqa: ASYNC110  # in another process
            await asyncio.sleep(0.005)
        async with FakeKubelet(settings) as kubelet:
            await kubelet.register()
        return processor_seconds(process.pid), time.perf_counter() - began
    finally:
        process.send_signal(signal.SIGTERM)
        await process.wait()


async def measure(runs: int, claims: int) -> dict[str, list[Times]]:
    """Each kind in turn, so that the noise of the machine falls on all."""
    found: dict[str, list[Times]] = {
        what: [] for what in ("empty Python", "imports", "no claims", f"{claims:,} claims")
    }
    with tempfile.TemporaryDirectory() as folder:
        async with DevApiServer() as server:
            kubeconfig = server.write_kubeconfig(Path(folder) / "kubeconfig")
            async with Api(connection(kubeconfig)) as api:
                await api.create(NODES, {"metadata": {"name": NODE}})
            for run in range(runs):
                for times, code in zip(found.values(), ("", IMPORTS), strict=False):
                    times.append(await asyncio.to_thread(once, code))
                for times, number in zip(list(found.values())[2:], (0, claims), strict=True):
                    times.append(await start(Path(folder, f"{run}-{number}"), kubeconfig, number))
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--claims", type=int, default=1_000)
    options = parser.parse_args()
    found = asyncio.run(measure(options.runs, options.claims))
    print(f"{'':15} processor time  by the clock")
    for what, times in found.items():
        processor, clock = (statistics.median(each) for each in zip(*times, strict=True))
        print(f"{what:15} {processor:11.2f} s {clock:12.2f} s")


if __name__ == "__main__":
    main()
