"""Rules of DeviceClass, DeviceTaintRule and ResourcePoolStatusRequest (api.md sections 5 and 7)."""

from __future__ import annotations

import pytest
from dra_api.codec import convert
from dra_api.gates import FeatureGates
from dra_api.resource import DeviceClass, DeviceTaintRule, ResourcePoolStatusRequest
from dra_api.scheduling import GangWorkload
from dra_api.validation import (
    SelectorVerdict,
    validate_device_class,
    validate_device_taint_rule,
    validate_device_taint_rule_status,
    validate_resource_pool_status_request,
    validate_resource_pool_status_request_status,
    validate_workload,
)
from objects import found, sample


def test_what_a_class_keeps_is_judged_as_stored() -> None:
    seen: list[tuple[str, bool]] = []

    def check_selector(expression: str, stored: bool) -> SelectorVerdict:
        seen.append((expression, stored))
        return SelectorVerdict()

    big = [{"opaque": {"driver": "d", "parameters": {"a": "x" * 10240}}}]
    old = sample(DeviceClass, {"spec.config": big})
    assert validate_device_class(old, old, check_selector=check_selector) == []
    new = sample(DeviceClass, {"spec.config": big * 2, "spec.selectors": lambda selectors: selectors * 2})
    errors = validate_device_class(new, old, check_selector=check_selector)
    assert found(errors) == ["TooLong spec.config[0].opaque.parameters", "TooLong spec.config[1].opaque.parameters"]
    assert seen == [("true", True), ("true", False), ("true", False)]


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("spec.taint.key", "", ["Invalid spec.taint.key"]),
        ("spec.taint.effect", "", ["Required spec.taint.effect"]),
        ("spec.taint.effect", "Odd", ["NotSupported spec.taint.effect"]),
        ("spec.taint.value", "a b", ["Invalid spec.taint.value"]),
        ("spec.deviceSelector", {}, []),
        (
            "spec.deviceSelector",
            {"driver": "", "pool": "", "device": ""},
            [
                "Invalid spec.deviceSelector.device",
                "Required spec.deviceSelector.driver",
                "Required spec.deviceSelector.pool",
            ],
        ),
    ],
)
def test_taint_rules(path: str, value: object, expected: list[str]) -> None:
    assert found(validate_device_taint_rule(sample(DeviceTaintRule, {path: value}))) == expected


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ({"apiGroup": "batch", "kind": "Job", "name": "train"}, []),
        ({"kind": "Pod", "name": "train"}, []),
        ({"apiGroup": "Batch", "kind": "Job", "name": "train"}, ["Invalid spec.controllerRef.apiGroup"]),
        ({"apiGroup": "batch"}, ["Required spec.controllerRef.kind", "Required spec.controllerRef.name"]),
        ({"kind": "a/b", "name": "train"}, ["Invalid spec.controllerRef.kind"]),
        ({"kind": "..", "name": "."}, ["Invalid spec.controllerRef.kind", "Invalid spec.controllerRef.name"]),
        ({"kind": "Job", "name": "50%"}, ["Invalid spec.controllerRef.name"]),
    ],
    ids=str,
)
def test_whom_a_workload_is_controlled_by(reference: dict[str, str], expected: list[str]) -> None:
    template, meta = {"name": "t", "schedulingPolicy": {"basic": {}}}, {"name": "w", "resourceVersion": "1"}
    meta |= {"namespace": "ns", "uid": "w"}
    spec = {"controllerRef": reference, "podGroupTemplates": [template]}
    workload = convert(GangWorkload, {"metadata": meta, "spec": spec})
    assert found(validate_workload(workload, gates=FeatureGates.of({}))) == expected
    other = convert(GangWorkload, {"metadata": meta, "spec": {"podGroupTemplates": [template]}})
    assert found(validate_workload(workload, other, gates=FeatureGates.of({}))) == ["Invalid spec.controllerRef"]


