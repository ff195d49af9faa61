"""Kinds that are defined at run time."""

from __future__ import annotations

from typing import Any

import pytest
from bare_client import PATCH, Client, Json, causes

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WIDGETS = "/apis/example.com/v1/namespaces/default/widgets"


def definition(**version: Any) -> Json:
    spec = {
        "type": "object",
        "required": ["size"],
        "properties": {"size": {"type": "integer", "minimum": 1}, "color": {"type": "string", "default": "red"}},
    }
    status = {"type": "object", "properties": {"replicas": {"type": "integer"}, "phase": {"type": "string"}}}
    schema = {"type": "object", "properties": {"spec": spec, "status": status}}
    served = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}, **version}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"]},
            "versions": [served],
        },
    }


def widget(name: str = "w", **spec: Any) -> Json:
    return {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": {"size": 1, **spec}}


async def test_a_definition_is_served_at_once(client: Client) -> None:
    made = await client.post(DEFINITIONS, definition())
    conditions = {entry["type"]: entry["status"] for entry in made["status"]["conditions"]}
    assert conditions == {"NamesAccepted": "True", "Established": "True"}
    assert made["spec"]["names"]["singular"] == "widget"
    assert made["status"]["storedVersions"] == ["v1"]
    listed = await client.get("/apis/example.com/v1")
    assert [line["name"] for line in listed["resources"]] == ["widgets"]
    created = await client.post(WIDGETS, widget())
    assert created["spec"] == {"size": 1, "color": "red"}
    assert created["metadata"]["generation"] == 1
    (item,) = (await client.get(WIDGETS))["items"]
    assert (item["kind"], item["apiVersion"]) == ("Widget", "example.com/v1")


@pytest.mark.parametrize(
    ("spec", "field", "reason"),
    [
        ({"size": 0}, "spec.size", "FieldValueInvalid"),
        ({"size": "big"}, "spec.size", "FieldValueTypeInvalid"),
        ({"size": None}, "spec.size", "FieldValueRequired"),
    ],
)
async def test_objects_must_fit_the_schema(client: Client, spec: Json, field: str, reason: str) -> None:
    await client.post(DEFINITIONS, definition())
    answer = await client.call("POST", WIDGETS, widget(**spec))
    assert answer.code == 422
    assert causes(answer.json) == [(field, reason)]


async def test_unknown_fields_are_pruned(client: Client) -> None:
    await client.post(DEFINITIONS, definition())
    answer = await client.call("POST", WIDGETS, widget(weight=3))
    assert "weight" not in answer.json["spec"]
    assert "spec.weight" in answer.headers["Warning"]


async def test_the_status_has_a_door_of_its_own_when_the_definition_says_so(client: Client) -> None:
    await client.post(DEFINITIONS, definition(subresources={"status": {}}))
    made = await client.post(WIDGETS, {**widget(), "status": {"phase": "mine"}})
    assert "status" not in made
    changed = await client.patch(f"{WIDGETS}/w/status", {"status": {"phase": "ok"}, "spec": {"size": 5}})
    assert (changed["status"], changed["spec"]["size"]) == ({"phase": "ok"}, 1)
    assert changed["metadata"]["generation"] == 1
    await client.patch(f"{WIDGETS}/w", {"spec": {"size": 5}})
    assert (await client.get(f"{WIDGETS}/w"))["metadata"]["generation"] == 2


async def test_without_that_there_is_one_door_only(client: Client) -> None:
    await client.post(DEFINITIONS, definition())
    made = await client.post(WIDGETS, {**widget(), "status": {"phase": "mine"}})
    assert made["status"] == {"phase": "mine"}
    assert await client.code(f"{WIDGETS}/w/status") == 404


async def test_scale_follows_the_paths_of_the_definition(client: Client) -> None:
    paths = {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.replicas"}
    await client.post(DEFINITIONS, definition(subresources={"status": {}, "scale": paths}))
    await client.post(WIDGETS, widget())
    scaled = await client.patch(f"{WIDGETS}/w/scale", {"spec": {"replicas": 4}})
    assert (scaled["kind"], scaled["spec"], scaled["status"]) == ("Scale", {"replicas": 4}, {"replicas": 0})
    assert (await client.get(f"{WIDGETS}/w"))["spec"]["size"] == 4


async def test_columns_and_selectable_fields_come_from_the_definition(client: Client) -> None:
    columns = [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}]
    body = definition(additionalPrinterColumns=columns, selectableFields=[{"jsonPath": ".spec.color"}])
    await client.post(DEFINITIONS, body)
    await client.post(WIDGETS, widget("a"))
    await client.post(WIDGETS, widget("b", color="blue", size=2))
    table = await client.get(
        WIDGETS, accept="application/json;as=Table;v=v1;g=meta.k8s.io", fieldSelector="spec.color=blue"
    )
    assert [row["cells"][:2] for row in table["rows"]] == [["b", 2]]


async def test_selectable_fields_are_those_of_the_version_that_is_listed(client: Client) -> None:
    body = definition(selectableFields=[{"jsonPath": ".spec.color"}])
    (first,) = body["spec"]["versions"]
    body["spec"]["versions"].append(
        {**first, "name": "v2", "storage": False, "selectableFields": [{"jsonPath": ".spec.size"}]}
    )
    await client.post(DEFINITIONS, body)
    await client.post(WIDGETS, widget("a"))
    await client.post(WIDGETS, widget("b", size=2))
    second = WIDGETS.replace("/v1/", "/v2/")
    listed = await client.get(second, fieldSelector="spec.size=2")
    assert [item["metadata"]["name"] for item in listed["items"]] == ["b"]
    assert (await client.call("GET", second, fieldSelector="spec.color=red")).code == 400


async def test_a_changed_definition_holds_from_then_on(client: Client) -> None:
    await client.post(DEFINITIONS, definition())
    body = definition()
    size = body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["size"]
    size["minimum"] = 10
    await client.patch(f"{DEFINITIONS}/widgets.example.com", body)
    assert (await client.call("POST", WIDGETS, widget(size=5))).code == 422


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"metadata": {"name": "other.example.com"}}, "metadata.name"),
        ({"spec": {"scope": "Galaxy"}}, "spec.scope"),
        ({"spec": {"group": ""}}, "spec.group"),
        ({"spec": {"versions": []}}, "spec.versions"),
        (
            {"spec": {"versions": [{"name": "v1", "served": True, "storage": True}]}},
            "spec.versions[0].schema.openAPIV3Schema",
        ),
    ],
)
async def test_definitions_that_cannot_be_served(client: Client, change: Json, field: str) -> None:
    body = definition()
    for part, values in change.items():
        body[part] = {**body[part], **values}
    answer = await client.call("POST", DEFINITIONS, body)
    assert answer.code == 422, answer.body
    assert field in [path for path, _ in causes(answer.json)]


async def test_with_the_definition_its_objects_go(client: Client) -> None:
    await client.post(DEFINITIONS, definition())
    held = widget()
    held["metadata"]["finalizers"] = ["example.com/hold"]
    await client.post(WIDGETS, held)
    async with client.watch(WIDGETS) as watch:
        assert await watch.names(1) == [("ADDED", "w")]
        await client.delete(f"{DEFINITIONS}/widgets.example.com")
        await client.until(f"{WIDGETS}/w", lambda answer: "deletionTimestamp" in answer.json["metadata"])
        await client.patch(f"{WIDGETS}/w", {"metadata": {"finalizers": None}})
        await client.gone(f"{DEFINITIONS}/widgets.example.com")
        kinds = [(await watch.next())[0] for _ in range(2)]
        assert kinds == ["MODIFIED", "DELETED"]
        assert await watch.is_over()
    assert await client.code(WIDGETS) == 404


async def test_strategic_patches_are_not_for_custom_resources(client: Client) -> None:
    await client.post(DEFINITIONS, definition())
    await client.post(WIDGETS, widget())
    answer = await client.call("PATCH", f"{WIDGETS}/w", {}, kind=PATCH["strategic"])
    assert answer.code == 415
