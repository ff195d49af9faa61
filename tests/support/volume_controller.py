"""What kube-controller-manager and a provisioner do with volumes, as far as tests of placement need it.

Volumes get available, a volume that is reserved for a claim is bound to it, and a claim for which a node was selected
gets a volume there. ``due`` says what there is to write; the rest writes it, to the fake server or to a real one.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

from dra_kube import (
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    STORAGE_CLASSES,
    Api,
    Conflict,
    NotFound,
    Resource,
)
from fake_api import FakeApi
from objects import Obj
from volume_lab import BOUND, HOST, SELECTED, on_labels

OURS = "csi.example.com"
"""The provisioner that works."""


class Due(NamedTuple):
    """An object to write, whole; ``is_new`` for one that does not exist yet."""

    resource: Resource
    obj: Obj
    is_new: bool = False


def due(volumes: Iterable[Obj], claims: Iterable[Obj], classes: Iterable[Obj], label: str) -> Iterator[Due]:
    """``label``: the label of nodes that has their name."""
    owned = {uid: volume for volume in volumes if (uid := volume["spec"].get("claimRef", {}).get("uid"))}
    for volume in volumes:
        if volume["status"].get("phase") == "Pending" and "claimRef" not in volume["spec"]:
            yield Due(PERSISTENT_VOLUMES, {**volume, "status": {"phase": "Available"}})
    provisioners = {it["metadata"]["name"]: it["provisioner"] for it in classes}
    for claim in claims:
        meta, spec = claim["metadata"], claim["spec"]
        if spec.get("volumeName"):
            continue
        if meta["uid"] in owned:
            yield from _bound(copy.deepcopy(claim), copy.deepcopy(owned[meta["uid"]]))
        elif (node := meta.get("annotations", {}).get(SELECTED)) and provisioners[spec["storageClassName"]] == OURS:
            yield Due(PERSISTENT_VOLUMES, _made(claim, label, node), is_new=True)


def _bound(claim: Obj, volume: Obj) -> Iterator[Due]:
    yield Due(PERSISTENT_VOLUMES, {**volume, "status": {"phase": "Bound"}})
    claim["spec"]["volumeName"] = volume["metadata"]["name"]
    claim["metadata"].setdefault("annotations", {}).update(BOUND)
    yield Due(PERSISTENT_VOLUME_CLAIMS, {**claim, "status": {"phase": "Bound"}})


def _made(claim: Obj, label: str, node: str) -> Obj:
    meta, spec = claim["metadata"], claim["spec"]
    reference = {"kind": "PersistentVolumeClaim", **{key: meta[key] for key in ("namespace", "name", "uid")}}
    made = {
        "capacity": spec["resources"]["requests"],
        "accessModes": spec["accessModes"],
        "storageClassName": spec["storageClassName"],
        "hostPath": {"path": "/tmp"},
        "claimRef": reference,
        "nodeAffinity": on_labels(label, node),
    }
    return {"metadata": {"name": f"pvc-{meta['uid']}"}, "spec": made, "status": {"phase": "Pending"}}


def bind_volumes(api: FakeApi) -> None:
    """Write to the fake server until nothing is due any more."""
    while found := list(
        due(api.of(PERSISTENT_VOLUMES), api.of(PERSISTENT_VOLUME_CLAIMS), api.of(STORAGE_CLASSES), HOST)
    ):
        for resource, obj, is_new in found:
            if is_new:
                api.add(resource, obj)
            else:
                api.store("MODIFIED", resource, obj)


@asynccontextmanager
async def volume_controller(api: Api, namespace: str, label: str) -> AsyncIterator[None]:
    """Binds the claims of a namespace inside the block, and deletes in the end the volumes that it made."""
    task = asyncio.create_task(_run(api, namespace, label))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait((task,))
        for volume in (await api.list(PERSISTENT_VOLUMES))[0]:
            if volume["metadata"]["name"].startswith("pvc-") and volume["spec"]["claimRef"]["namespace"] == namespace:
                await api.delete(PERSISTENT_VOLUMES, volume["metadata"]["name"])


async def _run(api: Api, namespace: str, label: str) -> None:
    while True:
        volumes, _ = await api.list(PERSISTENT_VOLUMES)
        claims, _ = await api.list(PERSISTENT_VOLUME_CLAIMS, namespace)
        classes, _ = await api.list(STORAGE_CLASSES)
        for resource, obj, is_new in due(volumes, claims, classes, label):
            with suppress(Conflict, NotFound):  # seen again in the next round
                if is_new:
                    await api.create(resource, obj)
                else:
                    updated = await api.update(resource, obj)
                    obj["metadata"]["resourceVersion"] = updated["metadata"]["resourceVersion"]
                    await api.update(resource, obj, "status")
        await asyncio.sleep(0.05)
