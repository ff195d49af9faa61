"""Volumes, claims to them and classes for tests of placement, and what a provisioner does with them."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dra_api.codec import convert
from dra_api.core import Node, Pod
from dra_api.storage import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from dra_kube import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, STORAGE_CLASSES, Resource
from dra_operator.cache import StorageView
from dra_operator.sources.kinds import WATCHED
from fake_api import FakeApi
from objects import Obj

ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
HOST = "kubernetes.io/hostname"
BOUND = {"pv.kubernetes.io/bind-completed": "yes"}
SELECTED = "volume.kubernetes.io/selected-node"
CSI = "csi.example.com"
KIND_OF = {resource.kind: resource for resource in WATCHED}
LATE, AT_ONCE = "late", "at-once"


def uses(*claims: str, **more: Any) -> list[Obj]:
    """``spec.volumes`` with these claims."""
    return [{"name": f"v{number}", "persistentVolumeClaim": {"claimName": name}} for number, name in enumerate(claims)]


def ephemeral(name: str = "scratch") -> list[Obj]:
    return [{"name": name, "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}]


def volume_claim(
    name: str = "data", volume: str = "", *, size: str = "1Gi", class_name: str | None = LATE, **more: Any
) -> Obj:
    """Bound to ``volume`` if one is given."""
    spec: Obj = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}, **more.pop("spec", {})}
    if class_name is not None:
        spec["storageClassName"] = class_name
    if volume:
        spec["volumeName"] = volume
    meta = {"namespace": "ns", "name": name, "uid": f"uid-{name}", "annotations": BOUND if volume else {}}
    status = {"phase": "Bound" if volume else "Pending"}
    meta = {**meta, **more.pop("metadata", {})}
    return {"kind": "PersistentVolumeClaim", "metadata": meta, "spec": spec, "status": status, **more}


def on_nodes(*names: str) -> Obj:
    """The affinity of a volume that only these nodes reach."""
    return on_labels(HOST, *names)


def on_labels(key: str, *values: str) -> Obj:
    terms = [{"matchExpressions": [{"key": key, "operator": "In", "values": list(values)}]}]
    return {"required": {"nodeSelectorTerms": terms}}


def volume(
    name: str = "pv", *, size: str = "1Gi", affinity: Obj | None = None, class_name: str = LATE, **more: Any
) -> Obj:
    spec: Obj = {
        "capacity": {"storage": size},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": class_name,
        **({"nodeAffinity": affinity} if affinity else {}),
        **more.pop("spec", {}),
    }
    meta = {"name": name, "uid": f"uid-{name}", **more.pop("metadata", {})}
    return {"kind": "PersistentVolume", "metadata": meta, "spec": spec, "status": {"phase": "Available"}, **more}


def storage_class(name: str = LATE, provisioner: str = "kubernetes.io/no-provisioner", **more: Any) -> Obj:
    mode = "Immediate" if name == AT_ONCE else "WaitForFirstConsumer"
    meta = {"name": name, "uid": f"uid-{name}"}
    return {"kind": "StorageClass", "metadata": meta, "provisioner": provisioner, "volumeBindingMode": mode, **more}


def node(name: str = "n1", **labels: str) -> Node:
    return convert(Node, {"metadata": {"name": name, "labels": {HOST: name, **labels}}})


def pod(volumes: Sequence[Obj] = (), name: str = "pod", **spec: Any) -> Pod:
    meta = {"namespace": "ns", "name": name, "uid": f"uid-{name}"}
    return convert(Pod, {"metadata": meta, "spec": {"volumes": list(volumes), **spec}})


def csi_node(limit: int | None, name: str = "n1", driver: str = CSI) -> Obj:
    """A node to which the driver attaches so many volumes."""
    drivers = [{"name": driver, "nodeID": name, "allocatable": {"count": limit} if limit is not None else {}}]
    return {"kind": "CSINode", "metadata": {"name": name, "uid": f"uid-csi-{name}"}, "spec": {"drivers": drivers}}


def csi(handle: str, driver: str = CSI) -> Obj:
    """Where a volume of a driver comes from: a part of the volume's spec."""
    return {"csi": {"driver": driver, "volumeHandle": handle}}


def attachment(volume: str, node: str = "n1", driver: str = CSI) -> Obj:
    spec = {"attacher": driver, "nodeName": node, "source": {"persistentVolumeName": volume}}
    name = f"{volume}-{node}"
    return {"kind": "VolumeAttachment", "metadata": {"name": name, "uid": f"uid-{name}"}, "spec": spec}


def csi_driver(*, tells_capacity: bool, name: str = CSI) -> Obj:
    meta = {"name": name, "uid": f"uid-{name}"}
    return {"kind": "CSIDriver", "metadata": meta, "spec": {"storageCapacity": tells_capacity}}


def capacity(name: str, class_name: str, topology: Obj | None, **room: str) -> Obj:
    """``room``: capacity and maximumVolumeSize."""
    meta = {"name": name, "namespace": "csi", "uid": f"uid-{name}"}
    where = {"nodeTopology": topology} if topology is not None else {}
    return {"kind": "CSIStorageCapacity", "metadata": meta, "storageClassName": class_name, **where, **room}


class Shelf(StorageView):
    """A storage that holds what it is given. ``in_use``: UIDs of pods by the claims that they use."""

    def __init__(self, unseen: Iterable[str] = (), in_use: Mapping[str, Sequence[str]] | None = None) -> None:
        super().__init__(lambda key: (in_use or {}).get(key, ()))
        self.unseen = unseen

    @classmethod
    def of(cls, *objects: Obj, **more: Any) -> Shelf:
        shelf = cls(**more)
        for obj in objects:
            shelf.put(obj)
        return shelf

    def put(self, obj: Obj) -> None:
        made = convert(WATCHED[resource_of(obj)], obj)
        if isinstance(made, PersistentVolume):
            change = self.volumes.put(made)
            assert change is not None
            self.file_volume(change)
        elif isinstance(made, PersistentVolumeClaim):
            self.claims.put(made)
        elif isinstance(made, StorageClass):
            self.classes.put(made)
        elif isinstance(made, CSINode):
            self.csi_nodes.put(made)
        elif isinstance(made, CSIDriver):
            self.csi_drivers.put(made)
        elif isinstance(made, CSIStorageCapacity):
            self.csi_capacities.put(made)
        elif isinstance(made, VolumeAttachment):
            attached = self.csi_attachments.put(made)
            assert attached is not None
            self.file_attachment(attached)


def resource_of(obj: Obj) -> Resource:
    return KIND_OF[obj["kind"]]


def store(api: FakeApi, *objects: Obj) -> None:
    for obj in objects:
        api.add(resource_of(obj), obj)


# --- What kube-controller-manager and a provisioner do with volumes, as far as tests of placement need it ---

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
