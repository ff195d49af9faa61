"""Who may write which part of a claim's status; a real server answers the same."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from bare_client import CLAIMS, PATCH, Client, claim, client_of
from dra_devcluster.apiserver import DevApiServer
from rbac_cases import SERVERS, binding, create, rbac_server, role, rule

Json = dict[str, Any]
GROUP, STATUS = "resource.k8s.io", f"{CLAIMS}/c/status"
ROBOT = "system:serviceaccount:default:robot"
ON_NODE_1 = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]}]}
RESULT = {"request": "gpu", "driver": "gpu.example.com", "pool": "p", "device": "d"}
DEVICE = {"driver": "gpu.example.com", "pool": "p", "device": "d", "data": {"a": "b"}}


def allocation(selector: Json | None = None) -> Json:
    return {"devices": {"results": [RESULT]}, **({"nodeSelector": selector} if selector else {})}


@pytest.fixture(params=SERVERS)
async def client(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Client]:
    """With users who may write the status: ``stan`` no part of it, ``bea`` allocations, drivers what is said."""
    async with rbac_server(request.param, tmp_path) as client:
        write = "update patch"
        own, any_ = ("associated-node:update associated-node:patch", "arbitrary-node:update arbitrary-node:patch")
        for obj in (
            role("status", rule("get", "resourceclaims", GROUP), rule(write, "resourceclaims/status", GROUP)),
            role("binder", rule(write, "resourceclaims/binding", GROUP)),
            role("driver", rule(own, "resourceclaims/driver", GROUP, names="gpu.example.com")),
            role("manager", rule(any_, "resourceclaims/driver", GROUP, names="gpu.example.com")),
            binding("binders", "binder", "User:bea"),
            binding("binders-here", "binder", "User:stan", namespace="default"),
            binding("drivers", "driver", "ServiceAccount:default/robot", "User:dan"),
            binding("managers", "manager", "User:mia"),
            binding(
                "writers", "status", "User:stan", "User:bea", "User:dan", "User:mia", "ServiceAccount:default/robot"
            ),
        ):
            assert (await create(client, obj)).code == 201
        await client.impersonating(ROBOT).until(f"{CLAIMS}/none", lambda answer: answer.code == 404)
        await client.post(CLAIMS, claim("c"))
        yield client


async def written(client: Client, change: Json, how: str = "merge") -> str:
    """Change the status as a trial; why that is refused, or nothing."""
    if how == "update":
        obj = await client.get(f"{CLAIMS}/c")
        answer = await client.call("PUT", STATUS, {**obj, "status": {**obj.get("status", {}), **change}}, dryRun="All")
    else:
        answer = await client.call("PATCH", STATUS, {"status": change}, kind=PATCH[how], dryRun="All")
    if answer.code < 300:
        return ""
    (cause,) = answer.json["details"]["causes"]
    assert (answer.code, cause["reason"]) == (422, "FieldValueForbidden")
    return f"{cause['field']}: {cause['message']}"


def no_binding(user: str, verb: str) -> str:
    return (
        "status.allocation: Forbidden: changing status.allocation or status.reservedFor requires "
        f'resource="resourceclaims/binding", verb="{verb}" permission: resourceclaims.resource.k8s.io is forbidden: '
        f'User "{user}" cannot {verb} resource "resourceclaims/binding" in API group "resource.k8s.io" at the cluster '
        "scope"
    )


def no_driver(user: str, verbs: str, verb: str) -> str:
    return (
        'status.devices: Forbidden: changing status.devices requires resource="resourceclaims/driver", '
        f'verb="[{verbs}]" permission: resourceclaims.resource.k8s.io "gpu.example.com" is forbidden: User "{user}" '
        f'cannot {verb} resource "resourceclaims/driver" in API group "resource.k8s.io" in the namespace "default"'
    )


async def test_allocations_need_the_permission_to_bind_in_the_whole_cluster(client: Client) -> None:
    stan, bea = client.impersonating("stan"), client.impersonating("bea")
    for how, verb in (("merge", "patch"), ("update", "update")):
        change = {"allocation": allocation()}
        assert await written(stan, change, how) == no_binding("stan", verb)
        assert await written(bea, change, how) == ""
    await bea.patch(STATUS, {"status": {"allocation": allocation()}})
    reserved = {"reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]}
    assert await written(stan, reserved) == no_binding("stan", "patch")
    assert await written(bea, reserved) == ""
    assert await written(bea, {"allocation": None}) == ""
    assert await written(stan, {"allocation": allocation()}) == "", "it changes nothing"


@pytest.mark.rule("K37-STAT-02")
async def test_e2e_073_074_076_what_is_said_of_devices_is_their_drivers(client: Client) -> None:
    elsewhere, here = "arbitrary-node:patch", "associated-node:patch arbitrary-node:patch"
    dan, mia = client.impersonating("dan"), client.impersonating("mia")
    node = "authentication.kubernetes.io/node-name"
    robots = {name: client.impersonating(ROBOT, **{node: name}) for name in ("node-1", "node-2")}
    said = {"devices": [DEVICE]}
    await client.patch(STATUS, {"status": {"allocation": allocation(ON_NODE_1)}})
    assert await written(client.impersonating("bea"), said) == no_driver("bea", elsewhere, elsewhere)
    assert await written(dan, said) == no_driver("dan", elsewhere, elsewhere), "no service account"
    assert await written(mia, said) == ""
    assert await written(robots["node-1"], said) == ""
    assert await written(robots["node-1"], said, "update") == ""
    assert await written(robots["node-2"], said) == no_driver(ROBOT, elsewhere, elsewhere)
    other = {"devices": [{**DEVICE, "driver": "other.example.com"}]}
    refusal = no_driver(ROBOT, here, "associated-node:patch").replace("gpu.example", "other.example")
    await client.patch(STATUS, {"status": {"allocation": None}})
    results = [RESULT, {**RESULT, "driver": "other.example.com"}]
    both = {"devices": {"results": results}, "nodeSelector": ON_NODE_1}
    await client.patch(STATUS, {"status": {"allocation": both}})
    assert await written(robots["node-1"], other) == refusal
    await client.patch(STATUS, {"status": {"devices": [DEVICE, *other["devices"]]}})
    assert await written(robots["node-1"], {"devices": other["devices"]}) == "", "it removes its own"
    assert await written(robots["node-1"], said) == refusal, "it removes that of another driver"
    assert await written(robots["node-1"], {"devices": [{**DEVICE, "data": {}}, *other["devices"]]}) == ""
    await client.patch(STATUS, {"status": {"allocation": None}})
    everywhere = allocation()
    await client.patch(STATUS, {"status": {"allocation": everywhere}})
    assert await written(robots["node-1"], said) == no_driver(ROBOT, elsewhere, elsewhere), "it is for no one node"


async def test_without_the_gate_the_permission_for_the_status_is_enough() -> None:
    gates = {"DRAResourceClaimGranularStatusAuthorization": False}
    async with DevApiServer(authorization="rbac", feature_gates=gates) as server, client_of(server) as client:
        await create(client, role("status", rule("patch", "resourceclaims/status", GROUP)))
        await create(client, binding("writers", "status", "User:stan"))
        await client.post(CLAIMS, claim("c"))
        assert await written(client.impersonating("stan"), {"allocation": allocation()}) == ""
