"""Custom resources: pruning, defaults and validation by a structural schema."""

from __future__ import annotations

from typing import Any

import pytest
from dra_devcluster.apiserver.structure import Schema, Structure, decode, set_defaults, validate

SPEC: dict[str, Any] = {
    "type": "object",
    "required": ["size"],
    "properties": {
        "size": {"type": "integer", "minimum": 1, "maximum": 5},
        "mode": {"type": "string", "enum": ["fast", "slow"], "default": "slow"},
        "name": {"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 4},
        "ratio": {"type": "number"},
        "share": {"type": "number", "minimum": 0, "exclusiveMinimum": True, "maximum": 1, "exclusiveMaximum": True},
        "step": {"type": "integer", "multipleOf": 4},
        "tags": {"type": "array", "minItems": 2, "items": {"type": "string"}},
        "port": {"x-kubernetes-int-or-string": True},
        "target": {
            "type": "object",
            "properties": {"host": {"type": "string"}, "path": {"type": "string"}},
            "oneOf": [{"required": ["host"]}, {"required": ["path"]}],
        },
        "level": {"type": "integer", "anyOf": [{"maximum": 3}, {"minimum": 7}], "not": {"enum": [2]}},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "note": {"type": "string", "nullable": True, "default": "none"},
        "limits": {"type": "object", "additionalProperties": {"type": "integer"}},
        "parts": {
            "type": "array",
            "maxItems": 2,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["id"],
            "items": {
                "type": "object",
                "properties": {"id": {"type": "string"}, "n": {"type": "integer", "default": 7}},
            },
        },
    },
}


@pytest.fixture(scope="module")
def schema() -> Schema:
    structure = Structure.load()
    version = {
        "name": "v1",
        "served": True,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": SPEC}}},
    }
    names = {"plural": "widgets", "kind": "Widget"}
    spec = {"group": "example.com", "scope": "Cluster", "names": names, "versions": [version]}
    structure.add_definition({"metadata": {"name": "widgets.example.com"}, "spec": spec})
    found = structure.schema("example.com", "v1", "Widget")
    assert found is not None
    return found


def widget(**spec: Any) -> dict[str, Any]:
    return {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": spec}


def test_unknown_fields_are_pruned_except_where_preserved(schema: Schema) -> None:
    obj = widget(size=1, colour="red", free={"any": {"thing": 1}}, parts=[{"id": "a", "x": 1}])
    assert [p.path for p in decode(schema, obj)] == ["spec.colour", "spec.parts[0].x"]
    assert obj["spec"] == {"size": 1, "free": {"any": {"thing": 1}}, "parts": [{"id": "a"}]}


def test_defaults_fill_gaps_and_nulls_but_not_nullable_fields(schema: Schema) -> None:
    obj = widget(size=1, mode=None, note=None, parts=[{"id": "a"}])
    assert decode(schema, obj) == []
    set_defaults(schema, obj)
    assert obj["spec"] == {"size": 1, "mode": "slow", "note": None, "parts": [{"id": "a", "n": 7}]}


def test_defaults_are_not_shared_between_objects(schema: Schema) -> None:
    one, other = widget(size=1, parts=[{"id": "a"}]), widget(size=1, parts=[{"id": "a"}])
    set_defaults(schema, one)
    one["spec"]["parts"][0]["n"] = 8
    set_defaults(schema, other)
    assert other["spec"]["parts"][0]["n"] == 7


WRONG = {
    "a required field is missing": ({}, "spec.size", "Required value"),
    "a text is no number": (
        {"size": "big"},
        "spec.size",
        'Invalid value: "string": spec.size in body must be of type integer: "string"',
    ),
    "too small": ({"size": 0}, "spec.size", "Invalid value: 0: spec.size in body should be greater than or equal to 1"),
    "too big": ({"size": 6}, "spec.size", "Invalid value: 6: spec.size in body should be less than or equal to 5"),
    "at the lower bound that is not in": (
        {"size": 1, "share": 0},
        "spec.share",
        "Invalid value: 0: spec.share in body should be greater than 0",
    ),
    "at the upper bound that is not in": (
        {"size": 1, "share": 1},
        "spec.share",
        "Invalid value: 1: spec.share in body should be less than 1",
    ),
    "between two steps": (
        {"size": 1, "step": 6},
        "spec.step",
        "Invalid value: 6: spec.step in body should be a multiple of 4",
    ),
    "too few items": (
        {"size": 1, "tags": ["a"]},
        "spec.tags",
        'Invalid value: ["a"]: spec.tags in body should have at least 2 items',
    ),
    "not among the values": (
        {"size": 1, "mode": "odd"},
        "spec.mode",
        'Unsupported value: "odd": supported values: "fast", "slow"',
    ),
    "against the pattern": (
        {"size": 1, "name": "ABC"},
        "spec.name",
        "Invalid value: \"ABC\": spec.name in body should match '^[a-z]+$'",
    ),
    "too short": (
        {"size": 1, "name": "a"},
        "spec.name",
        'Invalid value: "a": spec.name in body should be at least 2 chars long',
    ),
    "too long": ({"size": 1, "name": "abcde"}, "spec.name", "Too long: may not be more than 4 bytes"),
    "too many items": (
        {"size": 1, "parts": [{"id": "a"}, {"id": "b"}, {"id": "c"}]},
        "spec.parts",
        "Too many: 3: must have at most 2 items",
    ),
    "two items with one key": (
        {"size": 1, "parts": [{"id": "a"}, {"id": "a"}]},
        "spec.parts[1]",
        'Duplicate value: {"id":"a"}',
    ),
    "neither number nor text": (
        {"size": 1, "port": True},
        "spec.port",
        'Invalid value: "boolean": spec.port in body must be of type integer,string: "boolean"',
    ),
    "none of the alternatives": (
        {"size": 1, "level": 5},
        "spec.level",
        "Invalid value: 5: spec.level in body must validate at least one schema (anyOf)",
    ),
    "what must not be": (
        {"size": 1, "level": 2},
        "spec.level",
        "Invalid value: 2: spec.level in body must not validate the schema (not)",
    ),
    "two alternatives at once": (
        {"size": 1, "target": {"host": "h", "path": "p"}},
        "spec.target",
        'Invalid value: {"host":"h","path":"p"}: spec.target in body must validate one and only one schema (oneOf)',
    ),
    "a wrong value in a map": (
        {"size": 1, "limits": {"a": "x"}},
        "spec.limits.a",
        'Invalid value: "string": spec.limits.a in body must be of type integer: "string"',
    ),
}


@pytest.mark.parametrize(("spec", "field", "message"), WRONG.values(), ids=WRONG)
def test_violations_carry_field_and_text(schema: Schema, spec: dict[str, Any], field: str, message: str) -> None:
    obj = widget(**spec)
    assert decode(schema, obj) == []
    set_defaults(schema, obj)
    assert [(fault.field, fault.body) for fault in validate(schema, obj)] == [(field, message)]


def test_a_sound_resource_has_no_fault(schema: Schema) -> None:
    obj = widget(
        size=5,
        name="abcd",
        ratio=1,
        share=0.5,
        step=8,
        tags=["a", "b"],
        port="http",
        limits={"a": 1},
        note=None,
        level=8,
        target={"host": "h"},
        parts=[{"id": "a"}, {"id": "b"}],
    )
    set_defaults(schema, obj)
    assert validate(schema, obj) == []
