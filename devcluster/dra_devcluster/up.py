"""``dra-devcluster up``: API server and nodes, until a signal stops them."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from dra_api.gates import UnknownGate

from .apiserver import ServerError
from .cluster import DevCluster
from .processes import ProcessFailed


class UsageError(Exception):
    """The command line asks for something impossible; the text has cause and remedy."""


def run(arguments: argparse.Namespace) -> int:
    """Run until SIGINT or SIGTERM; returns the exit code."""
    try:
        return asyncio.run(_up(arguments, Path(arguments.kubeconfig).absolute()))
    except (ServerError, UnknownGate, UsageError, ProcessFailed) as error:
        print(f"dra-devcluster: {error}", file=sys.stderr)
        return 1


def parse_gates(text: str) -> dict[str, bool]:
    """``A=true,B=false`` as a mapping. Raises UsageError."""
    gates = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        if value.lower() not in ("true", "false"):
            raise UsageError(f"--feature-gates: {part!r} is not of the form NAME=true or NAME=false")
        gates[name.strip()] = value.lower() == "true"
    return gates


async def _up(arguments: argparse.Namespace, kubeconfig: Path) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    with TemporaryDirectory(prefix="dra-") as folder:
        cluster = DevCluster(
            Path(folder),
            nodes=arguments.nodes,
            devices=arguments.devices,
            port=arguments.port,
            feature_gates=parse_gates(arguments.feature_gates),
            snapshot=Path(arguments.snapshot) if arguments.snapshot else None,
            authorization=arguments.authorization,
        )
        async with cluster:
            _write_kubeconfig(cluster, kubeconfig)
            print(_what_next(cluster, kubeconfig), flush=True)
            await _until(stop, cluster)
            print("Stopping.", flush=True)
    return 0


def _write_kubeconfig(cluster: DevCluster, path: Path) -> None:
    """Written last, so that a process that waits for the file finds a usable cluster."""
    try:
        cluster.server.write_kubeconfig(path)
    except OSError as error:
        raise UsageError(f"cannot write the kubeconfig {path}: {error}; name another file with --kubeconfig") from error


async def _until(stop: asyncio.Event, cluster: DevCluster) -> None:
    """Wait for the signal. Report a plugin process that exits before, and keep the cluster running."""
    alive = [node.plugin for node in cluster.nodes if node.plugin]
    while not stop.is_set():
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), 1.0)
        for plugin in list(alive):
            try:
                plugin.check()
            except ProcessFailed as error:
                alive.remove(plugin)
                print(error, file=sys.stderr, flush=True)


def _what_next(cluster: DevCluster, kubeconfig: Path) -> str:
    nodes = "\n".join(f"  {node.name}: {node.agent.root}" for node in cluster.nodes)
    return f"""The API server listens on {cluster.server.url}.
Nodes, and the folders that stand for their /var/lib/kubelet:
{nodes or "  none"}

In another shell:

  export KUBECONFIG={kubeconfig}
  kubectl get nodes,resourceslices
  dra-operator run                  # generates and allocates claims, places pods of dra-scheduler

Ctrl-C ends the cluster."""
