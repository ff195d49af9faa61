"""Objects of which one field is large, whichever it is: made from the types that the decoder reads."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from dra_api.codec import encode
from msgspec import inspect

FAT = 60_000
"""Bytes of the field, about."""
DEPTH = 9
LIMITED_BY_API = re.compile(
    # identity, times, and texts of a few words; names of objects, labels and qualified names have at most 317 letters
    r"\.(apiVersion|kind|phase|operator|effect|volumeMode|preemptionPolicy|restartPolicy|priorityClassSource)="
    r"|metadata\.(name|generateName|namespace|uid|resourceVersion|creationTimestamp|deletionTimestamp|finalizers\[\])="
    r"|\.os\.name=|accessModes\[\]=|volumeBindingMode=|timeAdded="
    r"|\.(nodeName|storageClassName|volumeAttributesClassName|deviceClassName|priorityClassName|extendedResourceName)="
    r"|resourceClaims\[\]\.(name|resourceClaimName|resourceClaimTemplateName)=|schedulingGates\[\]\.name="
    r"|workloadRef\.\w+=|parentCompositePodGroupName=|topology\[\]\.key="
    r"|podGroupName=|podSets\[\]\.name="
    r"|priorityClassRef\.\w+=|ResourcePoolStatusRequest\.spec\.\w+="
    r"|\.(driver|provisioner|attacher)=|csi\.driver="
)
"""Fields, by their paths: texts whose length the API server limits."""


def values(kind: inspect.Type, depth: int = 0, size: int = FAT) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Each way to make a value of the type large, named by the path of the field that is.

    The path of a text ends with ``=``. The values are made when they are asked for: together they take 100 MB.
    """
    if depth > DEPTH:
        return
    match kind:
        case inspect.StrType():
            yield "=", lambda: "x" * size
        case inspect.UnionType(types=types):
            for each in types:
                yield from values(each, depth, size)
        case inspect.DictType(value_type=item):
            yield "{}", partial(_many_keys, item, size)
            for path, make in values(item, depth + 1, size):
                yield f"{{}}{path}", partial(_under_a_key, make)
        case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item):
            # Many short entries, and few long ones: a limit of either kind alone does not hold the other.
            for name, length in (("[]", 40), ("[long]", 240)):
                yield name, partial(_many_entries, item, length, size)
            for path, make in values(item, depth + 1, size):
                yield f"[]{path}", partial(_alone_in_a_list, make)
        case inspect.StructType(fields=fields):
            for field in fields:
                for path, make in values(field.type, depth + 1, size):
                    yield f".{field.encode_name}{path}", partial(_with_field, kind, field.encode_name, make)
        case inspect.AnyType() | inspect.RawType():
            yield "", lambda: {"text": "x" * size}


def _many_keys(item: inspect.Type, size: int) -> dict[str, Any]:
    return {f"{number:06d}.example.com/{'x' * 40}": lean(item) for number in range(size // 80)}


def _many_entries(item: inspect.Type, length: int, size: int) -> list[Any]:
    each = len(encode(numbered(item, 0, length))) + 1
    return [numbered(item, number, length) for number in range(size // each)]


def _under_a_key(make: Callable[[], Any]) -> dict[str, Any]:
    return {"key": make()}


def _alone_in_a_list(make: Callable[[], Any]) -> list[Any]:
    return [make()]


def _with_field(kind: inspect.StructType, name: str, make: Callable[[], Any]) -> dict[str, Any]:
    return {**lean(kind), name: make()}


def lean(kind: inspect.Type) -> Any:
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


def numbered(kind: inspect.Type, number: int, length: int) -> Any:
    """A short value, different from its neighbours if it has a text."""
    text = f"{number:06d}-{'x' * length}"
    match kind:
        case inspect.StrType():
            return text
        case inspect.StructType(fields=fields):
            texts = {it.encode_name: text for it in fields if isinstance(it.type, inspect.StrType)}
            return {**lean(kind), **texts}
    return lean(kind)
