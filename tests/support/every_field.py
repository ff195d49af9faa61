"""Objects of ``resource.k8s.io`` that together have every field of the newest release, and which fields there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from dra_devcluster.apiserver.structure import Structure

Json = dict[str, Any]
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


def _device(name: str, **more: Any) -> Json:
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


def _slice(name: str, pool: str, count: int = 1, **spec: Any) -> Json:
    about = {"name": pool, "generation": 1, "resourceSliceCount": count}
    return {"metadata": {"name": name}, "spec": {"driver": DRIVER, "pool": about, **spec}}


def slices() -> list[Json]:
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


def device_class() -> Json:
    selectors = [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]
    spec = {"selectors": selectors, "config": [{"opaque": _OPAQUE}], "extendedResourceName": "example.com/gpu"}
    return {"metadata": {"name": "gpu"}, "spec": spec}


def claim_spec() -> Json:
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


def claim(name: str, namespace: str) -> Json:
    return {"metadata": {"name": name, "namespace": namespace}, "spec": claim_spec()}


def template(namespace: str) -> Json:
    spec = {"metadata": {"labels": {"a": "b"}}, "spec": claim_spec()}
    return {"metadata": {"name": "tmpl", "namespace": namespace}, "spec": spec}


def claim_status() -> Json:
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


def taint_rule() -> Json:
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


def fields_in(structure: Structure, kind: str, obj: Json) -> Iterator[tuple[str, str]]:
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


def _part_of(schema: Json) -> str:
    """The component behind references, lists and maps; empty for a plain value."""
    while "$ref" not in schema:
        inner = schema.get("items") or schema.get("additionalProperties") or next(iter(schema.get("allOf", ())), None)
        if not isinstance(inner, dict):
            return ""
        schema = inner
    return str(schema["$ref"].rpartition("/")[2])
