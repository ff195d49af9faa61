"""The structs have exactly the fields that the API has: compared with the server's own description of it."""

from __future__ import annotations

import json
import re
import types
import typing
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from corpus import API_SCHEMA, needs_api_schema
from dra_api import core, meta, resource

KINDS = [
    ("resource.k8s.io_v1.json", resource.DeviceClass),
    ("resource.k8s.io_v1.json", resource.ResourceClaim),
    ("resource.k8s.io_v1.json", resource.ResourceClaimTemplate),
    ("resource.k8s.io_v1.json", resource.ResourceSlice),
    ("resource.k8s.io_v1beta2.json", resource.DeviceTaintRule),
    ("resource.k8s.io_v1alpha3.json", resource.ResourcePoolStatusRequest),
]
CORE = [
    struct
    for name, struct in sorted(vars(core).items())
    if isinstance(struct, type)
    and struct.__module__ == core.__name__
    and not name.startswith("PodGroup")  # of another API group
]
# of these we read a part only: metadata is common to all kinds
PARTIAL = {meta.ObjectMeta}


def structs_in(annotation: object) -> Iterator[type[msgspec.Struct]]:
    """The structs that a field's type is made of."""
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from structs_in(argument)


def resolve(schema: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    """The schema behind references, items of lists and values of maps."""
    while True:
        if "$ref" in schema:
            schema = schemas[schema["$ref"].rsplit("/", 1)[1]]
        elif "allOf" in schema:
            (schema,) = schema["allOf"]
        elif "items" in schema:
            schema = schema["items"]
        elif isinstance(schema.get("additionalProperties"), dict):
            schema = schema["additionalProperties"]
        else:
            return schema


def later(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """The fields of the part in 1.37, in as far as they say what is a list; 1.36 described the others."""
    found: dict[str, Any] = {}
    for file in ("resource.v1.json", "resource.v1alpha3.json", "core.v1.pod-dra.json"):
        for name, model in json.loads((API_SCHEMA / "1.37" / file).read_text()).items():
            if re.sub(r"^(Resource)?V1(alpha3)?", "", name) == struct.__name__:
                found |= {
                    field: {"type": "array"} if content["type"].startswith("List[") else {}
                    for field, content in model["fields"].items()
                }
    return found


def differences(
    struct: type[msgspec.Struct], schema: dict[str, Any], schemas: dict[str, Any], path: str
) -> Iterator[str]:
    described = later(struct) | resolve(schema, schemas).get("properties", {})
    ours = {field.encode_name: field for field in msgspec.structs.fields(struct)}
    if struct not in PARTIAL:
        yield from (f"{path}.{name}: not in our {struct.__name__}" for name in described.keys() - ours.keys())
    yield from (f"{path}.{name}: not in the API" for name in ours.keys() - described.keys())
    for name in ours.keys() & described.keys():
        annotation = ours[name].type
        optional = isinstance(annotation, types.UnionType) and type(None) in annotation.__args__
        is_list = described[name].get("type") == "array"
        if is_list and not (optional and "tuple" in str(annotation)):
            yield f"{path}.{name}: a list in the API, {annotation} here"
        for part in structs_in(annotation):
            yield from differences(part, described[name], schemas, f"{path}.{name}")


@needs_api_schema
@pytest.mark.parametrize(("file", "struct"), KINDS, ids=lambda value: getattr(value, "__name__", None))
def test_a_kind_has_the_fields_of_the_api(file: str, struct: type[msgspec.Struct]) -> None:
    schemas = json.loads((API_SCHEMA / file).read_text())
    (schema,) = (value for name, value in schemas.items() if name.endswith(f".{struct.__name__}"))
    assert sorted(differences(struct, schema, schemas, struct.__name__)) == []


@needs_api_schema
@pytest.mark.parametrize("struct", CORE, ids=lambda struct: struct.__name__)
def test_the_parts_of_core_kinds_that_we_read_exist(struct: type[msgspec.Struct]) -> None:
    schemas = json.loads((API_SCHEMA / "core_v1.json").read_text())
    described = "ResourceClaim" if struct is core.ContainerClaim else struct.__name__
    properties = schemas.get(f"io.k8s.api.core.v1.{described}", {}).get("properties", {})
    assert {field.encode_name for field in msgspec.structs.fields(struct)} <= {*properties, *later(struct)}
