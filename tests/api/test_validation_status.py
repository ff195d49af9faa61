"""Rules of a claim's status, one fault at a time (api.md section 6)."""

from __future__ import annotations

from typing import Any

import pytest
from dra_api.resource import ResourceClaim
from dra_api.validation import validate_resource_claim_status
from objects import found, sample

RESULT = "status.allocation.devices.results.0"
IN_RESULT = "status.allocation.devices.results[0]"
REPORT = "status.devices.0"
CONFIG = "status.allocation.devices.config.0"
IN_CONFIG = "status.allocation.devices.config[0]"
FIELD = "status.allocation.nodeSelector.nodeSelectorTerms.0.matchFields.0"
IN_FIELD = "status.allocation.nodeSelector.nodeSelectorTerms[0].matchFields[0]"


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("status.reservedFor.0.uid", "", ["Required status.reservedFor[0].uid"]),
        ("status.reservedFor", lambda consumers: consumers * 2, ["Duplicate status.reservedFor[1]"]),
        (
            "status.reservedFor",
            [{"resource": "pods", "name": "p", "uid": f"{i}"} for i in range(257)],
            ["TooMany status.reservedFor"],
        ),
        ("status.allocation", ..., ["Forbidden status.reservedFor", "Invalid status.devices[0]"]),
        (f"{RESULT}.request", "s", []),
        (f"{RESULT}.driver", "", ["Invalid status.devices[0]", f"Required {IN_RESULT}.driver"]),
        (f"{RESULT}.device", "A", [f"Invalid {IN_RESULT}.device", "Invalid status.devices[0]"]),
        (f"{CONFIG}.source", "Odd", [f"NotSupported {IN_CONFIG}.source"]),
        (f"{CONFIG}.opaque", ..., [f"Required {IN_CONFIG}.opaque"]),
        (f"{RESULT}.bindingConditions", ["a"], [f"Invalid {IN_RESULT}.bindingFailureConditions"]),
        (f"{RESULT}.tolerations", [{}], [f"Required {IN_RESULT}.tolerations[0].operator"]),
        (f"{RESULT}.request", "s/u", [f"Invalid {IN_RESULT}.request"]),
        (f"{RESULT}.pool", "", ["Invalid status.devices[0]", f"Required {IN_RESULT}.pool"]),
        (f"{RESULT}.shareID", "x", [f"Invalid {IN_RESULT}.shareID", "Invalid status.devices[0]"]),
        ("status.allocation.devices.config.0.source", "", ["Required status.allocation.devices.config[0].source"]),
        (
            "status.allocation.devices.config.0.requests",
            ["no"],
            ["Invalid status.allocation.devices.config[0].requests[0]"],
        ),
        ("status.allocation.nodeSelector", {}, ["Required status.allocation.nodeSelector.nodeSelectorTerms"]),
        (f"{FIELD}.key", "spec.x", [f"Invalid {IN_FIELD}.key"]),
        (f"{FIELD}.operator", "Gt", [f"Invalid {IN_FIELD}.operator"]),
        (f"{FIELD}.values", ["a", "b"], [f"Required {IN_FIELD}.values"]),
        ("status.devices", lambda reports: reports * 2, ["Duplicate status.devices[1]"]),
        (f"{REPORT}.device", "b", ["Invalid status.devices[0]"]),
        (f"{REPORT}.data", [1], ["Invalid status.devices[0].data"]),
        (f"{REPORT}.conditions.0.status", "true", ["NotSupported status.devices[0].conditions[0].status"]),
        (f"{REPORT}.conditions.0.reason", "a b", ["Invalid status.devices[0].conditions[0].reason"]),
        (
            f"{REPORT}.conditions.0.lastTransitionTime",
            None,
            ["Required status.devices[0].conditions[0].lastTransitionTime"],
        ),
        (f"{REPORT}.driver", "", ["Invalid status.devices[0]", "Required status.devices[0].driver"]),
        (
            f"{REPORT}.conditions",
            lambda conditions: [{**conditions[0], "type": f"T{index}"} for index in range(9)],
            ["TooMany status.devices[0].conditions"],
        ),
        (f"{REPORT}.networkData.hardwareAddress", "x" * 129, ["TooLong status.devices[0].networkData.hardwareAddress"]),
        (f"{REPORT}.conditions.0.type", "a b", ["Invalid status.devices[0].conditions[0].type"]),
        (
            f"{REPORT}.conditions.0.observedGeneration",
            -1,
            ["Invalid status.devices[0].conditions[0].observedGeneration"],
        ),
        (f"{REPORT}.conditions.0.reason", "", ["Required status.devices[0].conditions[0].reason"]),
        (f"{REPORT}.conditions.0.reason", "R" * 1025, ["TooLong status.devices[0].conditions[0].reason"]),
        (f"{REPORT}.conditions.0.message", "m" * 32769, ["TooLong status.devices[0].conditions[0].message"]),
        (f"{REPORT}.conditions", lambda conditions: conditions * 2, ["Duplicate status.devices[0].conditions[1].type"]),
        (f"{REPORT}.networkData.interfaceName", "ä" * 129, ["TooLong status.devices[0].networkData.interfaceName"]),
        (f"{REPORT}.networkData.ips", ["10.0.0.1/24"] * 2, ["Duplicate status.devices[0].networkData.ips[1]"]),
    ],
)
def test_the_status_of_a_claim(path: str, value: object, expected: list[str]) -> None:
    new, old = sample(ResourceClaim, {path: value}), sample(ResourceClaim, {"status": {}})
    assert found(validate_resource_claim_status(new, old)) == expected


