"""The development server's schemas are what the generator makes from the documents of a release."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import generate_schema
import pytest
from generate_schema import SCHEMA, components, discovery, messages

Json = dict[str, Any]
REF = "#/components/schemas/"
WIDGET = {
    "description": "A widget.",
    "properties": {
        "spec": {"allOf": [{"$ref": f"{REF}io.example.v1.WidgetSpec"}], "default": {}, "description": "What it is."},
        "apiVersion": {"description": "Its version.", "type": "string"},
    },
    "required": ["spec"],
    "type": "object",
    "x-kubernetes-group-version-kind": [{"group": "example.com", "kind": "Widget", "version": "v1"}],
}
SPEC = {
    "properties": {
        "mode": {"default": "", "description": "How.", "type": "string"},
        "parts": {
            "items": {"allOf": [{"$ref": f"{REF}io.example.v1.Part"}], "default": {}},
            "type": "array",
            "x-kubernetes-list-type": "atomic",
        },
        "sizes": {"additionalProperties": {"default": "", "type": "string"}, "type": "object"},
        "since": {"allOf": [{"$ref": f"{REF}io.example.v1.Part"}], "description": "Another part."},
        "description": {"description": "A field that is called so.", "type": "string"},
    },
    "type": "object",
}
PUBLISHED = {
    "io.example.v1.Widget": WIDGET,
    "io.example.v1.WidgetSpec": SPEC,
    "io.example.v1.Part": {"type": "object"},
    "io.example.v1.Stranger": {"type": "object"},
}
ANSWER: Json = {
    "io.example.v1.Part": {"type": "object"},
    "io.example.v1.Widget": {
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "spec": {"default": {}, "allOf": [{"$ref": f"{REF}io.example.v1.WidgetSpec"}]},
        },
        "x-kubernetes-group-version-kind": [{"group": "example.com", "kind": "Widget", "version": "v1"}],
    },
    "io.example.v1.WidgetSpec": {
        "type": "object",
        "properties": {
            "description": {"type": "string"},
            "mode": {"type": "string", "default": ""},
            "parts": {
                "type": "array",
                "items": {"$ref": f"{REF}io.example.v1.Part"},
                "x-kubernetes-list-type": "atomic",
            },
            "since": {"$ref": f"{REF}io.example.v1.Part"},
            "sizes": {"type": "object", "additionalProperties": {"type": "string"}},
        },
    },
}
PROTO = """
package k8s.io.api.example.v1;

// A widget.
message Widget {
  optional .k8s.io.apimachinery.pkg.apis.meta.v1.ObjectMeta metadata = 1;

  // Text; with a brace {
  optional string className = 2;

  optional bool isHidden = 3;

  repeated Part parts = 4;

  map<string, Part> named = 5;

  optional Part rest = 6;

  optional string uID = 7;
}

message Part {
  optional int64 size = 1;
}
"""
TYPES = """
type Widget struct {
	metav1.ObjectMeta `json:"metadata,omitempty" protobuf:"bytes,1,opt,name=metadata"`
	// Text.
	ClassName string `json:"className" protobuf:"bytes,2,opt,name=className"`
	IsHidden *bool `json:"isHidden,omitempty" protobuf:"varint,3,opt,name=isHidden"`
	Parts []Part `json:"parts" protobuf:"bytes,4,rep,name=parts"`
	Named map[string]Part `json:"named,omitempty" protobuf:"bytes,5,rep,name=named"`
	Part `json:",inline" protobuf:"bytes,6,opt,name=rest"`
	UID types.UID `json:"uid,omitempty" protobuf:"bytes,7,opt,name=uID"`
}

type Part struct {
	Size int64 `json:"size,omitempty" protobuf:"varint,1,opt,name=size"`
}
"""


def shipped(name: str) -> Any:
    return json.loads((SCHEMA / name).read_text())


def test_a_kind_is_taken_over_with_what_it_refers_to_and_without_prose() -> None:
    made = components([{"components": {"schemas": PUBLISHED}}], {}, ["example.com/v1/Widget"])
    assert json.dumps(made) == json.dumps(ANSWER)  # the order counts: a change is to be readable


def test_enumerations_stay_where_the_documents_have_none() -> None:
    old = json.loads(json.dumps(ANSWER))
    old["io.example.v1.WidgetSpec"]["properties"]["mode"]["enum"] = ["Fast", "Slow"]
    made = components([{"components": {"schemas": PUBLISHED}}], old, [])
    assert made == old


def test_a_kind_that_a_release_no_longer_has_goes() -> None:
    made = components([{"components": {"schemas": {}}}], ANSWER, [])
    assert made == {}


def test_the_shipped_components_are_what_the_generator_makes() -> None:
    old = shipped("components.json")
    made = components([{"components": {"schemas": old}}], old, [])
    assert json.dumps(made) == json.dumps(old)


def test_a_line_of_discovery_follows_from_the_list_of_resources() -> None:
    widget = {"name": "widgets", "singularName": "widget", "namespaced": False, "kind": "Widget"}
    resources = [
        {**widget, "shortNames": ["wi"], "verbs": ["create", "list"]},
        {**widget, "name": "widgets/status", "verbs": ["get", "update"]},
        {**widget, "name": "widgets/scale", "kind": "Scale", "verbs": ["get"]},
        {**widget, "name": "widgetsets", "verbs": ["get"]},
    ]
    lists = [{"kind": "APIResourceList", "groupVersion": "example.com/v1", "resources": resources}]
    (line,) = discovery(lists, [{"group": "example.com", "version": "v1", "resource": "widgets"}], [])
    assert line == {
        "group": "example.com",
        "version": "v1",
        "resource": "widgets",
        "kind": "Widget",
        "scope": "Cluster",
        "singular": "widget",
        "shortNames": ["wi"],
        "categories": [],
        "verbs": ["create", "list"],
        "subresources": [
            {"name": "scale", "verbs": ["get"], "kind": "Scale"},
            {"name": "status", "verbs": ["get", "update"], "kind": "Widget"},
        ],
    }
    assert [each["resource"] for each in discovery(lists, [], ["example.com/v1/Widget"])] == ["widgets", "widgetsets"]


@pytest.mark.parametrize("options", [",inline", ""], ids=["up to 1.36", "from 1.37 on"])
def test_numbers_and_names_of_protobuf_fields_follow_from_the_go_packages(tmp_path: Path, options: str) -> None:
    (tmp_path / "generated.proto").write_text(PROTO)
    (tmp_path / "types.go").write_text(TYPES.replace(",inline", options))
    made = messages([tmp_path], {}, ["example.com/v1/Widget"])
    part = "k8s.io.api.example.v1.Part"
    assert made == {
        part: {"1": ["size", "int64"]},
        "k8s.io.api.example.v1.Widget": {
            "1": ["metadata", "k8s.io.apimachinery.pkg.apis.meta.v1.ObjectMeta"],
            "2": ["className", "string!"],
            "3": ["isHidden", "bool!"],
            "4": ["parts", part, "list"],
            "5": ["named", part, "map"],
            "6": ["", part],
            "7": ["uid", "string"],
        },
    }


@pytest.mark.parametrize("name", ["components.json", "discovery.json", "protobuf.json"])
def test_a_file_is_written_as_it_is_shipped(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, content = (SCHEMA / name).read_text(), shipped(name)
    monkeypatch.setattr(generate_schema, "SCHEMA", tmp_path)
    generate_schema.write(name, content)
    assert (tmp_path / name).read_text() == before
