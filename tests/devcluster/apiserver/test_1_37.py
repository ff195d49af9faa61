"""What the API does from 1.37 on: selectors of slices, records in pods, admission by what nodes declare."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from bare_client import Client, Json, client_of
from dra_api.releases import Release
from dra_devcluster.apiserver import DevApiServer

GROUP = "/apis/resource.k8s.io"
SLICES = f"{GROUP}/v1/resourceslices"
PODS = "/api/v1/namespaces/default/pods"
FEATURE = "DRANodeAllocatableResources"


@pytest.fixture
async def new() -> AsyncIterator[Client]:
    async with DevApiServer(release=Release.V1_37) as server, client_of(server) as client:
        yield client


@pytest.fixture
async def old() -> AsyncIterator[Client]:
    async with DevApiServer(release=Release.V1_36) as server, client_of(server) as client:
        yield client


def slice_(name: str, pool: str = "p", driver: str = "d.example.com", **spec: Any) -> Json:
    about = {"name": pool, "generation": 1, "resourceSliceCount": 1}
    where = spec if "nodeName" in spec or "allNodes" in spec or "nodeSelector" in spec else {"nodeName": "n", **spec}
    return {"metadata": {"name": name}, "spec": {"driver": driver, "pool": about, "devices": [{"name": "d"}], **where}}


async def names(client: Client, selector: str, version: str = "v1") -> list[str] | int:
    answer = await client.call("GET", f"{GROUP}/{version}/resourceslices?fieldSelector={selector}")
    return [item["metadata"]["name"] for item in answer.json["items"]] if answer.code == 200 else answer.code


@pytest.mark.rule("K37-FS-01")
async def test_slices_are_selected_by_their_pool(old: Client, new: Client) -> None:
    for client in (old, new):
        for name, pool, driver in (("a", "p1", "d.io"), ("b", "p1", "e.io"), ("c", "p2", "d.io")):
            await client.post(SLICES, slice_(name, pool, driver))
    for version in ("v1", "v1beta2", "v1beta1"):
        assert await names(new, "spec.pool.name=p1", version) == ["a", "b"]
    assert await names(new, "spec.pool.name=p1,spec.driver=d.io") == ["a"]
    assert await names(new, "spec.pool.name!=p1") == ["c"]
    assert await names(new, "spec.pool.generation=1") == 400
    assert await names(old, "spec.pool.name=p1") == 400
    assert await names(old, "spec.driver=d.io") == ["a", "c"]


def a_pod() -> Json:
    limits = {"example.com/gpu": "1"}
    container = {"name": "c", "image": "i", "resources": {"limits": limits, "claims": [{"name": "own"}]}}
    claims = [{"name": "own", "resourceClaimName": "x"}]
    return {"metadata": {"name": "p"}, "spec": {"containers": [container], "resourceClaims": claims}}


EXTENDED = {
    "resourceClaimName": "special",
    "requestMappings": [{"containerName": "c", "resourceName": "example.com/gpu", "requestName": "r"}],
}
RECORDS = {
    "extendedResourceClaimStatus": EXTENDED,
    "resourceClaimStatuses": [{"name": "own", "resourceClaimName": "x"}],
}


@pytest.mark.rule("K37-EXT-04")
async def test_an_update_that_leaves_out_the_records_of_claims_keeps_them(old: Client, new: Client) -> None:
    """An old client writes back what it knows."""
    for client, kept in ((old, {}), (new, RECORDS)):
        made = await client.post(PODS, a_pod())
        del made["metadata"]["resourceVersion"]
        made["status"] |= RECORDS
        recorded = (await client.call("PUT", f"{PODS}/p/status", made)).json
        assert {name: recorded["status"].get(name) for name in RECORDS} == RECORDS
        forgetful = {**made, "status": {"phase": "Running"}}
        written = (await client.call("PUT", f"{PODS}/p/status", forgetful)).json["status"]
        assert {name: written[name] for name in RECORDS if name in written} == kept


@pytest.mark.rule("K37-EXT-02")
@pytest.mark.parametrize(
    ("name", "in_old", "in_new"),
    [
        ("claim:own", True, True),
        ("example.com/gpu", True, True),
        ("claim:special/r", False, True),
        ("claim:special/q", False, False),
        ("claim:own/r", False, False),
        ("claim:other", False, False),
    ],
)
async def test_health_is_reported_of_what_the_container_has(
    old: Client, new: Client, name: str, in_old: bool, in_new: bool
) -> None:
    """From 1.37 on also of the claim that serves its extended resources."""
    resource = {"name": name, "resources": [{"resourceID": "d", "health": "Healthy"}]}
    status = {"name": "c", "image": "i", "imageID": "", "ready": True, "restartCount": 0}
    for client, accepted in ((old, in_old), (new, in_new)):
        made = await client.post(PODS, a_pod())
        del made["metadata"]["resourceVersion"]
        made["status"] |= {**RECORDS, "containerStatuses": [{**status, "allocatedResourcesStatus": [resource]}]}
        answer = await client.call("PUT", f"{PODS}/p/status", made)
        assert (answer.code == 200) is accepted
        field = "status.containerStatuses[0].allocatedResourcesStatus[0].name"
        assert accepted or [cause["field"] for cause in answer.json["details"]["causes"]] == [field]


RESOURCES = {"cpu": {"overhead": {"perPod": "1"}}}


@pytest.mark.rule("K37-NA-24")
@pytest.mark.parametrize(
    ("spec", "refused"),
    [
        ({"nodeName": "able"}, ""),
        ({"nodeName": "plain"}, 'node "plain" does not support DRANodeAllocatableResources feature'),
        ({"nodeName": "none"}, 'node "none" does not support DRANodeAllocatableResources feature'),
        ({"allNodes": True}, 'node "plain" does not support DRANodeAllocatableResources feature'),
        ({"nodeSelector": {"kind": "able"}}, ""),
        ({"nodeSelector": {"kind": "missing"}}, ""),
    ],
)
async def test_devices_with_resources_of_nodes_need_nodes_that_declare_it(spec: Json, refused: str) -> None:
    if "nodeSelector" in spec:
        ((key, value),) = spec["nodeSelector"].items()
        term = {"matchExpressions": [{"key": key, "operator": "In", "values": [value]}]}
        spec = {"nodeSelector": {"nodeSelectorTerms": [term]}}
    gates = {FEATURE: True}
    async with DevApiServer(release=Release.V1_37, feature_gates=gates) as server, client_of(server) as client:
        for node, declared in (("able", [FEATURE]), ("plain", [])):
            labels = {"kind": node}
            made = await client.post("/api/v1/nodes", {"metadata": {"name": node, "labels": labels}})
            made["status"] = {"declaredFeatures": declared}
            await client.call("PUT", f"/api/v1/nodes/{node}/status", made)
        plain = await client.call("POST", SLICES, slice_("plain", **spec))
        assert plain.code == 201, "devices without are never refused"
        devices = [{"name": "d", "nodeAllocatableResources": RESOURCES}]
        answer = await client.call("POST", SLICES, slice_("s", "q", devices=devices, **spec))
        assert answer.code == (403 if refused else 201)
        assert not refused or refused in answer.message


NAMES = 'device.attributes["d.example.com"]'
HALF = f"{NAMES}.map(a, {NAMES}.map(b, {NAMES}.map(c, {NAMES}.size()))).size()"
"""One may be stored, two may not."""


@pytest.mark.rule("K37-DA-03")
@pytest.mark.parametrize(
    ("expressions", "code", "said"),
    [
        ([f'{NAMES}.model.split("-")[0]'], 201, ""),
        (["["], 422, "exactly.derivedAttributes[0].expression: Invalid value"),
        (["{1: 2}"], 422, "must evaluate to a text, whole number, bool or version, or a list of one of these"),
        ([HALF], 201, ""),
        ([HALF] * 2, 422, "derived attributes are too complex together, exceed cost limit"),
    ],
    ids=["plain", "no expression", "a map", "costly", "costly together"],
)
async def test_derived_attributes_are_compiled_and_their_costs_added_up(
    expressions: list[str], code: int, said: str
) -> None:
    """Without the gate they are dropped, and an older release does not know them."""
    items = [{"name": f"a.b/c{number}", "expression": text} for number, text in enumerate(expressions)]
    requests = [{"name": "r", "exactly": {"deviceClassName": "c", "derivedAttributes": items}}]
    devices = {"requests": requests, "constraints": [{"matchAttribute": item["name"]} for item in items]}
    claim = {"metadata": {"name": "c"}, "spec": {"devices": devices}}
    claims = f"{GROUP}/v1/namespaces/default/resourceclaims"
    async with DevApiServer(release=Release.V1_37, feature_gates={"DRADerivedAttributes": True}) as server:
        async with client_of(server) as client:
            answer = await client.call("POST", claims, claim)
            assert answer.code == code
            assert said in answer.json.get("message", "")
    async with DevApiServer(release=Release.V1_36) as server, client_of(server) as client:
        answer = await client.call("POST", claims, claim)
        assert answer.code == 201
        assert "derivedAttributes" not in answer.json["spec"]["devices"]["requests"][0]["exactly"]
