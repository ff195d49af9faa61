"""Patches in their four formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bare_client import CONFIG_MAPS, PATCH, PODS, Client, Json, causes, config_map, pod
from rbac_cases import SERVERS, rbac_server


@pytest.mark.parametrize(
    ("how", "patch", "expected"),
    [
        ("merge", {"data": {"a": None, "c": "d"}}, {"c": "d"}),
        ("strategic", {"data": {"a": None, "c": "d"}}, {"c": "d"}),
        ("json", [{"op": "replace", "path": "/data/a", "value": "z"}], {"a": "z"}),
        ("json", [{"op": "test", "path": "/data/a", "value": "b"}, {"op": "remove", "path": "/data/a"}], None),
    ],
)
async def test_patches_change_what_they_say(
    client: Client, how: str, patch: Json | list[Json], expected: Json | None
) -> None:
    await client.post(CONFIG_MAPS, config_map("a"))
    changed = await client.patch(f"{CONFIG_MAPS}/a", patch, how)
    assert changed.get("data") == expected  # what is empty is not kept
    assert await client.get(f"{CONFIG_MAPS}/a") == changed


async def test_strategic_patches_merge_lists_by_their_keys(client: Client) -> None:
    await client.post(PODS, pod("p"))
    changed = await client.patch(
        f"{PODS}/p", {"spec": {"containers": [{"name": "main", "image": "other"}]}}, "strategic"
    )
    (container,) = changed["spec"]["containers"]
    assert container["image"] == "other"
    assert container["imagePullPolicy"]


async def test_a_patch_may_name_the_version_that_it_is_for(client: Client) -> None:
    made = await client.post(CONFIG_MAPS, config_map("a"))
    patch = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}, "data": {"a": "1"}}
    await client.patch(f"{CONFIG_MAPS}/a", patch)
    answer = await client.call("PATCH", f"{CONFIG_MAPS}/a", patch, kind=PATCH["merge"])
    assert (answer.code, answer.reason) == (409, "Conflict")


@pytest.mark.parametrize(
    ("how", "patch", "code"),
    [
        ("json", [{"op": "test", "path": "/data/a", "value": "other"}], 422),
        ("json", [{"op": "remove", "path": "/data/missing"}], 422),
        ("json", [{"op": "dance", "path": "/data"}], 422),
        ("json", {"op": "add"}, 400),
        ("json", [{"op": "replace", "path": "", "value": []}], 400),
        ("merge", [], 400),
        ("merge", 7, 400),
        ("merge", {"data": "text"}, 422),
        ("merge", {"kind": "Secret"}, 422),
        ("merge", {"metadata": "text"}, 422),
        ("merge", {"metadata": {"name": "b"}}, 400),
        ("strategic", "text", 400),
        ("strategic", {"$patch": "dance"}, 400),
    ],
)
async def test_patches_that_cannot_be_applied(client: Client, how: str, patch: object, code: int) -> None:
    made = await client.post(CONFIG_MAPS, config_map("a"))
    answer = await client.call("PATCH", f"{CONFIG_MAPS}/a", patch, kind=PATCH[how])
    assert answer.code == code, answer.body
    assert answer.json["kind"] == "Status"
    assert await client.get(f"{CONFIG_MAPS}/a") == made


async def test_an_unknown_patch_format_is_named_with_those_that_are_known(client: Client) -> None:
    await client.post(CONFIG_MAPS, config_map("a"))
    answer = await client.call("PATCH", f"{CONFIG_MAPS}/a", {}, kind="application/json")
    assert answer.code == 415
    assert "application/merge-patch+json" in answer.message


def applied(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


async def test_server_side_apply_creates_and_remembers_who_wants_what(client: Client) -> None:
    path = f"{CONFIG_MAPS}/a"
    answer = await client.call("PATCH", path, applied("a", x="1"), kind=PATCH["apply"], fieldManager="one")
    assert answer.code == 201
    changed = await client.patch(path, applied("a", y="2"), "apply", fieldManager="two")
    assert changed["data"] == {"x": "1", "y": "2"}
    assert {entry["manager"] for entry in changed["metadata"]["managedFields"]} == {"one", "two"}
    left = await client.patch(path, applied("a"), "apply", fieldManager="one")
    assert left["data"] == {"y": "2"}


async def test_server_side_apply_conflicts_over_fields_of_others(client: Client) -> None:
    path = f"{CONFIG_MAPS}/a"
    await client.patch(path, applied("a", x="1"), "apply", fieldManager="one")
    answer = await client.call("PATCH", path, applied("a", x="2"), kind=PATCH["apply"], fieldManager="two")
    assert (answer.code, answer.reason) == (409, "Conflict")
    assert answer.message == 'Apply failed with 1 conflict: conflict with "one": .data.x'
    assert answer.json["details"]["causes"] == [
        {"reason": "FieldManagerConflict", "message": 'conflict with "one"', "field": ".data.x"}
    ]
    forced = await client.patch(path, applied("a", x="2"), "apply", fieldManager="two", force="true")
    assert forced["data"] == {"x": "2"}


async def test_an_update_takes_the_fields_that_it_changes(client: Client) -> None:
    path = f"{CONFIG_MAPS}/a"
    made = await client.patch(path, applied("a", x="1"), "apply", fieldManager="one")
    changed = await client.put(path, {**made, "data": {"x": "2"}}, fieldManager="two")
    owners = {entry["manager"]: entry["operation"] for entry in changed["metadata"]["managedFields"]}
    assert owners["two"] == "Update"
    answer = await client.call("PATCH", path, applied("a", x="3"), kind=PATCH["apply"], fieldManager="one")
    assert 'conflict with "two"' in answer.message


async def test_force_is_for_apply_only(client: Client) -> None:
    await client.post(CONFIG_MAPS, config_map("a"))
    answer = await client.call("PATCH", f"{CONFIG_MAPS}/a", {}, kind=PATCH["merge"], force="true")
    assert answer.message == (
        'PatchOptions.meta.k8s.io "" is invalid: force: Forbidden: may not be specified for non-apply patch'
    )
    body = applied("a")
    answer = await client.call("PATCH", f"{CONFIG_MAPS}/a", body, kind=PATCH["apply"])
    assert causes(answer.json) == [("fieldManager", "FieldValueRequired")]


async def test_writes_to_the_status_are_tracked_apart(client: Client) -> None:
    await client.post(PODS, pod("p"))
    changed = await client.patch(f"{PODS}/p/status", {"status": {"phase": "Running"}}, fieldManager="node")
    entry = next(entry for entry in changed["metadata"]["managedFields"] if entry["manager"] == "node")
    assert entry["subresource"] == "status"
    assert entry["fieldsV1"] == {"f:status": {"f:phase": {}}}


@pytest.mark.parametrize("how", ["apply", "merge", "strategic"])
@pytest.mark.parametrize("data", [{"a": "b"}, {"a": "c"}], ids=["nothing new", "a change"])
async def test_a_patch_that_names_another_uid_is_refused(client: Client, how: str, data: Json) -> None:
    await client.post(CONFIG_MAPS, config_map("a"))
    body = applied("a") | {"metadata": {"name": "a", "uid": "other"}, "data": data}
    query = {"fieldManager": "one", "force": "true"} if how == "apply" else {}
    answer = await client.call("PATCH", f"{CONFIG_MAPS}/a", body, kind=PATCH[how], **query)
    assert (answer.code, answer.reason) == (422, "Invalid")
    assert answer.message == 'ConfigMap "a" is invalid: metadata.uid: Invalid value: "other": field is immutable'


async def test_an_apply_that_names_a_uid_makes_no_new_object(client: Client) -> None:
    body = applied("a") | {"metadata": {"name": "a", "uid": "other"}}
    answer = await client.call("PATCH", f"{CONFIG_MAPS}/a", body, kind=PATCH["apply"], fieldManager="one")
    assert (answer.code, answer.reason) == (409, "Conflict")
    assert answer.message.endswith("the provided object specified uid other, and no existing object was found")
    assert await client.code(f"{CONFIG_MAPS}/a") == 404


@pytest.mark.parametrize("kind", SERVERS)
async def test_a_json_patch_sees_null_where_an_object_has_no_member(kind: str, tmp_path: Path) -> None:
    path, missing = f"{CONFIG_MAPS}/a", {"path": "/data/x"}
    accepted: list[tuple[Json, Json]] = [
        ({"op": "test", **missing, "value": None}, {"a": "b"}),
        ({"op": "test", **missing}, {"a": "b"}),
        ({"op": "replace", **missing, "value": "y"}, {"a": "b", "x": "y"}),
        ({"op": "add", **missing}, {"a": "b", "x": ""}),
        ({"op": "copy", "from": "/data/none", **missing}, {"a": "b", "x": ""}),
    ]
    refused: list[Json] = [
        {"op": "test", **missing, "value": "y"},
        {"op": "test", "path": "/none/x", "value": None},
        {"op": "replace", "path": "/none/x", "value": "y"},
        {"op": "move", "from": "/data/none", **missing},
        {"op": "remove", **missing},
    ]
    async with rbac_server(kind, tmp_path) as client:
        await client.post(CONFIG_MAPS, config_map("a"))
        for operation, data in accepted:
            assert (await client.patch(path, [operation], "json", dryRun="All"))["data"] == data
        for operation in refused:
            assert (await client.call("PATCH", path, [operation], kind=PATCH["json"])).code == 422
        assert (await client.patch(path, b"null", "json"))["data"] == {"a": "b"}


@pytest.mark.parametrize("kind", SERVERS)
async def test_what_a_patch_makes_has_a_name(kind: str, tmp_path: Path) -> None:
    nameless: list[tuple[str, str, Any]] = [
        ("a", "merge", {"metadata": None}),
        ("a", "strategic", {"metadata": None}),
        ("a", "json", [{"op": "remove", "path": "/metadata/name"}]),
        ("new", "apply", {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "new"}}),
    ]
    async with rbac_server(kind, tmp_path) as client:
        await client.post(CONFIG_MAPS, config_map("a"))
        for name, how, patch in nameless:
            query = {"fieldManager": "m"} if how == "apply" else {}
            answer = await client.call("PATCH", f"{CONFIG_MAPS}/{name}", patch, kind=PATCH[how], **query)
            said = f"the name of the object ({name} based on URL) was undeterminable: name must be provided"
            assert (answer.code, answer.message) == (400, said)


async def test_an_applied_configuration_says_what_it_is(client: Client) -> None:
    good = applied("a", x="1")
    for change, message in (
        ({"apiVersion": ""}, "an applied configuration needs apiVersion and kind"),
        ({"kind": ""}, "an applied configuration needs apiVersion and kind"),
        ({"metadata": {"name": "b"}}, "the name of the object (b) does not match the name on the URL (a)"),
        ({"metadata": {"name": "a", "managedFields": [{"manager": "m"}]}}, "metadata.managedFields must be nil"),
    ):
        answer = await client.call(
            "PATCH", f"{CONFIG_MAPS}/a", {**good, **change}, kind=PATCH["apply"], fieldManager="one"
        )
        assert (change, answer.code, answer.message) == (change, 400, message)
