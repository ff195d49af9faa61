"""Every field of 1.37 in claims, slices, classes and rules: stored, read in every version, changed, watched, given."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import every_field
import pytest
from dra_api.api_resources import Resource
from dra_api.releases.gates import TABLE
from dra_api.releases.release import Release
from dra_devcluster.apiserver import DevApiServer
from dra_devcluster.apiserver.served.registry import API_SERVER
from dra_kube import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Api,
)
from dra_operator.app.settings.settings import OperatorSettings
from dra_operator.gates import OPERATOR
from supervised import Supervising, gates_text
from waiting import until

Json = dict[str, Any]
KINDS = {
    "ResourceSlice": RESOURCE_SLICES,
    "DeviceClass": DEVICE_CLASSES,
    "ResourceClaim": RESOURCE_CLAIMS,
    "ResourceClaimTemplate": RESOURCE_CLAIM_TEMPLATES,
    "DeviceTaintRule": DEVICE_TAINT_RULES,
}
VERSIONS = {"DeviceTaintRule": ("v1", "v1beta2", "v1alpha3")}
NEW = Release.V1_37


def all_of(gates: frozenset[str]) -> dict[str, bool]:
    return {name: True for name in gates if TABLE[name].at(NEW) is not None}


@pytest.fixture
def server_settings() -> dict[str, Any]:
    return {"release": NEW, "feature_gates": all_of(API_SERVER.gates)}


@pytest.fixture
async def furnished(api: Api) -> Api:
    """A node, and a namespace that allows admin access."""
    labels = {"resource.kubernetes.io/admin-access": "true"}
    await api.create(NAMESPACES, {"metadata": {"name": "ns", "labels": labels}})
    status = {"allocatable": {"cpu": "8", "memory": "8Gi", "pods": "20"}, "declaredFeatures": every_field.FEATURES}
    await api.create(NODES, {"metadata": {"name": "n1"}, "status": status})
    return api


def objects() -> list[tuple[str, Json, Json | None]]:
    """Kind, object, and the status that is written after it."""
    return [
        *(("ResourceSlice", each, None) for each in every_field.slices()),
        ("DeviceClass", every_field.device_class(), None),
        ("ResourceClaim", every_field.claim("made", "ns"), every_field.claim_status()),
        ("ResourceClaimTemplate", every_field.template("ns"), None),
        ("DeviceTaintRule", every_field.taint_rule(), every_field.TAINT_STATUS),
    ]


def versions(kind: str) -> list[Resource]:
    return [replace(KINDS[kind], versions=(one,)) for one in VERSIONS.get(kind, ("v1", "v1beta2", "v1beta1"))]


def content(obj: Json) -> Json:
    return {part: value for part, value in obj.items() if part in ("spec", "status")}


async def store(api: Api, kind: str, obj: Json, status: Json | None) -> Json:
    made = await api.create(KINDS[kind], obj)
    return made if status is None else await api.update(KINDS[kind], {**made, "status": status}, "status")


async def test_every_field_is_stored_and_read_changed_and_watched_in_all_versions(
    server: DevApiServer, furnished: Api
) -> None:
    """The schemas say which fields there are, so that one which no object has fails this."""
    api, structure = furnished, server.registry.structure
    seen: set[tuple[str, str]] = set()
    for kind, obj, status in objects():
        made = await store(api, kind, obj, status)
        assert content(made) == {"spec": obj["spec"], **({"status": status} if status else {})}
        seen |= set(every_field.fields_in(structure, kind, content(made)))
        name, namespace = made["metadata"]["name"], made["metadata"].get("namespace")
        for resource in versions(kind):
            _, revision = await api.list(resource, namespace)
            read = await api.get(resource, name, namespace)
            assert read["apiVersion"].endswith(f"/{resource.versions[0]}")
            read["metadata"]["labels"] = {"written-as": resource.versions[0]}
            await api.update(resource, read)
            if status is not None:
                await api.update(resource, await api.get(resource, name, namespace), "status")
            assert content(await api.get(KINDS[kind], name, namespace)) == content(made), resource
            changed = await next_event(api.watch(resource, namespace, resource_version=revision))
            assert content(changed) == content(await api.get(resource, name, namespace)), resource
    assert every_field.fields_of_kinds(structure, *KINDS) - seen == set()


async def next_event(events: AsyncIterator[Any]) -> Json:
    async with aclosing(events):  # type: ignore[type-var]  # declared as an iterator, is a generator
        async for kind, obj in events:
            if kind != "BOOKMARK":
                found: Json = obj
                return found
    raise AssertionError("the watch has ended")


async def test_a_claim_with_every_field_is_allocated(furnished: Api, supervising: Supervising) -> None:
    api = furnished
    for kind, obj, _ in objects():
        if kind in ("ResourceSlice", "DeviceClass"):
            await api.create(KINDS[kind], obj)
    await api.create(RESOURCE_CLAIMS, every_field.claim("c", "ns"))
    used = {"name": "c", "resourceClaimName": "c"}
    container = {"name": "main", "image": "i", "resources": {"claims": [{"name": "c"}]}}
    spec = {"schedulerName": "dra-scheduler", "containers": [container], "resourceClaims": [used]}
    await api.create(PODS, {"metadata": {"name": "p", "namespace": "ns"}, "spec": spec})
    async with supervising(OperatorSettings(feature_gates=gates_text(all_of(OPERATOR.gates)))) as site:
        await site.ready()

        async def bound() -> bool:
            return "nodeName" in (await api.get(PODS, "p", "ns"))["spec"]

        await until("bound", bound)
    allocation = (await api.get(RESOURCE_CLAIMS, "c", "ns"))["status"]["allocation"]
    exact, alternative, admin = allocation["devices"]["results"]
    assert [one["request"] for one in (exact, alternative, admin)] == ["r", "s/t", "u"]
    for share in (exact, alternative):
        assert (share["pool"], share["consumedCapacity"]) == ("p", {"mem": "2Gi", "cores": "1"})
        assert share["skipNodeOperations"] == ["*"]
        assert len(share["tolerations"]) == 2
    assert (admin["pool"], admin["adminAccess"]) == ("q", True)
    assert [entry["source"] for entry in allocation["devices"]["config"]] == ["FromClass", "FromClaim"]
    record = (await api.get(PODS, "p", "ns"))["status"]["nodeAllocatableResourceClaimStatuses"]
    assert {amount["name"]: amount["quantity"] for amount in record[0]["mapping"]} == {"cpu": "2", "memory": "2Mi"}
