"""The kinds of resource.k8s.io: versions, defaults, write rules, admin access."""

from __future__ import annotations

from typing import Any

import pytest
from bare_client import CLAIMS, DRA, NAMESPACES, PATCH, Client, Json, causes, claim, client_of
from dra_devcluster.apiserver import DevApiServer

SLICES = f"{DRA}/resourceslices"
CLASSES = f"{DRA}/deviceclasses"
RESULT = {"request": "gpu", "driver": "gpu.example.com", "pool": "p", "device": "gpu-0"}
ALLOCATION = {"devices": {"results": [RESULT]}}
CONSUMER = {"resource": "pods", "name": "p", "uid": "u1"}
ADMIN_REFUSAL = (
    "admin access to devices requires the `resource.kubernetes.io/admin-access: true` label on the containing namespace"
)


def resource_slice(name: str = "s", **spec: Any) -> Json:
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {"driver": "gpu.example.com", "pool": pool, "nodeName": "n", **spec},
    }


async def test_claims_are_filled_in_and_lose_the_status_of_the_client(client: Client) -> None:
    made = await client.post(CLAIMS, {**claim("c"), "status": {"allocation": ALLOCATION}})
    exactly = made["spec"]["devices"]["requests"][0]["exactly"]
    assert exactly == {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}
    assert made["status"] == {}


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
async def test_each_version_shows_the_same_claim_in_its_shape(client: Client, version: str) -> None:
    path = f"/apis/resource.k8s.io/{version}/namespaces/default/resourceclaims"
    request = {"deviceClassName": "gpu", "count": 2}
    body = {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": "ResourceClaim",
        "metadata": {"name": "c"},
        "spec": {
            "devices": {"requests": [{"name": "gpu", **(request if version == "v1beta1" else {"exactly": request})}]}
        },
    }
    await client.post(path, body)
    wanted = {**request, "allocationMode": "ExactCount"}
    assert (await client.get(f"{CLAIMS}/c"))["spec"]["devices"]["requests"][0]["exactly"] == wanted
    shown = await client.get(f"{path}/c")
    assert shown["apiVersion"] == f"resource.k8s.io/{version}"
    (listed,) = (await client.get(path))["items"]
    assert listed["spec"] == shown["spec"]
    async with client.watch(path) as watch:
        assert (await watch.next())[1]["spec"] == shown["spec"]
    labelled = await client.patch(f"{path}/c", {"metadata": {"labels": {"a": "b"}}})
    assert labelled["spec"] == shown["spec"]
    assert (await client.get(f"{CLAIMS}/c"))["metadata"]["labels"] == {"a": "b"}


async def test_devices_of_a_slice_have_a_basic_part_in_v1beta1(client: Client) -> None:
    device = {"name": "gpu-0", "attributes": {"model": {"string": "x"}}}
    await client.post(SLICES, resource_slice(devices=[device]))
    shown = await client.get("/apis/resource.k8s.io/v1beta1/resourceslices/s")
    assert shown["spec"]["devices"] == [{"name": "gpu-0", "basic": {"attributes": device["attributes"]}}]


async def test_slices_are_found_by_node_and_driver(client: Client) -> None:
    await client.post(SLICES, resource_slice("a"))
    await client.post(SLICES, resource_slice("b", nodeName="other"))
    listed = await client.get(SLICES, fieldSelector="spec.nodeName=n,spec.driver=gpu.example.com")
    assert [item["metadata"]["name"] for item in listed["items"]] == ["a"]
    await client.delete(SLICES, fieldSelector="spec.nodeName=other")
    assert [item["metadata"]["name"] for item in (await client.get(SLICES))["items"]] == ["a"]


