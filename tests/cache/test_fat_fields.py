"""However large one field of an object is, and whichever one: without room for it, little of the object is held.

Objects of the cluster, which administrators, kubelets and drivers write, are held whole up to 64 KiB.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import pytest
from dra_api.codec import convert, encode
from dra_api.core import Namespace, Node, Pod
from dra_api.kueue import Workload
from dra_api.meta import Object
from dra_api.resource import ResourceClaim, ResourcePoolStatusRequest
from dra_api.scheduling import PodDisruptionBudget, PodGroup
from dra_api.storage import (
    ClaimReference,
    CSINode,
    CSIStorageCapacity,
    CSIVolume,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from dra_ledger.cel_language import CelSelectors
from dra_operator.allocator import Features, Inventory
from dra_operator.cache import BulkLimits, ClaimTemplate, Cluster
from dra_operator.scheduling.rules.node_rules import NODE_TOO_LARGE, TaintToleration
from dra_operator.scheduling.rules.volume_binding import UnboundClaim, allows
from dra_operator.scheduling.state import LARGEST_OBJECT_BYTES, LoadedNode, Obstacle
from dra_operator.scheduling.state.node import tolerations_of
from dra_operator.sources.kinds import WATCHED
from fat_fields import FAT, LIMITED_BY_API, values
from msgspec import inspect
from rounds import each_of

T = TypeVar("T", bound=Object)
META = {"name": "name", "namespace": "ns", "uid": "uid", "resourceVersion": "1"}
LEAN = 6_000
"""Bytes that may be held of the object."""

KINDS: Mapping[str, type[Object]] = {
    "Pod": Pod,
    "ResourceClaim": ResourceClaim,
    "ResourceClaimTemplate": ClaimTemplate,
    "Workload": Workload,
    "PersistentVolumeClaim": PersistentVolumeClaim,
    "PodDisruptionBudget": PodDisruptionBudget,
    "PodGroup": PodGroup,
    "Namespace": Namespace,
    "ResourcePoolStatusRequest": ResourcePoolStatusRequest,
}
"""Tenants write them, somewhere."""
OF_CLUSTER: Mapping[str, type[Object]] = {
    it.__name__: it for it in (Node, PersistentVolume, StorageClass, CSINode, CSIStorageCapacity, VolumeAttachment)
}
VALIDATED = {
    "DeviceClass": "32 selectors, 32 configurations of 10 KiB",
    "DeviceTaintRule": "one taint, 8 conditions",
    "ResourceSlice": "128 devices, 32 attributes and capacities each",
    "CSIDriver": "nothing but a flag is decoded",
    "AdmissionCheck": "names, 8 conditions",
    "ResourceFlavor": "8 labels, 8 tolerations",
}
"""Kinds of which the API server limits every field that is decoded, or their CustomResourceDefinition does."""
_ELSEWHERE_LIMITED = re.compile(
    r"\.status"  # written by controllers and kubelets, within the lengths of the API
    r"|PodGroup\.spec\.schedulingConstraints\.topology\[(long)?\]$"  # one
    r"|PodGroup\.spec\.(schedulingPolicy\.basic|disruptionMode\.\w+)\{\}"  # without fields
)
FAT_BYTES = 3 * LARGEST_OBJECT_BYTES


def fat_objects(kinds: Mapping[str, type[Object]], size: int) -> dict[str, tuple[type[Object], Callable[[], Any]]]:
    return {
        f"{name}{path}": (kind, make)
        for name, kind in kinds.items()
        for path, make in values(inspect.type_info(kind), 0, size)
        if not LIMITED_BY_API.search(f"{name}{path}")
    }


FAT_OBJECTS = {name: it for name, it in fat_objects(KINDS, FAT).items() if not _ELSEWHERE_LIMITED.search(name)}
FAT_OF_CLUSTER = fat_objects(OF_CLUSTER, FAT_BYTES)
PLACED, DONE = {"spec": {"nodeName": "node"}}, {"status": {"phase": "Failed"}}


@each_of(FAT_OBJECTS)
def test_little_is_held_of_an_object_whichever_of_its_fields_is_large(name: str) -> None:
    kind, make = FAT_OBJECTS[name]
    fat = make()
    for more in ({}, PLACED, DONE) if kind is Pod else ({},):
        cluster = Cluster(Inventory(Features(), language=CelSelectors(Features())), limits=BulkLimits(whole=0))
        parts = {part: {**more.get(part, {}), **fat.get(part, {})} for part in ("spec", "status")}
        obj = convert(kind, {**fat, **parts, "metadata": {**META, **fat.get("metadata", {})}})
        assert len(encode(obj)) > LEAN
        cluster.apply(obj)
        (kept,) = cluster.store_of(kind)
        assert len(encode(kept)) < LEAN


@each_of(FAT_OF_CLUSTER)
def test_an_object_of_the_cluster_is_cut_whichever_of_its_fields_is_too_large(name: str) -> None:
    kind, make = FAT_OF_CLUSTER[name]
    meta = {"name": "name", "uid": "uid", "resourceVersion": "1"}
    fat = make()
    obj = convert(kind, {**fat, "metadata": {**meta, **fat.get("metadata", {})}})
    assert len(encode(obj)) > LARGEST_OBJECT_BYTES
    cluster = Cluster(Inventory(Features(), language=CelSelectors(Features())), limits=BulkLimits(whole=0))
    cluster.apply(obj)
    (kept,) = cluster.store_of(kind)
    assert len(encode(kept)) < LARGEST_OBJECT_BYTES


def test_every_kind_that_is_watched_is_tried_or_limited_by_the_api_server() -> None:
    """Before a kind is added as limited, each field that is decoded of it has to be looked up in its validation."""
    assert {kind.__name__ for kind in WATCHED.values()} == {
        *(kind.__name__ for kind in KINDS.values()),
        *OF_CLUSTER,
        *VALIDATED,
    }


def test_nearly_all_fields_are_tried() -> None:
    """Also fields of lists in lists: a change in the walk over types must not leave them out."""
    assert len(FAT_OBJECTS) > 200
    assert "Pod.spec.schedulerName=" in FAT_OBJECTS
    assert "PersistentVolumeClaim.spec.volumeName=" in FAT_OBJECTS
    assert "Node.metadata.labels{}" in FAT_OF_CLUSTER
    assert "Pod.spec.containers[].ports[]" in FAT_OBJECTS
    assert "Workload.spec.podSets[].template.spec.tolerations[]" in FAT_OBJECTS


MANY_LABELS = {f"label-{number:05d}": "x" * 40 for number in range(2_000)}
ZONE = "topology.kubernetes.io/zone"
NODE = convert(Node, {"metadata": {"name": "node", "uid": "node", "resourceVersion": "1", "labels": {ZONE: "a"}}})


def kept_of(kind: type[T], **body: Any) -> T:
    """What the cache has of an object of the cluster."""
    cluster = Cluster(Inventory(Features(), language=CelSelectors(Features())))
    meta = {"name": "name", "uid": "uid", "resourceVersion": "1", **body.pop("metadata", {})}
    cluster.apply(convert(kind, {**body, "metadata": meta}))
    (kept,) = cluster.store_of(kind)
    return kept


@pytest.mark.parametrize("tolerations", [[], [{"operator": "Exists"}]], ids=["none", "of all taints"])
def test_no_pod_goes_to_a_node_of_which_not_all_labels_and_taints_are_known(tolerations: list[dict[str, str]]) -> None:
    """It may have the label that a pod avoids. Its own zone is known: the pods that it has count there."""
    room = {"cpu": "4", "example.com/x": "4"}
    node = kept_of(Node, metadata={"labels": {ZONE: "a", **MANY_LABELS}}, status={"allocatable": room})
    pod = convert(Pod, {"metadata": {"name": "p", "namespace": "ns"}, "spec": {"tolerations": tolerations}})
    rule = TaintToleration(tolerations_of(pod), is_placeholder=False)
    assert rule.obstacle(LoadedNode(node), ()) == Obstacle(NODE_TOO_LARGE)
    assert rule.obstacle(LoadedNode(NODE), ()) is None
    assert node.metadata.labels == {ZONE: "a"}
    assert set(node.status.allocatable or {}) == {"cpu"}
    cordoned = kept_of(Node, metadata={"labels": MANY_LABELS}, spec={"unschedulable": True})
    assert rule.obstacle(LoadedNode(cordoned), ()) == Obstacle(NODE_TOO_LARGE)


def test_no_node_reaches_a_volume_of_which_not_all_terms_are_known() -> None:
    terms = [{"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["a"]}]}] * 2_000
    spec = {"csi": {"driver": "d", "volumeHandle": "h"}, "nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}
    ref = {"namespace": "ns", "name": "claim", "uid": "u"}
    kept = kept_of(PersistentVolume, spec={**spec, "claimRef": ref, "capacity": {"storage": "1Gi"}})
    assert not allows(kept, NODE)
    assert allows(
        kept_of(PersistentVolume, spec={"nodeAffinity": {"required": {"nodeSelectorTerms": terms[:9]}}}), NODE
    )
    assert (kept.spec.csi, kept.spec.claim_ref) == (CSIVolume("d", "h"), ClaimReference("ns", "claim", "u"))


def test_no_volume_is_made_in_topologies_of_which_not_all_are_known() -> None:
    """A part of a selector may match a node that all of it does not."""
    claim = convert(PersistentVolumeClaim, {"metadata": META, "spec": {"resources": {"requests": {"storage": "1Gi"}}}})

    def makes(count: int) -> tuple[bool, bool]:
        zone = [{"matchLabelExpressions": [{"key": ZONE, "values": ["a"]}]}] * count
        class_ = kept_of(StorageClass, provisioner="driver.example.com", allowedTopologies=zone)
        absent = [{"key": f"absent-{number:05d}", "operator": "DoesNotExist"} for number in range(count)]
        room = kept_of(CSIStorageCapacity, nodeTopology={"matchExpressions": absent}, capacity="2Gi")
        unbound = UnboundClaim(claim, class_, (), [room])
        return unbound.may_be_made_on(NODE), unbound.has_room_on(NODE)

    assert makes(3) == (True, True)
    assert makes(2_000) == (False, False)


def test_a_name_that_nothing_can_have_is_cut() -> None:
    """The API server limits neither: a tenant stored 500 pods of 1.4 MB."""
    pod = kept_of(Pod, spec={"schedulerName": "x" * 70_000, "nodeName": "node"})
    claim = kept_of(PersistentVolumeClaim, spec={"volumeName": "x" * 70_000})
    assert (pod.spec.scheduler_name, claim.spec.volume_name) == ("x" * 254, "x" * 254)
    assert pod.spec.node_name == "node"
