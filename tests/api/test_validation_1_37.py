"""Fields that came with 1.37, one fault at a time: what the API server refuses in slices, claims and requests."""

from __future__ import annotations

import pytest
from dra_api.gates import FeatureGates
from dra_api.releases import Release
from dra_api.resource import ResourceClaim, ResourcePoolStatusRequest, ResourceSlice
from dra_api.validation import (
    validate_resource_claim,
    validate_resource_claim_status,
    validate_resource_pool_status_request,
    validate_resource_slice,
)
from objects import found, sample

TYPES_ON = {"DRAResourcePoolStatus": True, "DRAPartitionableDevicesType": True}
GATES = FeatureGates.of(TYPES_ON, Release.V1_37)
GROUPS = "spec.devices[0].consumesCounters[0].compatibilityGroups"
CPU = "spec.devices[0].nodeAllocatableResources[cpu]"


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        (["a", "b"], []),
        ([], []),
        (["a", "b", "c"], [f"TooMany {GROUPS}"]),
        (["a", "a"], [f"Duplicate {GROUPS}[1]"]),
        (["A"], [f"Invalid {GROUPS}[0]"]),
    ],
)
def test_compatibility_groups(groups: list[str], expected: list[str]) -> None:
    """At most two, all different, each a DNS label (KEP-5963)."""
    consumed = [{"counterSet": "s", "counters": {"c": {"value": "1"}}, "compatibilityGroups": groups}]
    it = sample(ResourceSlice, {"spec.devices.0.consumesCounters": consumed})
    assert found(validate_resource_slice(it)) == expected


OPERATIONS = [
    (["NodePrepareResources", "NodeUnprepareResources"], []),
    (["*"], []),
    (["NodeUnprepareResources"], []),
    (["NodePrepareResources", "*"], []),
    (["NodePrepareResources"], ["Invalid "]),
    (["*", "*"], ["Duplicate [1]"]),
    (["Future"], ["NotSupported [0]"]),
]


@pytest.mark.rule("K37-ONO-01")
@pytest.mark.parametrize(("operations", "expected"), OPERATIONS)
def test_skipped_operations(operations: list[str], expected: list[str]) -> None:
    """In slices and in results; the gate does not matter to validation."""
    path = "spec.skipNodeOperations"
    wrong = found(validate_resource_slice(sample(ResourceSlice, {path: operations})))
    assert wrong == [fault.replace(" ", f" {path}", 1) for fault in expected]
    path, old = "status.allocation.devices.results[0].skipNodeOperations", sample(ResourceClaim, {"status": {}})
    claim = sample(ResourceClaim, {"status.allocation.devices.results.0.skipNodeOperations": operations})
    assert found(validate_resource_claim_status(claim, old)) == [
        fault.replace(" ", f" {path}", 1) for fault in expected
    ]


@pytest.mark.parametrize(
    ("resource", "expected"),
    [
        ({"mapping": {"capacityKey": "memory", "capacityMultiplier": "1"}, "overhead": {"perPod": "1"}}, []),
        ({"mapping": {"deviceMultiplier": "2"}}, []),
        ({}, [f"Required {CPU}"]),
        ({"overhead": {}}, [f"Required {CPU}.overhead"]),
        ({"overhead": {"perContainer": "0"}}, [f"Invalid {CPU}.overhead.perContainer"]),
        ({"mapping": {}}, [f"Required {CPU}.mapping"]),
        ({"mapping": {"capacityKey": "memory"}}, [f"Required {CPU}.mapping.capacityMultiplier"]),
        (
            {"mapping": {"capacityMultiplier": "1"}},
            [f"Required {CPU}.mapping", f"Required {CPU}.mapping.capacityKey"],
        ),
        (
            {"mapping": {"capacityKey": "memory", "capacityMultiplier": "1", "deviceMultiplier": "1"}},
            [f"Invalid {CPU}.mapping"],
        ),
        (
            {"mapping": {"capacityKey": "none", "capacityMultiplier": "1"}},
            [f"NotFound {CPU}.mapping.capacityKey"],
        ),
        ({"mapping": {"deviceMultiplier": "-1"}}, [f"Invalid {CPU}.mapping.deviceMultiplier"]),
    ],
)
def test_node_allocatable_resources(resource: object, expected: list[str]) -> None:
    """Case N9 of the specification, and the rest of the table there."""
    it = sample(ResourceSlice, {"spec.devices.0.nodeAllocatableResources": {"cpu": resource}})
    assert found(validate_resource_slice(it)) == expected


def test_only_resources_of_nodes_come_with_a_device() -> None:
    resources = {"example.com/gpu": {"mapping": {"deviceMultiplier": "1"}}}
    it = sample(ResourceSlice, {"spec.devices.0.nodeAllocatableResources": resources})
    assert found(validate_resource_slice(it)) == ["Invalid spec.devices[0].nodeAllocatableResources[example.com/gpu]"]


@pytest.mark.rule("K37-DA-01", "K37-DA-02")
@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ([{"name": "a.b/c", "expression": "1"}], []),
        ([{"name": "a.b/d", "expression": "1"}], ["Invalid .name"]),
        ([{"name": "c", "expression": "1"}], ["Invalid .name"]),
        ([{"name": "a.b/c"}], ["Required .expression"]),
        ([{"name": "a.b/c", "expression": "1" * 10241}], ["TooLong .expression"]),
    ],
)
def test_derived_attributes(attributes: list[dict[str, str]], expected: list[str]) -> None:
    for path, where in (
        ("spec.devices.requests.0.exactly", "spec.devices.requests[0].exactly"),
        ("spec.devices.requests.1.firstAvailable.0", "spec.devices.requests[1].firstAvailable[0]"),
    ):
        it = sample(ResourceClaim, {f"{path}.derivedAttributes": attributes})
        wrong = found(validate_resource_claim(it, gates=GATES))
        assert wrong == [fault.replace(" ", f" {where}.derivedAttributes[0]", 1) for fault in expected]


def test_a_derived_attribute_is_compared_in_its_own_alternative() -> None:
    """The constraint of the sample applies to request r and alternative s/t."""
    wanted = {"derivedAttributes": [{"name": "a.b/c", "expression": "1"}], "deviceClassName": "c"}
    other = {"name": "u", "allocationMode": "All", **wanted}
    it = sample(ResourceClaim, {"spec.devices.requests.1.firstAvailable": lambda old: [*old, other]})
    path = "spec.devices.requests[1].firstAvailable[1].derivedAttributes[0].name"
    assert found(validate_resource_claim(it, gates=GATES)) == [f"Invalid {path}"]


@pytest.mark.parametrize(
    ("name", "on", "off"),
    [("a.b/c", [], ["Forbidden"]), ("c", ["Invalid"], ["Forbidden"]), (None, [], [])],
)
def test_the_attribute_of_partition_types_needs_its_gate(name: str | None, on: list[str], off: list[str]) -> None:
    """Forbidden, not dropped: kubernetes-1.37.md section 13."""
    plain = FeatureGates.of({}, Release.V1_37)
    it = sample(ResourceSlice, {"spec.partitionTypeAttribute": name})
    request = sample(ResourcePoolStatusRequest, {"spec.defaultPartitionTypeAttribute": name})
    for gates, expected in ((GATES, on), (plain, off)):
        path = "spec.partitionTypeAttribute"
        assert found(validate_resource_slice(it, gates=gates)) == [f"{fault} {path}" for fault in expected]
        path = "spec.defaultPartitionTypeAttribute"
        wrong = found(validate_resource_pool_status_request(request, gates=gates))
        assert wrong == [f"{fault} {path}" for fault in expected]
