"""Number times size: objects as large as the API server admits, by the hundred, and a pod of a scheduler that is none.

Nothing has to be done with most of them: they are listed and watched, at start, by audits and before binds.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable
from functools import cache
from typing import Any

from dra_kube import PERSISTENT_VOLUME_CLAIMS, Object

from zoo.asking import Act, Beast, Tenant, request, spec

LARGEST_BYTES = 1_390_000
"""Of an object: etcd takes a little more, as kube-apiserver stores it."""
HOARD = 400
"""Objects of a kind in the full form: half a gigabyte."""
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
    room = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": ""}
    meta = {"name": name, "namespace": tenant.namespace, "annotations": marks}
    meta |= {"labels": labels(LARGEST_BYTES - MARK_BYTES * len(MARKS))}
    return tenant.api.create(PERSISTENT_VOLUME_CLAIMS, {"metadata": meta, "spec": room})


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
            await tenant.each(hoard(tenant, kind, number) for number in range(tenant.some(HOARD // len(kinds))))

    return release


HOARDING: tuple[Beast, ...] = (
    *(Beast(f"{kind} of 1.4 MB by the hundred", hoarding(kind), r"^$", real=True) for kind in KINDS),
    Beast("everything of 1.4 MB by the hundred", hoarding(*KINDS), r"^$", short=True),
)
"""Pods of another scheduler say nothing: it does not exist."""
