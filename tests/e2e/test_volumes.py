"""Pods whose volumes tie them to nodes.

A kube-controller-manager with all its controllers (``KOPF_DRA_STOCK=1``) binds volumes that exist. Elsewhere,
and in place of a provisioner, the tests do.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress

import pytest
from dra_kube import (
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    STORAGE_CLASSES,
    Api,
    Conflict,
    NotFound,
    Object,
    Resource,
)
from scene import Scene, both
from volume_lab import BOUND, SELECTED, due, on_labels, storage_class, uses, volume
from waiting import meanwhile

NAME = "e2e.kopf-dra/name"  # a label: bare nodes have none with their name


@asynccontextmanager
async def volume_controller(api: Api, namespace: str, label: str) -> AsyncIterator[None]:
    """Binds the claims of a namespace inside the block, and deletes in the end the volumes that it made."""
    try:
        async with meanwhile(_run(api, namespace, label)):
            yield
    finally:
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


class Volumes:
    """Volumes for the claims of a scene."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self._made = scene, list[tuple[Resource, str]]()

    async def bound(self, node: str, *, modes: str = "ReadWriteOnce") -> None:
        """The claim ``data`` has a volume that only this node reaches."""
        scene, name = self.scene, f"{self.scene.namespace}-data"
        await scene.api.patch(NODES, node, {"metadata": {"labels": {NAME: node}}})
        claim = {
            "metadata": {"name": "data", "namespace": scene.namespace, "annotations": BOUND},
            "spec": {**_wants(modes), "storageClassName": "", "volumeName": name},
        }
        made = await scene.api.create(PERSISTENT_VOLUME_CLAIMS, claim)
        owner = {"kind": "PersistentVolumeClaim", "namespace": scene.namespace, "name": "data"}
        volume = {
            "metadata": {"name": name},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": [modes],
                "storageClassName": "",
                "hostPath": {"path": "/tmp"},
                "claimRef": {**owner, "uid": made["metadata"]["uid"]},
                "nodeAffinity": on_labels(NAME, node),
            },
        }
        await scene.api.create(PERSISTENT_VOLUMES, volume)
        self._made.append((PERSISTENT_VOLUMES, name))

    async def make_class(self, provisioner: str) -> None:
        """A class of this scene whose claims are bound when they are used."""
        obj = storage_class(self.scene.namespace, provisioner)
        await self.scene.api.create(STORAGE_CLASSES, obj)
        self._made.append((STORAGE_CLASSES, self.scene.namespace))

    async def wanted(self) -> None:
        """The claim ``data`` of that class."""
        meta = {"name": "data", "namespace": self.scene.namespace}
        spec = {**_wants("ReadWriteOnce"), "storageClassName": self.scene.namespace}
        await self.scene.api.create(PERSISTENT_VOLUME_CLAIMS, {"metadata": meta, "spec": spec})

    async def available(self, node: str) -> None:
        """A volume of that class, which only this node reaches."""
        name = f"{self.scene.namespace}-free"
        await self.scene.api.patch(NODES, node, {"metadata": {"labels": {NAME: node}}})
        made = volume(name, affinity=on_labels(NAME, node), class_name=self.scene.namespace)
        made["spec"]["hostPath"] = {"path": "/tmp"}
        await self.scene.api.create(PERSISTENT_VOLUMES, made)
        self._made.append((PERSISTENT_VOLUMES, name))

    def controller(self, *, always: bool = False) -> AbstractAsyncContextManager[None]:
        """Binds claims in the block, unless the cluster does so by itself, and ``always`` says that it cannot."""
        if "KOPF_DRA_STOCK" in os.environ and not always:
            return nullcontext()
        return volume_controller(self.scene.api, self.scene.namespace, NAME)

    async def end(self) -> None:
        for resource, name in self._made:
            with suppress(NotFound):
                await self.scene.api.delete(resource, name)


def _wants(modes: str) -> Object:
    return {"accessModes": [modes], "resources": {"requests": {"storage": "1Gi"}}}


@pytest.fixture
async def volumes(scene: Scene) -> AsyncIterator[Volumes]:
    made = Volumes(scene)
    yield made
    await made.end()


@both
async def test_a_pod_gets_its_device_on_the_node_of_its_volume(scene: Scene, volumes: Volumes) -> None:
    await scene.start_driver(nodes=3)
    await scene.create_claim()
    await scene.create_pod(scene.pod(volumes=uses("data")))
    await scene.pending(says='persistentvolumeclaim "data" not found')
    await volumes.bound(scene.node_names[2])
    assert (await scene.runs())["spec"]["nodeName"] == scene.node_names[2]


async def test_a_claim_for_one_pod_serves_one_after_the_other(scene: Scene, volumes: Volumes) -> None:
    await scene.start_driver(devices=2)
    await scene.create_template()
    await volumes.bound(scene.node_names[0], modes="ReadWriteOncePod")
    await scene.create_pod(scene.inline_pod("first", volumes=uses("data")))
    await scene.runs("first")
    await scene.create_pod(scene.inline_pod("second", volumes=uses("data")))
    await scene.pending("second", says="ReadWriteOncePod and is in use by another pod")
    await scene.delete_pod("first")
    await scene.runs("second")


# --- claims that are bound when their first pod has a node ---


@both
async def test_a_pod_a_device_and_a_volume_that_exists_meet_on_one_node(scene: Scene, volumes: Volumes) -> None:
    await scene.start_driver(nodes=3)
    await scene.create_template()
    await volumes.make_class("kubernetes.io/no-provisioner")
    await volumes.wanted()
    await scene.create_pod(scene.inline_pod(volumes=uses("data")))
    await scene.pending(says="didn't find available persistent volumes to bind")
    async with volumes.controller():
        await volumes.available(scene.node_names[1])
        assert (await scene.runs())["spec"]["nodeName"] == scene.node_names[1]
    claim = await scene.api.get(PERSISTENT_VOLUME_CLAIMS, "data", scene.namespace)
    assert claim["status"]["phase"] == "Bound"


@both
async def test_a_pod_gets_a_new_volume_on_the_node_of_its_device(scene: Scene, volumes: Volumes) -> None:
    await scene.start_driver(nodes=1)
    await scene.create_template()
    await volumes.make_class("csi.example.com")
    await volumes.wanted()
    for name in scene.node_names:
        await scene.api.patch(NODES, name, {"metadata": {"labels": {NAME: name}}})
    await scene.create_pod(scene.inline_pod(volumes=uses("data")))
    await scene.event("tester", "VolumeBindingPending", says="PersistentVolumeClaim data to be bound on node")
    async with volumes.controller(always=True):
        assert (await scene.runs())["spec"]["nodeName"] == scene.node_names[0]
    claim = await scene.api.get(PERSISTENT_VOLUME_CLAIMS, "data", scene.namespace)
    assert claim["metadata"]["annotations"][SELECTED] == scene.node_names[0]
