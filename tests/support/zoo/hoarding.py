"""Number times size: objects as large as the API server admits, by the hundred, and a pod of a scheduler that is none.

Nothing has to be done with most of them: they are listed and watched, at start, by audits and before binds.

``PYTHONPATH=tests/support python -m zoo.hoarding --objects 2000 --kinds claims pods`` shows how an operator starts
beside a hoard of thousands, and how long its neighbours wait. It prints a line for each kind, with the development
server. To write so much takes hours; so the server has the objects from its start, as bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Sequence
from contextlib import AsyncExitStack
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, cast

from dra_devcluster.apiserver import DevApiServer
from dra_devcluster.apiserver.store import Stored
from dra_kube import PERSISTENT_VOLUME_CLAIMS, Api, Object, Resource
from zoo.asking import STORAGE, Act, Beast, Tenant, many, request, spec
from zoo.cage import (
    GATES,
    LEASE,
    NODES,
    Gauges,
    cage,
    peak_memory,
    probing,
    watching_lease,
    weighing,
)

LARGEST_BYTES = 1_390_000
"""Of an object: etcd takes a little more, as kube-apiserver stores it."""
HOARD = 400
"""Objects of a kind in the full form: half a gigabyte."""
CROWD = 2_000
"""Objects of a kind that are not large, in the full form."""
SHARED = spec(request("req", kind="visitor"))
"""A claim for devices of the driver whose devices the neighbour uses."""
KINDS = ("claims", "pods", "templates", "volume claims")
MARKS = ("dra.kopf.dev/allocate", "volume.kubernetes.io/selected-node")
"""Annotations that the operator reads, with values that only a tenant would write."""
MARK_BYTES = 120_000
ALLOCATED = "allocated claims"
"""Claims that get devices, each with a pod; beside the others these are written, fifty at a time."""


@cache  # all objects of a hoard have the same
def labels(size: int = LARGEST_BYTES) -> Object:
    """Labels of so many bytes in all; their number is not limited."""
    return {f"label-{number:06d}.example.com/name": "x" * 60 for number in range(size // 110)}


def parameters(size: int) -> list[Object]:
    """Configuration of so many bytes in all, of which a claim may have 320 kB."""
    text = "x" * 9_900
    return [
        {"opaque": {"driver": "gpu.example.com", "parameters": {"text": text}}} for _ in range(min(32, size // 10_000))
    ]


BULKY_DRIVER = "bulky.example.com"
FULL_SLICE = 128
"""Devices of a slice."""
WIDEST = 32
"""Attributes of a device."""


def bulky_slice(node: str, part: int, parts: int, *, labelled: bool) -> Object:
    """A slice of 0.8 MB of attributes, all as long as they may be; ``labelled``: filled up with labels to 1.4 MB."""
    domain = f"{'d' * 51}.example.com"
    names = [f"{domain}/attribute{number:023d}" for number in range(WIDEST)]

    def attributes(device: int) -> Object:
        return {name: {"string": f"{node}-{part}-{device}-{place}".ljust(64, "x")} for place, name in enumerate(names)}

    devices = [{"name": f"device-{part}-{number}", "attributes": attributes(number)} for number in range(FULL_SLICE)]
    pool = {"name": f"{node}-bulky", "generation": 1, "resourceSliceCount": parts}
    content = {"driver": BULKY_DRIVER, "nodeName": node, "pool": pool, "devices": devices}
    body: Object = {"metadata": {"name": f"{node}-bulky-{part}"}, "spec": content}
    if labelled:
        body["metadata"]["labels"] = labels(LARGEST_BYTES - len(json.dumps(body)))
    return body


def hoard(tenant: Tenant, kind: str, number: int) -> Awaitable[Any]:
    """One of the objects, as large as they come."""
    name = f"{kind.replace(' ', '-')}-{number}"
    configured = {**SHARED, "devices": {**SHARED["devices"], "config": parameters(320_000)}}
    marks = dict.fromkeys(MARKS, "x" * MARK_BYTES)
    if kind == "claims":
        bulk = labels(LARGEST_BYTES - 330_000 - MARK_BYTES * len(MARKS))
        return tenant.claim(name, configured, labels=bulk, annotations=marks)
    if kind == "templates":
        return tenant.template(name, configured, labels=labels(LARGEST_BYTES - 330_000))
    if kind == ALLOCATED:
        return _used(tenant, name)
    if kind == "pods":
        return tenant.pod(name, labels=labels(), schedulerName="nobody")
    meta = {"name": name, "namespace": tenant.namespace, "annotations": marks}
    meta |= {"labels": labels(LARGEST_BYTES - MARK_BYTES * len(MARKS))}
    return tenant.api.create(PERSISTENT_VOLUME_CLAIMS, {"metadata": meta, "spec": STORAGE})


SIZES = {"60 KB": 58_000, "6 KB": 6_000}
"""Too short to be cut down by themselves; it is their number that counts."""
SORTS = ("claims", "pods", "greedy pods", "placed pods", "hungry pods", "templates", "used claims")
CROWDS = tuple(f"{sort} of {size}" for size in SIZES for sort in SORTS)


@cache  # all objects of a crowd have the same
def tolerated(size: int) -> Object:
    """A claim with tolerations of so many bytes, for a class without devices."""
    keys = [{"key": f"{'k' * 60}{number:02d}.example.com/{'x' * 20}", "operator": "Exists"} for number in range(16)]
    return spec(*many(max(1, size // 2_050), kind="nothing", allocationMode="ExactCount", count=1, tolerations=keys))


@cache
def never_near(size: int) -> Object:
    """Node affinity of so many bytes that no node meets."""
    values = [f"absent-{number:06d}" for number in range(size // 95)]
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [it]}]} for it in values]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


async def crowd(tenant: Tenant, kind: str, number: int) -> None:
    """One of thousands of objects, none of which is large."""
    sort, _, size = kind.partition(" of ")
    name = f"{sort.replace(' ', '-')}-{number}"
    if sort == "pods":
        await tenant.pod(name, affinity=never_near(SIZES[size]))
    elif sort in ("greedy pods", "placed pods"):
        node: Object = {"nodeName": f"node-{number % NODES}"} if sort == "placed pods" else {}
        await tenant.pod(name, [f"{name}-{it:03d}-".ljust(253, "x") for it in range(SIZES[size] // 330)], **node)
    elif sort == "hungry pods":
        amounts = {f"{name}-{it}.".ljust(250, "x") + "/" + "y" * 63: "1" for it in range(SIZES[size] // 660)}
        await tenant.pod(name, containers=[{"name": "main", "image": "none", "resources": both(amounts)}])
    elif sort == "templates":
        await tenant.template(name, tolerated(SIZES[size]))
    else:
        await tenant.claim(name, tolerated(SIZES[size]))
        if sort == "used claims":
            await tenant.pod(name, [name])


def both(amounts: Object) -> Object:
    """Extended resources, of which the limits are the requests."""
    return {"requests": amounts, "limits": amounts}


async def _used(tenant: Tenant, name: str) -> None:
    """A claim with a short spec, so that it is allocated, and the pod that uses it."""
    one = request("req", allocationMode="ExactCount", count=1)
    await tenant.claim(name, spec(one), labels=labels())
    await tenant.pod(name, [name])


async def stranger(tenant: Tenant) -> None:
    """A pod that names a scheduler which does not exist, for devices of the neighbour's driver."""
    await tenant.claim("wanted", SHARED)
    await tenant.pod("stranger", ["wanted"], schedulerName="nobody")


