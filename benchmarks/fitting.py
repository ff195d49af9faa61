"""How many questions `kubectl dra fit --serve` answers in a second, and how long one waits.

    python benchmarks/fitting.py [--nodes 100] [--devices 8] [--clients 8] [--seconds 10] [--grpc]

The service is a process of its own, and has a snapshot of nodes with devices, half of which pods hold. Each client
asks one question after the other on one connection, by HTTP or by gRPC: would a pod with a claim for two devices fit,
made from a template in the question ("fits"), would one for more than any node has free ("refused"), or would ten
copies of three pods fit? Clients and service share the machine; the service's processor time is told as well.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import quantiles
from typing import Any

import grpc
from dra_operator.kubectl.observed import Observed
from dra_operator.kubectl.snapshot import header_of, spooling
from dra_proto.fit.v1 import api_pb2 as messages
from dra_proto.fit.v1 import api_pb2_grpc as services
from explaining import cluster

_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=100, help="nodes (%(default)s)")
    parser.add_argument("--devices", type=int, default=8, help="devices per node (%(default)s)")
    parser.add_argument("--clients", type=int, default=8, help="connections that ask (%(default)s)")
    parser.add_argument("--seconds", type=float, default=10.0, help="per question (%(default)s)")
    parser.add_argument("--grpc", action="store_true", help="ask by gRPC (HTTP)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        snapshot = Path(folder) / "snapshot.json"
        objects = list(cluster(options.nodes, options.devices))
        with spooling() as spool:
            for obj in objects:
                spool.kept(obj)
            snapshot.write_text(
                "\n".join(spool.lines(header_of(Observed(objects, datetime.now(UTC), namespace="team"))))
            )
        command = [sys.executable, "-m", "dra_operator.kubectl.cli", "fit", "127.0.0.1:0", "--from"]
        command.insert(4, "--serve-grpc" if options.grpc else "--serve")
        service = subprocess.Popen([*command, str(snapshot)], stdout=subprocess.PIPE, text=True)
        try:
            assert service.stdout is not None
            port = int(service.stdout.readline().rpartition(":")[2])
            print("| Question | questions/s | p50 ms | p99 ms | service's cpu ms |\n|---|---|---|---|---|")
            for name, question in _questions(options.devices):
                ask = _by_grpc(port, question) if options.grpc else _by_http(port, question)
                line = asyncio.run(_measured(ask, service.pid, options.clients, options.seconds))
                print(f"| {name} | {line} |", flush=True)
        finally:
            service.terminate()
            service.wait()


def _questions(devices: int) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "fits", {"manifests": [_template(2), _pod()]}
    yield "refused", {"manifests": [_template(devices), _pod()]}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}}
    spec = {"parallelism": 3, "template": {"spec": _pod()["spec"]}}
    yield "ten copies of three", {"manifests": [_template(1), job | {"spec": spec}], "count": 10}


def _template(count: int) -> dict[str, Any]:
    devices = {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu", "count": count}}]}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "gpus"},
        "spec": {"spec": {"devices": devices}},
    }


def _pod() -> dict[str, Any]:
    spec = {
        "schedulerName": "dra-scheduler",
        "containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpus"}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "train"}, "spec": spec}


Client = Callable[[float], Awaitable[list[float]]]
"""Asks until then; the seconds that each answer took."""


async def _measured(client: Client, pid: int, clients: int, seconds: float) -> str:
    await client(time.monotonic() + 1)  # the first decision about a selector
    begun, spent = time.monotonic(), _processor_seconds(pid)
    found = await asyncio.gather(*(client(begun + seconds) for _ in range(clients)))
    took, spent = time.monotonic() - begun, _processor_seconds(pid) - spent
    waited = sorted(each for one in found for each in one)
    cuts: Sequence[float] = quantiles(waited, n=100)
    number = len(waited)
    return f"{number / took:.0f} | {cuts[49] * 1e3:.1f} | {cuts[98] * 1e3:.1f} | {spent / number * 1e3:.2f}"


def _by_http(port: int, question: dict[str, Any]) -> Client:
    body = json.dumps(question).encode()
    head = f"POST /v1/fit HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    return partial(_http_client, port, f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)


def _by_grpc(port: int, question: dict[str, Any]) -> Client:
    manifests = list(map(json.dumps, question["manifests"]))
    return partial(_grpc_client, port, messages.Question(manifests=manifests, count=question.get("count", 0)))


async def _grpc_client(port: int, question: messages.Question, end: float) -> list[float]:
    waited = []
    own = [("grpc.use_local_subchannel_pool", 1)]  # a connection of its own
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=own) as channel:
        ask: Any = services.FitStub(channel).Ask
        while (begun := time.monotonic()) < end:
            await ask(question)
            waited.append(time.monotonic() - begun)
    return waited


async def _http_client(port: int, request: bytes, end: float) -> list[float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    waited = []
    try:
        while (begun := time.monotonic()) < end:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 "), head
            fields = dict(line.lower().split(b": ", 1) for line in head.strip().split(b"\r\n")[1:])
            await reader.readexactly(int(fields[b"content-length"]))
            waited.append(time.monotonic() - begun)
    finally:
        writer.close()
    return waited


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _CLOCK_TICKS


if __name__ == "__main__":
    main()
