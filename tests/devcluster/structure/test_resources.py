"""Which resources are served, and what definitions add."""

from __future__ import annotations

from typing import Any

import pytest
from dra_devcluster.apiserver.structure import Structure, decode


def definition(schema: dict[str, Any] | None = None, **version: Any) -> dict[str, Any]:
    made = {"name": "v1", "served": True, "storage": True, **version}
    if schema is not None:
        made["schema"] = {"openAPIV3Schema": schema}
    return {
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wg"]},
            "versions": [made],
        },
    }


def test_a_resource_is_found_by_its_plural_and_by_its_kind(structure: Structure) -> None:
    pods = structure.resource("", "v1", "pods")
    assert pods is not None
    assert pods is structure.by_kind("", "v1", "Pod")
    assert (pods.namespaced, pods.short_names, pods.api_version) == (True, ("po",), "v1")
    assert pods.subresources["status"].verbs == ("get", "patch", "update")


def test_group_resources_are_named_as_in_messages(structure: Structure) -> None:
    claims = structure.resource("resource.k8s.io", "v1", "resourceclaims")
    assert claims is not None
    assert claims.group_resource == "resourceclaims.resource.k8s.io"
    assert claims.api_version == "resource.k8s.io/v1"


def test_what_is_not_served_is_none(structure: Structure) -> None:
    assert structure.resource("", "v2", "pods") is None
    assert structure.by_kind("example.com", "v1", "Widget") is None


def test_kinds_without_resource_have_a_schema_too(structure: Structure) -> None:
    options = structure.schema("", "v1", "DeleteOptions")
    assert options is not None
    assert "gracePeriodSeconds" in options.properties


def test_every_served_kind_can_be_decoded(structure: Structure) -> None:
    for resource in structure.resources():
        obj = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": "a", "labels": None}}
        assert decode(resource.schema, obj) == [], resource.plural
        assert "labels" not in obj["metadata"], resource.plural


def test_a_definition_adds_a_resource_and_its_removal_takes_it_away() -> None:
    structure = Structure.load()
    crd = definition({"type": "object", "properties": {"spec": {"type": "object"}}}, subresources={"status": {}})
    structure.add_definition(crd)
    widgets = structure.resource("example.com", "v1", "widgets")
    assert widgets is not None
    assert (widgets.kind, widgets.singular, widgets.short_names) == ("Widget", "widget", ("wg",))
    assert set(widgets.subresources) == {"status"}
    structure.remove_definition(crd)
    assert structure.resource("example.com", "v1", "widgets") is None
    assert structure.by_kind("example.com", "v1", "Widget") is None


def test_a_definition_replaces_its_former_self() -> None:
    structure = Structure.load()
    structure.add_definition(definition({"type": "object"}, name="v1alpha1"))
    structure.add_definition(definition({"type": "object"}))
    assert structure.resource("example.com", "v1alpha1", "widgets") is None
    assert structure.resource("example.com", "v1", "widgets") is not None


@pytest.mark.parametrize("schema", [None, {}, {"x-kubernetes-preserve-unknown-fields": True}], ids=str)
def test_a_definition_may_say_next_to_nothing(schema: dict[str, Any] | None) -> None:
    structure = Structure.load()
    (widgets,) = structure.add_definition(definition(schema))
    obj = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}}
    assert decode(widgets.schema, obj) == []


def test_versions_that_are_not_served_are_not_added() -> None:
    structure = Structure.load()
    assert structure.add_definition(definition({"type": "object"}, served=False)) == []


def test_an_unreadable_schema_names_definition_and_version() -> None:
    structure = Structure.load()
    structure.add_definition(definition({"type": "object"}))
    with pytest.raises(ValueError, match=r"widgets\.example\.com, version v1"):
        structure.add_definition(definition({"type": "object", "properties": {"spec": "nonsense"}}))
    assert structure.resource("example.com", "v1", "widgets") is not None, "the old definition stays in force"