def hoarding(*kinds: str) -> Act:
    """So much of each kind, and the stranger."""

    async def release(tenant: Tenant) -> None:
        await stranger(tenant)
        for kind in kinds:
            await tenant.crowd(HOARD // len(kinds), partial(hoard, tenant, kind))

    return release


def crowding(kind: str) -> Act:
    return lambda tenant: tenant.crowd(CROWD, partial(crowd, tenant, kind))


HOARDING: tuple[Beast, ...] = (
    *(Beast(f"{kind} by the thousand", crowding(kind), r"^$|cannot|node|bound") for kind in CROWDS),
    *(Beast(f"{kind} of 1.4 MB by the hundred", hoarding(kind), r"^$", real=True) for kind in KINDS),
    Beast("everything of 1.4 MB by the hundred", hoarding(*KINDS), r"^$", short=True),
)
"""Pods of another scheduler say nothing: it does not exist."""


HOARDER: Final = "hoarder"


class Stock:
    """Stands for an ``Api``: puts what is created into the server, which has not begun."""

    def __init__(self, server: DevApiServer) -> None:
        self._store = server.registry.store

    async def create(self, resource: Resource, body: Object, namespace: str | None = None) -> Object:
        meta = {**body["metadata"], "creationTimestamp": "2026-01-01T00:00:00Z"}
        revision = self._store.next_revision()
        meta |= {"uid": f"00000000-0000-4000-8000-{revision:012d}", "resourceVersion": str(revision)}
        fields = {"metadata.name": meta["name"], "spec.schedulerName": body.get("spec", {}).get("schedulerName", "")}
        stored = Stored({"status": {}, **body, "metadata": meta}, revision, fields)
        self._store.collection(resource.group, resource.plural).restore(stored)
        return body


def serving(kinds: Sequence[str], objects: int, namespaces: int = 1) -> list[str]:
    """The command, without its last word, of an API server that has ``objects`` of each kind from its start."""
    command = [sys.executable, "-m", "zoo.hoarding", "--objects", str(objects), "--kinds", *kinds]
    return [*command, "--namespaces", str(namespaces), "--serve"]


async def _serve(kinds: Sequence[str], objects: int, namespaces: int, kubeconfig: Path) -> None:
    gates = dict(pair.split("=") for pair in GATES.split(","))
    server = DevApiServer(feature_gates={name: value == "true" for name, value in gates.items()})
    for kind in kinds:
        await store(server, kind, objects, namespaces)
    async with server:
        server.write_kubeconfig(kubeconfig)
        await asyncio.Event().wait()


async def store(server: DevApiServer, kind: str, objects: int, namespaces: int) -> None:
    """Put a number of objects of a kind into the server, in a number of namespaces."""
    tenants = [Tenant(cast(Api, Stock(server)), name) for name in _namespaces(namespaces)]
    for number in range(objects):
        await (crowd if kind in CROWDS else hoard)(tenants[number % namespaces], kind, number)


def _namespaces(number: int) -> list[str]:
    return [HOARDER, *(f"{HOARDER}-{it}" for it in range(1, number))]


async def _measured(kind: str, objects: int, namespaces: int, seconds: float) -> str:
    server = serving([kind], objects, namespaces)
    with tempfile.TemporaryDirectory(prefix="stocked-") as folder:
        async with cage(Path(folder), seconds=seconds, scale=0.1, server=server) as den, AsyncExitStack() as stack:
            tenants, gauges = [Tenant(den.api, name) for name in _namespaces(namespaces)], Gauges()
            for tenant in tenants:
                await tenant.moves_in()
            await stranger(tenants[0])
            await asyncio.sleep(seconds)
            first, began = peak_memory(den.operator.pid) >> 20, time.monotonic()
            operator = await den.another_operator(stack)
            started = time.monotonic() - began
            with probing(den.port, gauges):
                async with watching_lease(den.api, *LEASE, gauges), weighing(operator.pid, gauges):
                    async with den.visitors.visiting(gauges):
                        await asyncio.sleep(seconds)
            memory, said = peak_memory(operator.pid) >> 20, operator.unexplained()
    line = gauges.line(f"{objects} {kind}")
    memories = f"at most {memory} MiB (the operator before it {first})"
    return f"{line} ready after {started:.1f} s, {memories}, {len(gauges.waits)} pods; {said or 'no warning'}"


def main() -> None:
    """Print a line for each kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--kinds", nargs="+", choices=(*KINDS, ALLOCATED, *CROWDS), default=KINDS, help="what is hoarded"
    )
    parser.add_argument("--objects", type=int, default=HOARD, help="of a kind (default: %(default)s)")
    parser.add_argument("--namespaces", type=int, default=1, help="of the hoarder (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=60.0, help="that neighbours come (default: %(default)s)")
    parser.add_argument("--serve", type=Path, metavar="KUBECONFIG", help="only serve them, and write this file")
    given = parser.parse_args()
    if given.serve:
        asyncio.run(_serve(given.kinds, given.objects, given.namespaces, given.serve))
        return
    print("| hoard | probe | Lease | p50 | p99 | server's p99 | MB |")
    for kind in given.kinds:
        print(asyncio.run(_measured(kind, given.objects, given.namespaces, given.seconds)), flush=True)


if __name__ == "__main__":
    main()
