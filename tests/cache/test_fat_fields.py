"""However large one field of an object is, and whichever one: without room for it, little of the object is held."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dra_api.codec import convert, encode
from dra_api.core import Namespace, Pod
from dra_api.kueue import Workload
from dra_api.meta import Object
from dra_api.resource import ResourceClaim
from dra_api.scheduling import PodDisruptionBudget, PodGroup
from dra_api.storage import PersistentVolumeClaim
from dra_ledger.cel_language import CelSelectors
from dra_operator.allocator import Features, Inventory
from dra_operator.cache import BulkLimits, ClaimTemplate, Cluster
from fat_fields import values
from msgspec import inspect
from rounds import each_of

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
}
_ELSEWHERE_LIMITED = re.compile(
    r"\.status"  # written by controllers and kubelets, within the lengths of the API
    r"|PodGroup\.spec\.schedulingConstraints\.topology\[(long)?\]$"  # one
    r"|PodGroup\.spec\.(schedulingPolicy\.basic|disruptionMode\.\w+)\{\}"  # without fields
)
FAT_OBJECTS = {
    f"{name}{path}": (kind, make)
    for name, kind in KINDS.items()
    for path, make in values(inspect.type_info(kind))
    if not _ELSEWHERE_LIMITED.search(f"{name}{path}")
}
PLACED, DONE = {"spec": {"nodeName": "node"}}, {"status": {"phase": "Failed"}}


@each_of(FAT_OBJECTS)
def test_little_is_held_of_an_object_whichever_of_its_fields_is_large(name: str) -> None:
    kind, make = FAT_OBJECTS[name]
    fat = make()
    for more in ({}, PLACED, DONE) if kind is Pod else ({},):
        cluster = Cluster(Inventory(Features(), language=CelSelectors(Features())), limits=BulkLimits(whole=0))
        meta = {"name": "name", "namespace": "ns", "uid": "uid", "resourceVersion": "1"}
        parts = {part: {**more.get(part, {}), **fat.get(part, {})} for part in ("spec", "status")}
        obj = convert(kind, {**fat, **parts, "metadata": {**meta, **fat.get("metadata", {})}})
        assert len(encode(obj)) > LEAN
        cluster.apply(obj)
        (kept,) = cluster.store_of(kind)
        assert len(encode(kept)) < LEAN


def test_nearly_all_fields_are_tried() -> None:
    """Also fields of lists in lists: a change in the walk over types must not leave them out."""
    assert len(FAT_OBJECTS) > 150
    assert "Pod.spec.containers[].ports[]" in FAT_OBJECTS
    assert "Workload.spec.podSets[].template.spec.tolerations[]" in FAT_OBJECTS
