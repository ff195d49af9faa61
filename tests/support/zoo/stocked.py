"""A hoard of thousands: how an operator starts beside it, and how long its neighbours wait.

``PYTHONPATH=tests/support python -m zoo.stocked --objects 2000 --kinds claims pods`` prints a line for each kind, with
the development server. To write so much takes hours; so the server has the objects from its start, as bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, cast

from dra_devcluster.apiserver import DevApiServer
from dra_devcluster.apiserver.storage.store import Stored
from dra_kube import Api, Object, Resource

from zoo.asking import Tenant
from zoo.cage import GATES, LEASE, NEIGHBOUR, Gauges, cage, peak_memory, probing, visiting, watching_lease, weighing
from zoo.hoarding import ALLOCATED, HOARD, KINDS, hoard, stranger

HOARDER: Final = "hoarder"


class _Stock:
    """Stands for an ``Api``: puts what is created into the server, which has not begun."""

    def __init__(self, server: DevApiServer) -> None:
        self._store = server.registry.store

    async def create(self, resource: Resource, body: Object, namespace: str | None = None) -> Object:
        meta = {"namespace": HOARDER, **body["metadata"], "creationTimestamp": "2026-01-01T00:00:00Z"}
        revision = self._store.next_revision()
        meta |= {"uid": f"00000000-0000-4000-8000-{revision:012d}", "resourceVersion": str(revision)}
        stored = Stored({**body, "status": {}, "metadata": meta}, revision, {"metadata.name": meta["name"]})
        self._store.collection(resource.group, resource.plural).restore(stored)
        return body


async def _serve(kind: str, objects: int, kubeconfig: Path) -> None:
    gates = dict(pair.split("=") for pair in GATES.split(","))
    server = DevApiServer(feature_gates={name: value == "true" for name, value in gates.items()})
    tenant = Tenant(cast(Api, _Stock(server)), HOARDER)
    for number in range(objects):
        await hoard(tenant, kind, number)
    async with server:
        server.write_kubeconfig(kubeconfig)
        await asyncio.Event().wait()


async def _measured(kind: str, objects: int, seconds: float) -> str:
    server = [sys.executable, "-m", "zoo.stocked", "--objects", str(objects), "--kinds", kind, "--serve"]
    with tempfile.TemporaryDirectory(prefix="stocked-") as folder:
        async with cage(Path(folder), seconds=seconds, scale=0.1, server=server) as den, AsyncExitStack() as stack:
            tenant, gauges = Tenant(den.api, HOARDER), Gauges()
            await tenant.moves_in()
            await stranger(tenant)
            await asyncio.sleep(seconds)
            first, began = peak_memory(den.operator.pid) >> 20, time.monotonic()
            operator = await den.another_operator(stack)
            started = time.monotonic() - began
            with probing(den.port, gauges):
                async with watching_lease(den.api, *LEASE, gauges), weighing(operator.pid, gauges):
                    async with visiting(den.kubeconfig, NEIGHBOUR, gauges):
                        await asyncio.sleep(seconds)
            memory, said = peak_memory(operator.pid) >> 20, operator.unexplained()
    line = gauges.line(f"{objects} {kind}")
    memories = f"at most {memory} MiB (the operator before it {first})"
    return f"{line} ready after {started:.1f} s, {memories}, {len(gauges.waits)} pods; {said or 'no warning'}"


def main() -> None:
    """Print a line for each kind."""
    parser = argparse.ArgumentParser(prog="zoo.stocked", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--kinds", nargs="+", choices=(*KINDS, ALLOCATED), default=KINDS, help="what is hoarded (default: each)"
    )
    parser.add_argument("--objects", type=int, default=HOARD, help="of a kind, of 1.4 MB (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=60.0, help="that neighbours come (default: %(default)s)")
    parser.add_argument("--serve", type=Path, metavar="KUBECONFIG", help="only serve them, and write this file")
    given = parser.parse_args()
    if given.serve:
        asyncio.run(_serve(given.kinds[0], given.objects, given.serve))
        return
    print("| hoard | probe | Lease | p50 | p99 | server's p99 | MB |")
    for kind in given.kinds:
        print(asyncio.run(_measured(kind, given.objects, given.seconds)), flush=True)


if __name__ == "__main__":
    main()