@pytest.mark.parametrize(
    ("path", "body", "field", "reason"),
    [
        (CLAIMS, claim("c", deviceClassName=""), "spec.devices.requests[0].exactly.deviceClassName", "Required"),
        (CLAIMS, claim("c", count=-1), "spec.devices.requests[0].exactly.count", "Invalid"),
        (
            CLAIMS,
            claim("c", selectors=[{"cel": {"expression": "device.nothing"}}]),
            "spec.devices.requests[0].exactly.selectors[0].cel.expression",
            "Invalid",
        ),
        (
            CLASSES,
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "DeviceClass",
                "metadata": {"name": "c"},
                "spec": {"selectors": [{"cel": {"expression": "1 +"}}]},
            },
            "spec.selectors[0].cel.expression",
            "Invalid",
        ),
        (SLICES, resource_slice(allNodes=True), "spec", "Invalid"),
        (SLICES, resource_slice(devices=[{"name": "UP"}]), "spec.devices[0].name", "Invalid"),
    ],
)
async def test_what_the_specs_forbid_is_refused(client: Client, path: str, body: Json, field: str, reason: str) -> None:
    answer = await client.call("POST", path, body)
    assert answer.code == 422, answer.body
    assert causes(answer.json) == [(field, f"FieldValue{reason}")]


async def test_the_spec_of_a_claim_never_changes(client: Client) -> None:
    await client.post(CLAIMS, claim("c"))
    answer = await client.call("PATCH", f"{CLAIMS}/c", {"spec": {"devices": {"requests": []}}}, kind=PATCH["merge"])
    assert causes(answer.json) == [("spec", "FieldValueInvalid")]
    assert answer.message.startswith('ResourceClaim.resource.k8s.io "c" is invalid: spec: Invalid value: ')
    assert answer.message.endswith("field is immutable")


async def allocate(client: Client, **more: Any) -> Json:
    return await client.patch(f"{CLAIMS}/c/status", {"status": {"allocation": ALLOCATION, **more}})


async def test_an_allocation_can_be_made_and_taken_back_but_not_changed(client: Client) -> None:
    await client.post(CLAIMS, claim("c"))
    made = await allocate(client, reservedFor=[CONSUMER])
    assert made["status"]["allocation"] == ALLOCATION
    other = {"devices": {"results": [{**RESULT, "device": "gpu-1"}]}}
    answer = await client.call("PATCH", f"{CLAIMS}/c/status", {"status": {"allocation": other}}, kind=PATCH["merge"])
    assert ("status.allocation", "FieldValueInvalid") in causes(answer.json)
    freed = await client.patch(f"{CLAIMS}/c/status", {"status": {"allocation": None, "reservedFor": None}})
    assert not freed.get("status")


async def test_a_status_write_leaves_the_spec_and_a_spec_write_the_status(client: Client) -> None:
    made = await client.post(CLAIMS, claim("c"))
    await allocate(client)
    changed = await client.patch(f"{CLAIMS}/c", {"metadata": {"labels": {"a": "b"}}, "status": None})
    assert changed["status"]["allocation"] == ALLOCATION
    body = {**changed, "spec": {"devices": {}}, "metadata": {**changed["metadata"], "labels": {}}}
    after = await client.put(f"{CLAIMS}/c/status", body)
    assert after["spec"] == made["spec"]
    assert after["metadata"]["labels"] == {"a": "b"}


async def test_reports_of_devices_go_with_their_allocation(client: Client) -> None:
    await client.post(CLAIMS, claim("c"))
    report = {"driver": RESULT["driver"], "pool": "p", "device": "gpu-0", "data": {"x": 1}}
    made = await allocate(client, devices=[report])
    assert made["status"]["devices"] == [report]
    freed = await client.patch(f"{CLAIMS}/c/status", {"status": {"allocation": None}})
    assert "devices" not in freed.get("status", {})


