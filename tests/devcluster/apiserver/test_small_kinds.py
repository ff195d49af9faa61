"""Faults of Nodes, Leases and ConfigMaps; the same on a real server."""

from __future__ import annotations

from pathlib import Path

import pytest
from bare_client import CONFIG_MAPS, NODES, PATCH, Client, Json, causes
from rbac_cases import SERVERS, rbac_server

LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
INVALID, REQUIRED, DUPLICATE = "FieldValueInvalid", "FieldValueRequired", "FieldValueDuplicate"
TAINT = {"key": "k", "effect": "NoSchedule"}


@pytest.mark.parametrize("kind", SERVERS)
async def test_nodes_that_cannot_be(kind: str, tmp_path: Path) -> None:
    address = {"type": "InternalIP", "address": "192.0.2.1"}
    cases: list[tuple[Json, set[tuple[str, str]]]] = [
        ({"spec": {"taints": [{**TAINT, "key": "a b"}]}}, {("metadata.taints[0].key", INVALID)}),
        ({"spec": {"taints": [{**TAINT, "value": "a b"}]}}, {("metadata.taints[0].value", INVALID)}),
        ({"spec": {"taints": [{**TAINT, "effect": "X"}]}}, {("metadata.taints[0].effect", "FieldValueNotSupported")}),
        ({"spec": {"taints": [{"key": "k"}]}}, {("metadata.taints[0].effect", REQUIRED)}),
        ({"spec": {"taints": [TAINT, {**TAINT, "value": "v"}]}}, {("metadata.taints[1]", DUPLICATE)}),
        ({"spec": {"providerID": "other"}}, {("spec.providerID", "FieldValueForbidden")}),
        ({"status": {"allocatable": {"cpu": "-1"}}}, {("status.allocatable.cpu", INVALID)}),
        ({"status": {"allocatable": {"example.com/g": "0.5"}}}, {("status.allocatable.example.com/g", INVALID)}),
        ({"status": {"addresses": [address, address]}}, {("status.addresses[1]", DUPLICATE)}),
        ({"status": {"capacity": {"example.com/g": "2", "cpu": "500m"}}}, set()),
    ]
    async with rbac_server(kind, tmp_path) as client:
        await client.post(NODES, {"metadata": {"name": "n"}, "spec": {"providerID": "a"}})
        for change, faults in cases:
            path = f"{NODES}/n/status" if "status" in change else f"{NODES}/n"
            answer = await client.call("PATCH", path, change, kind=PATCH["merge"], dryRun="All")
            assert (change, set(causes(answer.json)) if answer.code == 422 else set()) == (change, faults)


@pytest.mark.parametrize("kind", SERVERS)
async def test_leases_and_config_maps_that_cannot_be(kind: str, tmp_path: Path) -> None:
    cases: list[tuple[str, Json, tuple[str, str]]] = [
        (LEASES, {"spec": {"leaseTransitions": -1}}, ("spec.leaseTransitions", INVALID)),
        (LEASES, {"spec": {"leaseDurationSeconds": 0}}, ("spec.leaseDurationSeconds", INVALID)),
        (CONFIG_MAPS, {"data": {"a": "x"}, "binaryData": {"a": "eA=="}}, ("data[a]", INVALID)),
    ]
    async with rbac_server(kind, tmp_path) as client:
        for path, body, fault in cases:
            answer = await client.call("POST", path, {"metadata": {"name": "x"}, **body})
            assert (answer.code, causes(answer.json)) == (422, [fault])
        renewed = {"metadata": {"name": "x"}, "spec": {"renewTime": "2026-01-01T00:00:00Z"}}
        assert (await client.call("POST", LEASES, renewed)).code == 400


async def test_a_service_says_what_its_ports_leave_out(client: Client) -> None:
    services = "/api/v1/namespaces/default/services"
    ports = [{"port": 80, "name": "a"}, {"port": 81, "name": "b", "protocol": "UDP", "targetPort": "dns"}]
    made = await client.post(services, {"metadata": {"name": "s"}, "spec": {"ports": ports}})
    assert made["spec"]["ports"] == [{**ports[0], "protocol": "TCP", "targetPort": 80}, ports[1]]
    assert (made["spec"]["type"], made["spec"]["sessionAffinity"]) == ("ClusterIP", "None")


async def test_keys_that_are_no_names_of_files_are_refused(client: Client) -> None:
    for key, is_refused in (
        (".", True),
        ("..", True),
        ("..a", True),
        (".a", False),
        ("a" * 253, False),
        ("a" * 254, True),
    ):
        answer = await client.call("POST", CONFIG_MAPS, {"metadata": {"name": "x"}, "data": {key: ""}}, dryRun="All")
        assert (key, answer.code) == (key, 422 if is_refused else 201)
