"""Devices that bring or cost resources of nodes are published only for nodes that can handle them (K37-NA-24).

What the admission plugin NodeDeclaredFeatureValidator of 1.37 does for ResourceSlices, with the gates
NodeDeclaredFeatures (which is locked) and DRANodeAllocatableResources.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dra_api.releases.release import Release

from dra_devcluster.apiserver.errors import Json, forbidden
from dra_devcluster.apiserver.storage.selectors import selects

from .base import Write

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
