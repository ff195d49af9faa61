"""However large one field of an object is, and whichever one: without room for it, little of the object is held."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from dra_api.codec import convert, encode
from dra_api.core import Pod
from dra_api.kueue import Workload
from dra_api.meta import Object
from dra_api.resource import ResourceClaim
from dra_api.scheduling import PodDisruptionBudget, PodGroup
from dra_api.storage import PersistentVolumeClaim
from dra_ledger.cel_language import CelSelectors
from dra_operator.allocator import Features, Inventory
from dra_operator.cache import BulkLimits, ClaimTemplate, Cluster
from msgspec import inspect

FAT = 60_000
"""Bytes of the field, about."""
LEAN = 6_000
"""Bytes that may be held of the object."""
DEPTH = 9


def values(kind: inspect.Type, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Each way to make a value of the type large, named by the path of the field that is."""
    if depth > DEPTH:
        return
    match kind:
        case inspect.UnionType(types=types):
            for each in types:
                yield from values(each, depth)
        case inspect.DictType(value_type=item):
            yield "{}", {f"{number:06d}.example.com/{'x' * 40}": lean(item) for number in range(FAT // 80)}
            if isinstance(item, inspect.StrType):
                yield "{x}", {"example.com/text": "x" * FAT}
            for path, value in values(item, depth + 1):
                yield f"{{}}{path}", {"key": value}
        case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item):
            size = len(encode(numbered(item, 0))) + 1
            yield "[]", [numbered(item, number) for number in range(FAT // size)]
            for path, value in values(item, depth + 1):
                yield f"[]{path}", [value]
        case inspect.StructType(fields=fields):
            for field in fields:
                for path, value in values(field.type, depth + 1):
                    needed = {it.encode_name: lean(it.type) for it in fields if it.required}
                    yield f".{field.encode_name}{path}", {**needed, field.encode_name: value}
        case inspect.AnyType() | inspect.RawType():
            yield "", {"text": "x" * FAT}


def lean(kind: inspect.Type) -> Any:
    """Some short value of the type."""
    match kind:
        case inspect.UnionType(types=types):
            return lean(next(it for it in types if not isinstance(it, inspect.NoneType)))
        case inspect.StrType():
            return "short"
        case inspect.IntType() | inspect.FloatType():
            return 1
        case inspect.BoolType():
            return True
        case inspect.StructType(fields=fields):
            return {it.encode_name: lean(it.type) for it in fields if it.required}
        case inspect.DictType() | inspect.AnyType() | inspect.RawType():
            return {}
        case inspect.VarTupleType() | inspect.ListType():
            return []
    return "1"


def numbered(kind: inspect.Type, number: int) -> Any:
    """A short value, different from its neighbours if it has a text."""
    text = f"{number:06d}-{'x' * 40}"
    match kind:
        case inspect.StrType():
            return text
        case inspect.StructType(fields=fields):
            texts = {it.encode_name: text for it in fields if isinstance(it.type, inspect.StrType)}
            return {**lean(kind), **texts}
    return lean(kind)


KINDS: Mapping[str, type[Object]] = {
    "Pod": Pod,
    "ResourceClaim": ResourceClaim,
    "ResourceClaimTemplate": ClaimTemplate,
    "Workload": Workload,
    "PersistentVolumeClaim": PersistentVolumeClaim,
    "PodDisruptionBudget": PodDisruptionBudget,
    "PodGroup": PodGroup,
}
_ELSEWHERE_LIMITED = re.compile(
    r"\.status"  # written by controllers and kubelets, within the lengths of the API
    r"|PodGroup\.spec\.schedulingConstraints\.topology\[\]$"  # one
    r"|PodGroup\.spec\.(schedulingPolicy\.basic|disruptionMode\.\w+)\{\}"  # without fields
)
FAT_OBJECTS = {
    f"{name}{path}": (kind, value)
    for name, kind in KINDS.items()
    for path, value in values(inspect.type_info(kind))
    if not _ELSEWHERE_LIMITED.search(f"{name}{path}")
}
PLACED, DONE = {"spec": {"nodeName": "node"}}, {"status": {"phase": "Failed"}}


@pytest.mark.parametrize(("kind", "fat"), FAT_OBJECTS.values(), ids=FAT_OBJECTS)
def test_little_is_held_of_an_object_whichever_of_its_fields_is_large(kind: type[Object], fat: dict[str, Any]) -> None:
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
