"""``dra-devcluster up``: API server and nodes, until somebody ends it."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from dra_api.gates import UnknownGate

from .apiserver import DevApiServer, ServerError


class UsageError(Exception):
    """The command line asks for something that cannot be; the text says what and what to do."""


def run(arguments: argparse.Namespace) -> int:
    """Run until SIGINT or SIGTERM; returns the exit code."""
    try:
        return asyncio.run(_up(arguments, Path(arguments.kubeconfig).absolute()))
    except (ServerError, UnknownGate, UsageError) as error:
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
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(
            DevApiServer(
                port=arguments.port,
                feature_gates=parse_gates(arguments.feature_gates),
                snapshot=Path(arguments.snapshot) if arguments.snapshot else None,
            )
        )
        server.write_kubeconfig(kubeconfig)
        print(f"The API server listens on {server.url}. In another shell:\n")
        print(f"  export KUBECONFIG={kubeconfig}")
        print("  kubectl get nodes,resourceslices\n\nCtrl-C ends the cluster.", flush=True)
        await stop.wait()
        print("Stopping.", flush=True)
    return 0
