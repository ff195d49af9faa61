"""Faults of Nodes, Leases and ConfigMaps; the same on a real server."""

from __future__ import annotations

from pathlib import Path

import pytest
from bare_client import CONFIG_MAPS, NODES, PATCH, Json, causes
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
