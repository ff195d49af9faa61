"""What a write may change, and which fields a feature gate takes away (api.md sections 2, 6 and 7)."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest
from dra_api.gates import GATE_OF, FeatureGates
from dra_api.strategy import (
    GATED_FIELDS,
    disabled_fields,
    drop_disabled_fields,
    prepare_for_create,
    prepare_for_status_update,
    prepare_for_update,
)
from objects import Obj

GATES = FeatureGates.of({})
NOW = "2026-01-02T03:04:05Z"
RESULT = {"driver": "d", "pool": "p", "device": "a", "adminAccess": True, "shareID": "s", "bindingConditions": ["x"]}
RESULT["skipNodeOperations"] = ["*"]


def claim(**parts: Any) -> dict[str, Any]:
    return {"kind": "ResourceClaim", "metadata": {"name": "c", "labels": {"a": "b"}}, "spec": {"devices": {}}, **parts}


def allocated(*devices: str, reports: tuple[str, ...] = ()) -> dict[str, Any]:
    ids = [{"driver": "d", "pool": "p", "device": device} for device in devices]
    status: dict[str, Any] = {"allocation": {"devices": {"results": ids}}}
    if reports:
        status["devices"] = [{"driver": "d", "pool": "p", "device": device} for device in reports]
    return claim(status=status)


@pytest.mark.parametrize("kind", ["ResourceClaim", "DeviceTaintRule", "ResourcePoolStatusRequest"])
def test_a_new_object_has_no_status(kind: str) -> None:
    obj = {"kind": kind, "spec": {}, "status": {"conditions": []}}
    prepare_for_create(obj, gates=GATES)
    assert obj == {"kind": kind, "spec": {}}


def test_an_update_keeps_the_status() -> None:
    old = allocated("a")
    new = claim(spec={"changed": True}, status={"allocation": None})
    prepare_for_update(new, old, gates=GATES, now=NOW)
    assert new["status"] == old["status"]
    assert new["status"] is not old["status"]
    assert new["spec"] == {"changed": True}


def test_a_status_update_keeps_everything_else() -> None:
    old = claim() | {"metadata": {"name": "c", "finalizers": ["f"], "resourceVersion": "1", "generation": 3}}
    new = claim(spec={"changed": True}, status={"reservedFor": []})
    new["metadata"] = {"name": "c", "labels": {"new": ""}, "resourceVersion": "2", "managedFields": [1]}
    prepare_for_status_update(new, old, gates=GATES)
    assert new == claim(status={"reservedFor": []}) | {
        "metadata": {"name": "c", "finalizers": ["f"], "generation": 3, "resourceVersion": "2", "managedFields": [1]}
    }


@pytest.mark.rule("K37-STAT-03")
@pytest.mark.parametrize(
    ("old", "new", "reports"),
    [
        pytest.param(allocated("a", "b"), allocated("a", "b", reports=("a", "b")), ["a", "b"], id="nothing is freed"),
        pytest.param(
            allocated("a", "b"), claim(status=allocated(reports=("a", "b"))["status"]), None, id="all are freed"
        ),
        pytest.param(allocated("a", "b"), allocated("b", reports=("a", "b")), ["b"], id="one is freed"),
        pytest.param(claim(), allocated(reports=("a",)), ["a"], id="a report about a foreign device is for validation"),
    ],
)
def test_reports_of_devices_go_with_their_allocation(old: Obj, new: Obj, reports: list[str] | None) -> None:
    prepare_for_status_update(new, old, gates=GATES)
    devices = new["status"].get("devices")
    assert (None if devices is None else [device["device"] for device in devices]) == reports


@pytest.mark.rule("K37-TAINT-02")
@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        pytest.param({"effect": "None", "timeAdded": "t"}, {"effect": "NoExecute", "timeAdded": "t"}, NOW, id="effect"),
        pytest.param({"effect": "None", "timeAdded": "t"}, {"effect": "NoExecute", "timeAdded": "u"}, "u", id="both"),
        pytest.param({"effect": "None", "timeAdded": "t"}, {"effect": "None", "timeAdded": "t"}, "t", id="neither"),
    ],
)
def test_a_taint_that_changes_its_effect_starts_anew(old: object, new: object, expected: str) -> None:
    rule: dict[str, Any] = {"kind": "DeviceTaintRule", "spec": {"taint": new}}
    prepare_for_update(rule, {"kind": "DeviceTaintRule", "spec": {"taint": old}}, gates=GATES, now=NOW)
    assert rule["spec"]["taint"]["timeAdded"] == expected


EXACTLY = {
    "deviceClassName": "c",
    "adminAccess": False,
    "tolerations": [{}],
    "capacity": {"requests": {}},
    "derivedAttributes": [{}],
}
CLAIM = claim(
    spec={
        "devices": {
            "requests": [{"name": "a", "exactly": EXACTLY}, {"name": "b", "firstAvailable": [{"tolerations": [{}]}]}],
            "constraints": [{"distinctAttribute": "a/b"}],
        }
    },
    status={
        "allocation": {"devices": {"results": [RESULT]}, "allocationTimestamp": "t"},
        "devices": [{"shareID": "s"}],
    },
)
SLICE = {
    "kind": "ResourceSlice",
    "spec": {
        "perDeviceNodeSelection": True,
        "sharedCounters": [{}],
        "skipNodeOperations": ["*"],
        "devices": [
            {
                "name": "a",
                "taints": [{}],
                "nodeName": "n",
                "consumesCounters": [{"compatibilityGroups": ["x"]}],
                "bindsToNode": False,
                "bindingConditions": ["x"],
                "allowMultipleAllocations": True,
                "capacity": {"m": {"value": "1", "requestPolicy": {"default": "1"}}},
                "nodeAllocatableResourceMappings": {"cpu": {"capacityKey": "m"}},
                "nodeAllocatableResources": {"cpu": {"mapping": {"deviceMultiplier": "1"}}},
                "attributes": {"l": {"ints": [1]}, "i": {"int": 1}},
            }
        ],
    },
}
CLASS = {"kind": "DeviceClass", "spec": {"extendedResourceName": "example.com/gpu", "selectors": []}}
GATED = [
    (CLAIM, "DRAPrioritizedList", ["firstAvailable"]),
    (CLAIM, "DRAAdminAccess", ["adminAccess"]),
    (CLAIM, "DRADeviceTaints", ["tolerations"]),
    (CLAIM, "DRAConsumableCapacity", ["capacity", "distinctAttribute", "shareID"]),
    (CLAIM, "DRAResourceClaimDeviceStatus", ["status.devices", "bindingConditions", "allocationTimestamp"]),
    (CLAIM, "DRADeviceBindingConditions", ["bindingConditions", "allocationTimestamp"]),
    (SLICE, "DRADeviceTaints", ["taints"]),
    (SLICE, "DRAPartitionableDevices", ["perDeviceNodeSelection", "sharedCounters", "nodeName", "consumesCounters"]),
    (SLICE, "DRADeviceBindingConditions", ["bindsToNode", "bindingConditions"]),
    (SLICE, "DRAResourceClaimDeviceStatus", ["bindsToNode", "bindingConditions"]),
    (SLICE, "DRAConsumableCapacity", ["allowMultipleAllocations", "requestPolicy"]),
    (SLICE, "DRANodeAllocatableResources", ["nodeAllocatableResourceMappings", "nodeAllocatableResources"]),
    (CLAIM, "DRADerivedAttributes", ["derivedAttributes"]),
    (CLAIM, "DRAOptionalNodeOperations", ["skipNodeOperations"]),
    (SLICE, "DRAOptionalNodeOperations", ["skipNodeOperations"]),
    (SLICE, "DRADeviceCompatibilityGroups", ["compatibilityGroups"]),
    (SLICE, "DRAListTypeAttributes", ["ints"]),
    (CLASS, "DRAExtendedResource", ["extendedResourceName"]),
]


def without(*gates: str) -> FeatureGates:
    """All others on; one by one, as no release allows."""
    return msgspec.convert({name: name not in gates for name in GATE_OF.values()}, FeatureGates)


def leaves(value: object, path: str = "") -> set[str]:
    """Every field there is, as a path without the entries of lists."""
    if isinstance(value, dict):
        return {f"{path}.{key}" for key in value}.union(*(leaves(item, f"{path}.{key}") for key, item in value.items()))
    if isinstance(value, list):
        return set().union(*(leaves(item, f"{path}[]") for item in value))
    return set()


@pytest.mark.rule("K37-DA-04", "K37-ONO-03")
@pytest.mark.parametrize(("obj", "gate", "names"), GATED, ids=[f"{obj['kind']} {gate}" for obj, gate, _ in GATED])
def test_int_014_016_025_a_gate_that_is_off_takes_its_fields_away(
    obj: dict[str, Any], gate: str, names: list[str]
) -> None:
    gates = without(gate)
    new = copy.deepcopy(obj)
    drop_disabled_fields(new, None, gates)
    lost = leaves(obj) - leaves(new)
    assert lost
    assert all(any(name in path for name in names) for path in lost)
    assert {name for name in names if any(name in path for path in lost)} == set(names)
    used = copy.deepcopy(obj)
    drop_disabled_fields(used, obj, gates)
    assert used == obj, "an object that uses the feature keeps it"


@pytest.mark.parametrize("obj", [CLAIM, SLICE, CLASS], ids=lambda obj: obj["kind"])
def test_with_all_gates_on_nothing_is_lost(obj: dict[str, Any]) -> None:
    new = copy.deepcopy(obj)
    drop_disabled_fields(new, None, without())
    assert new == obj


def test_templates_lose_what_claims_lose() -> None:
    template = {"kind": "ResourceClaimTemplate", "spec": {"spec": copy.deepcopy(CLAIM["spec"])}}
    prepare_for_create(template, gates=without("DRAPrioritizedList"))
    assert template["spec"]["spec"]["devices"]["requests"][1] == {"name": "b"}  # type: ignore[index]  # a nested dict


@pytest.mark.parametrize(
    "obj",
    [{}, {"kind": "ResourceClaim", "spec": [], "status": 3}, {"kind": "ResourceSlice", "spec": {"devices": {"a": 1}}}],
)
def test_malformed_objects_are_left_to_validation(obj: dict[str, Any]) -> None:
    gates = without("DRADeviceTaints", "DRAPrioritizedList", "DRAConsumableCapacity")
    prepare_for_update(copy.deepcopy(obj), obj, gates=gates, now=NOW)
    prepare_for_status_update(copy.deepcopy(obj), obj, gates=gates)
    drop_disabled_fields(obj, None, gates)
    drop_disabled_fields(copy.deepcopy(CLAIM), obj, gates)


def _with_field(path: str) -> Any:
    """An object in which there is a value at the path, in each list of it one entry."""
    name, _, rest = path.partition(".")
    inner = _with_field(rest) if rest else "value"
    return [inner] if name == "*" else {name: inner}


EVERY_FIELD = [
    (kind, gate, it) for kind, gates in GATED_FIELDS.items() for gate, paths in gates.items() for it in paths
]


@pytest.mark.parametrize(("kind", "gate", "path"), EVERY_FIELD)
def test_each_field_that_a_gate_takes_away_is_named_beside_the_gate(kind: str, gate: str, path: str) -> None:
    obj = {"kind": kind, **_with_field(path)}
    off = without(*GATE_OF.values())
    if getattr(off, gate):
        return  # it comes with the release
    assert (gate, path) in set(disabled_fields(obj, off))
    assert list(disabled_fields(obj, without())) == []
    drop_disabled_fields(obj, None, off)
    assert list(disabled_fields(obj, off)) == []