def test_an_unknown_effect_that_is_stored_may_stay() -> None:
    odd, odder = (sample(DeviceTaintRule, {"spec.taint.effect": effect}) for effect in ("Odd", "Odder"))
    assert validate_device_taint_rule(odd, odd) == []
    assert found(validate_device_taint_rule(odder, odd)) == ["NotSupported spec.taint.effect"]


def test_conditions_of_a_taint_rule() -> None:
    condition = {"status": "True", "reason": "R", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    conditions = [{**condition, "type": f"T{index}"} for index in range(9)]
    good, bad = (sample(DeviceTaintRule, {"status.conditions": conditions[:count]}) for count in (8, 9))
    assert validate_device_taint_rule_status(good, sample(DeviceTaintRule)) == []
    assert found(validate_device_taint_rule_status(bad, good)) == ["TooMany status.conditions"]


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("status.poolCount", ..., ["Required status.poolCount"]),
        ("status.poolCount", -1, ["Invalid status.poolCount"]),
        ("status.pools.0.driver", "", ["Required status.pools[0].driver"]),
        ("status.pools.0.driver", "a_b", ["Invalid status.pools[0].driver"]),
        ("status.pools.0.poolName", "", ["Required status.pools[0].poolName"]),
        ("status.pools.0.nodeName", "A", ["Invalid status.pools[0].nodeName"]),
        ("status.conditions.0.reason", "", ["Required status.conditions[0].reason"]),
        ("status.conditions", lambda conditions: conditions * 11, ["TooMany status.conditions"]),
        ("status.pools.0.totalDevices", -1, ["Invalid status.pools[0].totalDevices"]),
        ("status.pools.0.resourceSliceCount", 0, ["Invalid status.pools[0].resourceSliceCount"]),
        ("status.pools.0.validationError", "ä" * 129, ["TooLong status.pools[0].validationError"]),
        ("status", ..., []),
    ],
)
def test_pool_status(path: str, value: object, expected: list[str]) -> None:
    new, old = (sample(ResourcePoolStatusRequest, changes) for changes in ({path: value}, {"status": ...}))
    assert found(validate_resource_pool_status_request_status(new, old)) == expected


@pytest.mark.parametrize("limit", [0, -1, 1001])
def test_the_limit_of_a_pool_status_request(limit: int) -> None:
    it = sample(ResourcePoolStatusRequest, {"spec.limit": limit})
    assert found(validate_resource_pool_status_request(it)) == ["Invalid spec.limit"]


def test_pool_status_requests_never_change() -> None:
    old = sample(ResourcePoolStatusRequest)
    limit, count = (sample(ResourcePoolStatusRequest, {path: 2}) for path in ("spec.limit", "status.poolCount"))
    assert found(validate_resource_pool_status_request(limit, old)) == ["Invalid spec"]
    assert found(validate_resource_pool_status_request_status(count, old)) == ["Invalid status"]
    assert validate_resource_pool_status_request_status(old, old) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, []),
        ({"name": ""}, ["Required spec.podGroupTemplates[0].name"]),
        ({"name": "a.b"}, ["Invalid spec.podGroupTemplates[0].name"]),
        ({"preemptionPolicy": "Sometimes"}, ["NotSupported spec.podGroupTemplates[0].preemptionPolicy"]),
        ({"priority": 1_000_000_000}, []),
        ({"priority": 1_000_000_001}, ["Invalid spec.podGroupTemplates[0].priority"]),
        ({"priorityClassName": "A"}, ["Invalid spec.podGroupTemplates[0].priorityClassName"]),
    ],
    ids=str,
)
def test_templates_of_groups(change: dict[str, object], expected: list[str]) -> None:
    template = {"name": "t", "schedulingPolicy": {"basic": {}}, **change}
    meta = {"name": "w", "namespace": "ns", "uid": "w", "resourceVersion": "1"}
    workload = convert(GangWorkload, {"metadata": meta, "spec": {"podGroupTemplates": [template]}})
    assert found(validate_workload(workload, gates=FeatureGates.of({}))) == expected