async def test_consumers_are_merged_by_their_uid(client: Client) -> None:
    await client.post(CLAIMS, claim("c"))
    await allocate(client, reservedFor=[CONSUMER])
    second = {**CONSUMER, "name": "q", "uid": "u2"}
    both = await client.patch(f"{CLAIMS}/c/status", {"status": {"reservedFor": [second]}}, "strategic")
    assert {consumer["uid"] for consumer in both["status"]["reservedFor"]} == {"u1", "u2"}
    removal = {"status": {"reservedFor": [{"$patch": "delete", "uid": "u1"}]}}
    left = await client.patch(f"{CLAIMS}/c/status", removal, "strategic")
    assert left["status"]["reservedFor"] == [second]


@pytest.mark.parametrize(("label", "code"), [(None, 422), ("True", 422), ("true", 201)])
async def test_admin_access_needs_the_label_of_the_namespace(client: Client, label: str | None, code: int) -> None:
    if label:
        labels = {"resource.kubernetes.io/admin-access": label}
        await client.patch(f"{NAMESPACES}/default", {"metadata": {"labels": labels}})
    answer = await client.call("POST", CLAIMS, claim("c", adminAccess=True))
    assert answer.code == code
    if code == 422:
        assert causes(answer.json) == [("spec.devices.requests[0].adminAccess", "FieldValueForbidden")]
        assert answer.message.endswith(f"Forbidden: {ADMIN_REFUSAL}")


async def test_the_request_with_admin_access_is_named_beside_one_with_alternatives(client: Client) -> None:
    both = claim("c", adminAccess=True)
    alternative = {"name": "a", "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}
    both["spec"]["devices"]["requests"].insert(0, {"name": "first", "firstAvailable": [alternative]})
    answer = await client.call("POST", CLAIMS, both)
    assert causes(answer.json) == [("spec.devices.requests[1].adminAccess", "FieldValueForbidden")]


async def test_admin_access_cannot_be_granted_by_the_back_door(client: Client) -> None:
    await client.post(CLAIMS, claim("c"))
    status = {"allocation": {"devices": {"results": [{**RESULT, "adminAccess": True}]}}}
    answer = await client.call("PATCH", f"{CLAIMS}/c/status", {"status": status}, kind=PATCH["merge"])
    assert causes(answer.json) == [("status.allocation.devices.results[0].adminAccess", "FieldValueForbidden")]
    assert ADMIN_REFUSAL in answer.message


async def test_fields_of_features_that_are_off_are_dropped() -> None:
    tolerations = [{"key": "a", "operator": "Exists"}]
    async with DevApiServer(feature_gates={"DRADeviceTaints": False}) as server, client_of(server) as client:
        made = await client.post(CLAIMS, claim("c", tolerations=tolerations))
    assert "tolerations" not in made["spec"]["devices"]["requests"][0]["exactly"]


async def test_driver_names_in_upper_case_are_warned_of(client: Client) -> None:
    answer = await client.call("POST", SLICES, resource_slice(driver="GPU.example.com"))
    assert answer.code == 201
    assert "driver names should be lowercase" in answer.headers["Warning"]


@pytest.mark.rule("K37-TAINT-01", "K37-TAINT-06")
async def test_a_taint_rule_is_the_same_in_all_its_versions(client: Client) -> None:
    """Whatever version it was written in."""
    taint = {"key": "example.com/broken", "effect": "NoExecute"}
    versions = ("v1", "v1beta2", "v1alpha3")
    for version in versions:
        path = f"/apis/resource.k8s.io/{version}/devicetaintrules"
        made = await client.post(
            path,
            {
                "apiVersion": f"resource.k8s.io/{version}",
                "kind": "DeviceTaintRule",
                "metadata": {"name": version},
                "spec": {"deviceSelector": {"driver": "gpu.example.com"}, "taint": taint},
            },
        )
        assert made["spec"]["taint"]["timeAdded"]
        assert made["metadata"]["generation"] == 1
        for other in versions:
            read = await client.get(f"/apis/resource.k8s.io/{other}/devicetaintrules/{version}")
            assert (read["apiVersion"], read["spec"]) == (f"resource.k8s.io/{other}", made["spec"])
