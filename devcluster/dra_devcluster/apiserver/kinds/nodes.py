"""Nodes: taints, amounts and addresses that can be, and the node's server, whose key no object shows.

Devices that bring or cost resources of nodes are published only for nodes that declare the feature (K37-NA-24). What
the admission plugin NodeDeclaredFeatureValidator of 1.37 does for ResourceSlices, with the gates NodeDeclaredFeatures
(which is locked) and DRANodeAllocatableResources.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from dra_api.releases.release import Release

from dra_devcluster.apiserver import faults
from dra_devcluster.apiserver.errors import Json, forbidden
from dra_devcluster.apiserver.kinds.base import Kind, Write
from dra_devcluster.apiserver.kinds.pod_resources import validate_amount
from dra_devcluster.apiserver.served.registry import NodeServerAddress
from dra_devcluster.apiserver.storage import metadata
from dra_devcluster.apiserver.storage.selectors import selects
from dra_devcluster.apiserver.structure import Fault
from dra_devcluster.node_protocol import SERVER_ADDRESS_ANNOTATION, SERVER_KEY_ANNOTATION

_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


class Nodes(Kind):
    selectable: Mapping[str, str] = MappingProxyType({"spec.unschedulable": "spec.unschedulable"})
    status_writes_metadata = True

    def default(self, obj: Json, write: Write) -> None:
        _keep_server(obj["metadata"], write)
        status = obj.get("status") or {}
        for name, amount in (status.get("capacity") or {}).items():
            status.setdefault("allocatable", {}).setdefault(name, amount)

    def prepare_create(self, obj: Json, write: Write) -> None:
        """A kubelet registers its node with the status."""

    def validate(self, obj: Json, old: Json | None, write: Write) -> Iterable[Fault]:
        spec, status = obj.get("spec") or {}, obj.get("status") or {}
        yield from _taints(spec.get("taints") or ())
        for field in ("capacity", "allocatable"):
            for name, amount in (status.get(field) or {}).items():
                yield from validate_amount(name, amount, f"status.{field}.{name}")
        seen: list[Json] = []
        for index, address in enumerate(status.get("addresses") or ()):
            if address in seen:
                yield faults.duplicate(f"status.addresses[{index}]", address)
            seen.append(address)
        provider = ((old or {}).get("spec") or {}).get("providerID", "")
        if provider and spec.get("providerID", "") != provider:
            why = 'node updates may not change providerID except from "" to valid'
            yield faults.forbidden("spec.providerID", why)

    def fields(self, obj: Json) -> dict[str, str]:
        found = super().fields(obj)
        found["spec.unschedulable"] = found["spec.unschedulable"] or "false"
        return found


def _keep_server(meta: Json, write: Write) -> None:
    """Take the key of the node's server, and its address, out of the object.

    Who reads Nodes may not run programs in their pods. Who may write their status may not either: address and key come
    in one registration, so that nobody else's address gets the key.
    """
    annotations = meta.get("annotations") or {}
    key, address = (annotations.pop(name, None) for name in (SERVER_KEY_ANNOTATION, SERVER_ADDRESS_ANNOTATION))
    if "annotations" in meta and not annotations:
        del meta["annotations"]
    if key and address and not write.dry_run and not write.subresource:
        write.registry.node_servers[meta["name"]] = NodeServerAddress(address, key)


def _taints(taints: Sequence[Json]) -> Iterator[Fault]:
    """The real server names these fields as if they were metadata."""
    seen: set[tuple[str, str]] = set()
    for index, taint in enumerate(taints):
        path, key = f"metadata.taints[{index}]", taint.get("key", "")
        value, effect = taint.get("value", ""), taint.get("effect", "")
        if why := metadata.qualified_name(key):
            yield faults.invalid(f"{path}.key", key, why)
        if why := metadata.label_value(value):
            yield faults.invalid(f"{path}.value", value, why)
        if not effect:
            yield faults.required(f"{path}.effect")
        elif effect not in _EFFECTS:
            yield faults.unsupported(f"{path}.effect", effect, _EFFECTS)
        if (key, effect) in seen:
            yield faults.duplicate(path, taint)
        seen.add((key, effect))


FEATURE: Final = "DRANodeAllocatableResources"


def check_declared_features(slice_: Json, write: Write) -> None:
    """Raises a 403 if a node on which such a device can be used does not declare the feature."""
    if write.registry.release < Release.V1_37 or not write.registry.gates.node_allocatable_resources:
        return
    spec = slice_["spec"]
    for device in spec.get("devices") or ():
        if device.get("nodeAllocatableResources"):
            for why in _refusals(device if spec.get("perDeviceNodeSelection") else spec, write):
                raise forbidden("resource.k8s.io", "resourceslices", slice_["metadata"].get("name", ""), why)


def _refusals(where: Json, write: Write) -> Iterator[str]:
    """``where`` has the fields that choose nodes: the slice, or the device. A choice that no node matches is fine."""
    nodes = write.registry.store.collection("", "nodes")
    if where.get("nodeName"):
        stored = nodes.get("", where["nodeName"])
        if stored is None or not _declares(stored.decode()):
            yield _text(where["nodeName"])
    elif where.get("allNodes") or where.get("nodeSelector"):
        for stored in nodes.all():
            node = stored.decode()
            is_meant = where.get("allNodes") or selects(where["nodeSelector"], node)
            if is_meant and not _declares(node):
                yield _text(node["metadata"]["name"])
    else:
        yield f"a device with nodeAllocatableResources is for no node, so that none supports {FEATURE}"


def _declares(node: Json) -> bool:
    return FEATURE in ((node.get("status") or {}).get("declaredFeatures") or ())


def _text(node: str) -> str:
    return f'node "{node}" does not support {FEATURE} feature'
