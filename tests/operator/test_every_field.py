"""Every field of 1.37 in claims, slices, classes and rules: stored, read in every version, changed, watched, given.

The objects of ``resource.k8s.io`` that are made here have together every field of the newest release.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any, Final

import pytest
from dra_api.gates import TABLE
from dra_api.meta import Resource
from dra_api.releases import Release
from dra_devcluster.apiserver import DevApiServer
from dra_devcluster.apiserver.registry import API_SERVER
from dra_devcluster.apiserver.structure import Structure
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
from dra_operator.app.settings import OperatorSettings
from dra_operator.gates import OPERATOR
from msgspec.structs import replace
from supervised import Supervising, gates_text
from waiting import until

Obj = dict[str, Any]
DRIVER: Final = "d.example.com"
FEATURES: Final = ["DRANodeAllocatableResources", "DRAOptionalNodeOperations"]
"""What the node has to declare."""
_PACKAGE: Final = "io.k8s.api.resource.v1."
_NODE: Final = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]}
_TAINT: Final = {"key": "k", "value": "v", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}
_TOLERATIONS: Final = [
    {"key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule"},
    {"key": "z", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60},
]
_OPAQUE: Final = {"driver": DRIVER, "parameters": {"a": 1}}
_ATTRIBUTES: Final = {
    "whole": {"int": 1},
    "sure": {"bool": True},
    "text": {"string": "x-1"},
    "release": {"version": "1.2.3"},
    "wholes": {"ints": [1, 2]},
    "sures": {"bools": [True]},
    "texts": {"strings": ["x"]},
    "releases": {"versions": ["1.2.3"]},
}
_CONDITIONS: Final = [
    {
        "type": "Ready",
        "status": "True",
        "reason": "R",
        "message": "m",
        "observedGeneration": 1,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
]


def _device(name: str, **more: Any) -> Obj:
    """A shared one that draws on counters, and takes cpu and memory of its node."""
    size = {"value": "10Gi", "requestPolicy": {"default": "1Gi"}}
    size["requestPolicy"] |= {"validRange": {"min": "1Gi", "max": "8Gi", "step": "1Gi"}}  # type: ignore[operator]
    cores = {"value": "4", "requestPolicy": {"default": "1", "validValues": ["1", "2"]}}
    overhead = {"perPod": "1Mi", "perContainer": "1Mi"}
    return {
        "name": name,
        "attributes": _ATTRIBUTES,
        "capacity": {"mem": size, "cores": cores},
        "taints": [_TAINT],
        "allowMultipleAllocations": True,
        "consumesCounters": [{"counterSet": "s", "counters": {"c": {"value": "1"}}, "compatibilityGroups": ["x"]}],
        "nodeAllocatableResources": {
            "cpu": {"mapping": {"capacityKey": "cores", "capacityMultiplier": "1"}},
            "memory": {"mapping": {"deviceMultiplier": "1Mi"}, "overhead": overhead},
        },
        **more,
    }


def _slice(name: str, pool: str, count: int = 1, **spec: Any) -> Obj:
    about = {"name": pool, "generation": 1, "resourceSliceCount": count}
    return {"metadata": {"name": name}, "spec": {"driver": DRIVER, "pool": about, **spec}}


def slices() -> list[Obj]:
    """Of five pools, one for each way to name nodes, and one whose devices bind with conditions."""
    plain = {"attributes": {"text": {"string": "plain"}}}
    binding = {"bindsToNode": True, "bindingConditions": ["ready"], "bindingFailureConditions": ["broken"]}
    each = [
        {"name": "a", "nodeName": "n1"},
        {"name": "b", "nodeSelector": _NODE},
        {"name": "c", "allNodes": True},
    ]
    sets = [{"name": "s", "counters": {"c": {"value": "4"}}}]
    parts = {"partitionTypeAttribute": f"{DRIVER}/text", "skipNodeOperations": ["*"]}
    return [
        _slice("named", "p", 2, nodeName="n1", devices=[_device("a"), _device("b")], **parts),
        _slice("counters", "p", 2, nodeName="n1", sharedCounters=sets),
        _slice("everywhere", "q", allNodes=True, devices=[{"name": "d", **plain}]),
        _slice("chosen", "r", nodeSelector=_NODE, devices=[{"name": "d", **binding}]),
        _slice("each", "t", perDeviceNodeSelection=True, devices=each),
    ]


def device_class() -> Obj:
    selectors = [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]
    spec = {"selectors": selectors, "config": [{"opaque": _OPAQUE}], "extendedResourceName": "example.com/gpu"}
    return {"metadata": {"name": "gpu"}, "spec": spec}


def claim_spec() -> Obj:
    derived = {"name": f"{DRIVER}/family", "expression": f'device.attributes["{DRIVER}"].text.split("-")[0]'}
    shared = {"cel": {"expression": "device.allowMultipleAllocations"}}
    wanted = {
        "deviceClassName": "gpu",
        "allocationMode": "ExactCount",
        "count": 1,
        "selectors": [shared],
        "tolerations": _TOLERATIONS,
        "capacity": {"requests": {"mem": "1500Mi"}},
        "derivedAttributes": [derived],
    }
    plain = {"cel": {"expression": f'device.attributes["{DRIVER}"].?text.orValue("") == "plain"'}}
    admin = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1, "adminAccess": True}
    devices = {
        "requests": [
            {"name": "r", "exactly": wanted},
            {"name": "s", "firstAvailable": [{"name": "t", **wanted}]},
            {"name": "u", "exactly": {**admin, "selectors": [plain]}},
        ],
        "constraints": [
            {"matchAttribute": f"{DRIVER}/family", "requests": ["r", "s"]},
            {"distinctAttribute": f"{DRIVER}/whole", "requests": ["r"]},
        ],
        "config": [{"requests": ["r"], "opaque": _OPAQUE}],
    }
    return {"devices": devices}


def claim(name: str, namespace: str) -> Obj:
    return {"metadata": {"name": name, "namespace": namespace}, "spec": claim_spec()}


def template(namespace: str) -> Obj:
    spec = {"metadata": {"labels": {"a": "b"}}, "spec": claim_spec()}
    return {"metadata": {"name": "tmpl", "namespace": namespace}, "spec": spec}


def claim_status() -> Obj:
    """As a scheduler and a driver would write it, for devices that bind with conditions."""
    share = "11111111-2222-4333-8444-555555555555"
    device = {"driver": DRIVER, "pool": "r", "device": "d", "shareID": share}
    result = {
        "request": "r",
        **device,
        "adminAccess": True,
        "tolerations": _TOLERATIONS,
        "bindingConditions": ["ready"],
        "bindingFailureConditions": ["broken"],
        "consumedCapacity": {"mem": "2Gi"},
        "skipNodeOperations": ["*"],
    }
    return {
        "allocation": {
            "devices": {
                "results": [result],
                "config": [{"source": "FromClaim", "requests": ["r"], "opaque": _OPAQUE}],
            },
            "nodeSelector": _NODE,
            "allocationTimestamp": "2026-01-01T00:00:00Z",
        },
        "devices": [
            {
                **device,
                "conditions": _CONDITIONS,
                "data": {"b": 2},
                "networkData": {
                    "interfaceName": "net1",
                    "ips": ["10.9.8.7/24"],
                    "hardwareAddress": "ea:9f:cb:40:b7:01",
                },
            }
        ],
        "reservedFor": [{"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": "u"}],
    }


def taint_rule() -> Obj:
    selector = {"driver": DRIVER, "pool": "nowhere", "device": "none"}
    return {"metadata": {"name": "rule"}, "spec": {"deviceSelector": selector, "taint": _TAINT}}


TAINT_STATUS: Final = {"conditions": _CONDITIONS}


def fields_of_kinds(structure: Structure, *kinds: str) -> set[tuple[str, str]]:
    """Every field of these kinds and of their parts, as the schemas have them: part and field."""
    schemas, found, rest = structure.components.raw, set(), [f"{_PACKAGE}{kind}" for kind in kinds]
    while rest:
        name = rest.pop()
        part = name.removeprefix(_PACKAGE)
        for field, schema in schemas[name]["properties"].items():
            if (part, field) not in found and field not in ("apiVersion", "kind", "metadata"):
                found.add((part, field))
                rest += [other for other in [_part_of(schema)] if other.startswith(_PACKAGE)]
    return found


def fields_in(structure: Structure, kind: str, obj: Obj) -> Iterator[tuple[str, str]]:
    """The fields that an object has."""
    schema = structure.components.raw[f"{_PACKAGE}{kind}"]
    for field, value in obj.items():
        yield kind, field
        part = _part_of(schema["properties"].get(field, {}))
        if part.startswith(_PACKAGE):
            values = value if isinstance(value, list) else [value]
            is_map = "additionalProperties" in schema["properties"][field]
            for one in values[0].values() if is_map else values:
                yield from fields_in(structure, part.removeprefix(_PACKAGE), one)


def _part_of(schema: Obj) -> str:
    """The component behind references, lists and maps; empty for a plain value."""
    while "$ref" not in schema:
        inner = schema.get("items") or schema.get("additionalProperties") or next(iter(schema.get("allOf", ())), None)
        if not isinstance(inner, dict):
            return ""
        schema = inner
    return str(schema["$ref"].rpartition("/")[2])


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
    status = {"allocatable": {"cpu": "8", "memory": "8Gi", "pods": "20"}, "declaredFeatures": FEATURES}
    await api.create(NODES, {"metadata": {"name": "n1"}, "status": status})
    return api


def objects() -> list[tuple[str, Json, Json | None]]:
    """Kind, object, and the status that is written after it."""
    return [
        *(("ResourceSlice", each, None) for each in slices()),
        ("DeviceClass", device_class(), None),
        ("ResourceClaim", claim("made", "ns"), claim_status()),
        ("ResourceClaimTemplate", template("ns"), None),
        ("DeviceTaintRule", taint_rule(), TAINT_STATUS),
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
        seen |= set(fields_in(structure, kind, content(made)))
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
    assert fields_of_kinds(structure, *KINDS) - seen == set()


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
    await api.create(RESOURCE_CLAIMS, claim("c", "ns"))
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