EXPRESSIONS = "status.allocation.nodeSelector.nodeSelectorTerms[0].matchExpressions[0]"


@pytest.mark.parametrize(
    ("requirement", "expected"),
    [
        ({"key": "a", "operator": "In", "values": ["b", "c"]}, []),
        ({"key": "a", "operator": "NotIn"}, [f"Required {EXPRESSIONS}.values"]),
        ({"key": "a", "operator": "Exists"}, []),
        ({"key": "a", "operator": "DoesNotExist", "values": ["b"]}, [f"Forbidden {EXPRESSIONS}.values"]),
        ({"key": "a", "operator": "Gt", "values": ["1"]}, []),
        ({"key": "a", "operator": "Lt", "values": ["1", "2"]}, [f"Required {EXPRESSIONS}.values"]),
        ({"key": "a b", "operator": "Exists"}, [f"Invalid {EXPRESSIONS}.key"]),
        ({"key": "a", "operator": "in", "values": ["b"]}, [f"Invalid {EXPRESSIONS}.operator"]),
        ({"key": "a", "operator": "In", "values": ["b", "c d"]}, [f"Invalid {EXPRESSIONS}.values[1]"]),
    ],
)
def test_node_selectors(requirement: dict[str, Any], expected: list[str]) -> None:
    terms = [{"matchExpressions": [requirement]}]
    new = sample(ResourceClaim, {"status.allocation.nodeSelector.nodeSelectorTerms": terms})
    assert found(validate_resource_claim_status(new, sample(ResourceClaim, {"status": {}}))) == expected


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        pytest.param(f"{RESULT}.device", "b", ["Invalid status.allocation", "Invalid status.devices[0]"], id="changed"),
        pytest.param("status", {}, [], id="removed"),
        pytest.param("status.reservedFor", [], [], id="not in use any more"),
        pytest.param("status.allocation.devices.results.0.tolerations", [], [], id="empty means absent"),
    ],
)
def test_an_allocation_can_only_be_removed(path: str, value: object, expected: list[str]) -> None:
    new, old = sample(ResourceClaim, {path: value}), sample(ResourceClaim)
    assert found(validate_resource_claim_status(new, old)) == expected


def test_an_allocation_that_breaks_a_new_rule_can_still_be_used() -> None:
    fault = {f"{RESULT}.request": "gone"}
    old = sample(ResourceClaim, {**fault, "status.reservedFor": []})
    assert validate_resource_claim_status(sample(ResourceClaim, fault), old) == []


@pytest.mark.parametrize(
    ("consumers", "expected"),
    [
        pytest.param(lambda consumers: consumers, [], id="the old ones stay"),
        pytest.param([], [], id="the old ones go"),
        pytest.param(
            lambda consumers: [*consumers, {"resource": "pods", "name": "q", "uid": "v"}],
            ["Forbidden status.reservedFor"],
            id="a new one",
        ),
    ],
)
def test_a_claim_in_deletion_gets_no_new_consumers(consumers: object, expected: list[str]) -> None:
    deleted = {"metadata.deletionTimestamp": "2026-01-01T00:00:00Z"}
    new = sample(ResourceClaim, {**deleted, "status.reservedFor": consumers})
    assert found(validate_resource_claim_status(new, sample(ResourceClaim, deleted))) == expected
