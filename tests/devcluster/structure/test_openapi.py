"""The documents that kubectl explains, validates and patches by."""

from __future__ import annotations

import json
from typing import Any

from dra_devcluster.apiserver import documents
from dra_devcluster.apiserver.structure import Structure

WIDGETS: dict[str, Any] = {
    "metadata": {"name": "widgets.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "widgets", "kind": "Widget"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object"}}}},
            }
        ],
    },
}


def test_every_reference_leads_to_a_schema_of_the_same_document(structure: Structure) -> None:
    for path in documents.v3_index(structure)["paths"]:
        group, version = path.split("/")[1:] if path.startswith("apis/") else ("", path.split("/")[1])
        document = documents.v3_document(structure, group, version)
        assert document is not None
        schemas = document["components"]["schemas"]
        text = json.dumps(document)
        references = {part.split('"')[0] for part in text.split('"#/components/schemas/')[1:]}
        assert references <= set(schemas), path


def test_paths_tell_the_kind_and_that_the_server_validates(structure: Structure) -> None:
    document = documents.v3_document(structure, "resource.k8s.io", "v1")
    assert document is not None
    claim = document["paths"]["/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}"]
    assert claim["get"]["x-kubernetes-group-version-kind"]["kind"] == "ResourceClaim"
    assert "fieldValidation" in {parameter["name"] for parameter in claim["patch"]["parameters"]}
    assert "application/strategic-merge-patch+json" in claim["patch"]["requestBody"]["content"]


def test_the_main_fields_are_explained(structure: Structure) -> None:
    document = documents.v3_document(structure, "resource.k8s.io", "v1")
    assert document is not None
    for name, schema in document["components"]["schemas"].items():
        if ".resource.v1.Device" in name or ".resource.v1.ResourceClaim" in name:
            assert name.endswith("List") or schema.get("description"), name


def test_definitions_appear_and_change_the_digest() -> None:
    structure = Structure.load()
    before = documents.v3_index(structure)["paths"]
    structure.add_definition(WIDGETS)
    after = documents.v3_index(structure)["paths"]
    assert set(after) - set(before) == {"apis/example.com/v1"}
    assert all(after[path] == url for path, url in before.items()), "other documents stay cached"
    document = documents.v3_document(structure, "example.com", "v1")
    assert document is not None
    widget = document["components"]["schemas"]["com.example.v1.Widget"]
    assert set(widget["properties"]) == {"apiVersion", "kind", "metadata", "spec"}
    patch = document["paths"]["/apis/example.com/v1/namespaces/{namespace}/widgets/{name}"]["patch"]
    assert "application/strategic-merge-patch+json" not in patch["requestBody"]["content"]


def test_every_served_kind_can_be_found_in_its_document(structure: Structure) -> None:
    for resource in structure.resources():
        document = documents.v3_document(structure, resource.group, resource.version)
        assert document is not None
        schemas = document["components"]["schemas"].values()
        kinds = {gvk["kind"] for schema in schemas for gvk in schema.get("x-kubernetes-group-version-kind", ())}
        assert resource.kind in kinds


def test_what_is_not_served_has_no_document(structure: Structure) -> None:
    assert documents.v3_document(structure, "example.com", "v1") is None


def test_version_2_holds_all_definitions(structure: Structure) -> None:
    document = documents.v2_document(structure)
    assert "io.k8s.api.core.v1.Pod" in document["definitions"]
    assert "#/components/" not in json.dumps(document)
