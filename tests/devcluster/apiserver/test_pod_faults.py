"""What a pod must not be, and what its status must not say; the same on a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from bare_client import PATCH, PODS, Client, Json, causes, pod
from rbac_cases import SERVERS, rbac_server

INVALID, REQUIRED, FORBIDDEN = "FieldValueInvalid", "FieldValueRequired", "FieldValueForbidden"
UNSUPPORTED = "FieldValueNotSupported"
MAIN = "spec.containers[0]"
COMMAND = {"exec": {"command": ["true"]}}


@pytest.fixture(params=SERVERS)
async def both(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Client]:
    async with rbac_server(request.param, tmp_path) as client:
        yield client


async def test_containers_that_cannot_be(both: Client) -> None:
    mount = {"name": "v", "mountPath": "/a"}
    named = {"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    cases: list[tuple[Json, list[tuple[str, str]]]] = [
        ({"livenessProbe": {}}, [(f"{MAIN}.livenessProbe", REQUIRED)]),
        ({"livenessProbe": {"exec": {}}}, [(f"{MAIN}.livenessProbe.exec.command", REQUIRED)]),
        ({"livenessProbe": {**COMMAND, "successThreshold": 2}}, [(f"{MAIN}.livenessProbe.successThreshold", INVALID)]),
        ({"readinessProbe": {**COMMAND, "successThreshold": 2}}, []),
        ({"readinessProbe": {**COMMAND, "periodSeconds": -1}}, [(f"{MAIN}.readinessProbe.periodSeconds", INVALID)]),
        ({"startupProbe": {**COMMAND, "tcpSocket": {"port": 1}}}, [(f"{MAIN}.startupProbe.tcpSocket", FORBIDDEN)]),
        ({"startupProbe": {"httpGet": {"port": 0}}}, [(f"{MAIN}.startupProbe.httpGet.port", INVALID)]),
        ({"lifecycle": {"preStop": {}}}, [(f"{MAIN}.lifecycle.preStop", REQUIRED)]),
        ({"env": [named]}, [(f"{MAIN}.env[0].valueFrom", INVALID)]),
        ({"volumeMounts": [mount, mount]}, [(f"{MAIN}.volumeMounts[1].mountPath", INVALID)]),
    ]
    for change, faults in cases:
        containers = [{"name": "main", "image": "example.com/app:1", **change}]
        body = pod("p", containers=containers, volumes=[{"name": "v", "emptyDir": {}}], schedulerName="none")
        answer = await both.call("POST", PODS, body, dryRun="All")
        assert (change, causes(answer.json) if answer.code == 422 else []) == (change, faults)


async def test_specs_that_cannot_be(both: Client) -> None:
    claims = {"resourceClaims": [{"name": "a", "resourceClaimName": "x"}], "resources": {"claims": [{"name": "a"}]}}
    cases: list[tuple[Json, list[tuple[str, str]]]] = [
        ({"hostname": "A_"}, [("spec.hostname", INVALID)]),
        ({"subdomain": "A_"}, [("spec.subdomain", INVALID)]),
        ({"os": {"name": "plan9"}}, [("spec.os", UNSUPPORTED)]),
        ({"os": {}}, [("spec.os.name", REQUIRED)]),
        (claims, [("spec.resources.claims", FORBIDDEN)]),
    ]
    for change, faults in cases:
        answer = await both.call("POST", PODS, pod("p", schedulerName="none", **change), dryRun="All")
        assert (change, answer.code, causes(answer.json)) == (change, 422, faults)


async def test_the_grace_period_may_only_become_one_second(both: Client) -> None:
    for name, seconds in (("usual", 30), ("negative", -1)):
        await both.post(PODS, pod(name, schedulerName="none", terminationGracePeriodSeconds=seconds))
        change = {"spec": {"terminationGracePeriodSeconds": 1}}
        answer = await both.call("PATCH", f"{PODS}/{name}", change, kind=PATCH["merge"])
        assert answer.code == (422 if name == "usual" else 200)


async def test_a_status_that_cannot_be(both: Client) -> None:
    claims = [{"name": "a", "resourceClaimName": "x"}]
    containers = [{"name": "main", "image": "example.com/app:1", "resources": {"claims": [{"name": "a"}]}}]
    await both.post(PODS, pod("p", schedulerName="none", resourceClaims=claims, containers=containers))

    def devices(name: str, **health: str) -> Json:
        resources = [{"name": name, "resources": [{"resourceID": "example.com/d=1", **health}]}]
        return {"containerStatuses": [{"name": "main", "allocatedResourcesStatus": resources}]}

    resource = "status.containerStatuses[0].allocatedResourcesStatus[0]"
    cases: list[tuple[Json, list[tuple[str, str]]]] = [
        (devices("claim:a", health="Unknown"), []),
        (devices("claim:a", health="Bad"), [(f"{resource}.resources[0].health", UNSUPPORTED)]),
        (devices("claim:a"), [(f"{resource}.resources[0].health", UNSUPPORTED)]),
        (devices("claim:b", health="Healthy"), [(f"{resource}.name", INVALID)]),
        ({"podIPs": [{"ip": "x"}]}, [("status.podIPs[0]", INVALID)]),
        ({"conditions": [{"type": "a b", "status": "True"}]}, [("status.conditions[0].Type", INVALID)]),
    ]
    for status, faults in cases:
        answer = await both.call("PATCH", f"{PODS}/p/status", {"status": status}, kind=PATCH["merge"], dryRun="All")
        assert (status, causes(answer.json) if answer.code == 422 else []) == (status, faults)
