"""Rules of each kind, one fault at a time, on objects that are otherwise valid (api.md sections 4 to 7).

The reference's own tables are in test_validation_conformance; these stand without them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from dra_api.codec import convert
from dra_api.gates import FeatureGates
from dra_api.meta import Object
from dra_api.resource import (
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourcePoolStatusRequest,
    ResourceSlice,
)
from dra_api.validation import (
    FieldError,
    SelectorVerdict,
    driver_warnings,
    validate_device_class,
    validate_device_taint_rule,
    validate_device_taint_rule_status,
    validate_resource_claim,
    validate_resource_claim_status,
    validate_resource_claim_template,
    validate_resource_pool_status_request,
    validate_resource_pool_status_request_status,
    validate_resource_slice,
)

META = {"name": "x", "resourceVersion": "1"}
ID = {"driver": "d.example.com", "pool": "p", "device": "a"}
CONDITION = {"type": "T", "status": "True", "reason": "R", "lastTransitionTime": "2026-01-01T00:00:00Z"}
DELETE = object()
SLICE: dict[str, Any] = {
    "metadata": META,
    "spec": {
        "driver": "d.example.com",
        "pool": {"name": "p", "resourceSliceCount": 1},
        "nodeName": "n",
        "devices": [
            {
                "name": "a",
                "attributes": {"model": {"string": "m"}},
                "capacity": {"memory": {"value": "10Gi"}},
                "taints": [{"key": "k", "effect": "NoSchedule"}],
            }
        ],
    },
}
CLAIM: dict[str, Any] = {
    "metadata": {**META, "namespace": "ns"},
    "spec": {
        "devices": {
            "requests": [
                {
                    "name": "r",
                    "exactly": {
                        "deviceClassName": "c",
                        "allocationMode": "ExactCount",
                        "count": 1,
                        "selectors": [{"cel": {"expression": "true"}}],
                        "tolerations": [{"operator": "Exists"}],
                    },
                },
                {
                    "name": "s",
                    "firstAvailable": [{"name": "t", "deviceClassName": "c", "allocationMode": "All"}],
                },
            ],
            "constraints": [{"requests": ["r", "s/t"], "matchAttribute": "a.b/c"}],
            "config": [{"requests": ["s"], "opaque": {"driver": "d", "parameters": {}}}],
        }
    },
    "status": {
        "allocation": {
            "devices": {
                "results": [{"request": "s/t", **ID}],
                "config": [{"source": "FromClaim", "opaque": {"driver": "d", "parameters": {}}}],
            },
            "nodeSelector": {
                "nodeSelectorTerms": [
                    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]},
                ]
            },
        },
        "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}],
        "devices": [{**ID, "conditions": [CONDITION], "data": {"a": 1}, "networkData": {"ips": ["10.0.0.1/24"]}}],
    },
}
CLASS: dict[str, Any] = {"metadata": META, "spec": {"selectors": [{"cel": {"expression": "true"}}], "config": []}}
TEMPLATE: dict[str, Any] = {"metadata": CLAIM["metadata"], "spec": {"spec": CLAIM["spec"]}}
RULE: dict[str, Any] = {"metadata": META, "spec": {"taint": {"key": "k", "effect": "NoExecute"}}}
POOL_STATUS: dict[str, Any] = {
    "metadata": META,
    "spec": {"driver": "d", "limit": 1},
    "status": {
        "poolCount": 1,
        "pools": [{"driver": "d", "poolName": "p", "generation": 0, "resourceSliceCount": 1}],
        "conditions": [CONDITION],
    },
}


def changed(obj: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy with another value at a path such as ``spec.devices.0.name``."""
    obj = part = copy.deepcopy(obj)
    *steps, last = (int(step) if step.isdigit() else step for step in path.split("."))
    for step in steps:
        part = part[step] if isinstance(step, int) else part.setdefault(step, {})
    if value is DELETE:
        del part[last]
    else:
        part[last] = value
    return obj


def found(errors: list[FieldError]) -> list[str]:
    return sorted({f"{error.type.removeprefix('FieldValue')} {error.field}" for error in errors})


VALIDATORS: list[tuple[dict[str, Any], type[Object], Callable[..., list[FieldError]]]] = [
    (SLICE, ResourceSlice, validate_resource_slice),
    (CLAIM, ResourceClaim, validate_resource_claim),
    (CLASS, DeviceClass, validate_device_class),
    (TEMPLATE, ResourceClaimTemplate, validate_resource_claim_template),
    (RULE, DeviceTaintRule, validate_device_taint_rule),
    (POOL_STATUS, ResourcePoolStatusRequest, validate_resource_pool_status_request),
]


@pytest.mark.parametrize(("obj", "type_", "validate"), VALIDATORS, ids=[type_.__name__ for _, type_, _ in VALIDATORS])
class TestEveryKind:
    def test_a_valid_object_has_no_errors(self, obj: Any, type_: type[Object], validate: Any) -> None:
        assert validate(convert(type_, obj)) == []
        assert validate(convert(type_, obj), convert(type_, obj)) == []

    @pytest.mark.parametrize(
        ("path", "value", "expected"),
        [
            ("metadata.name", "", "Required metadata.name"),
            ("metadata.name", "A", "Invalid metadata.name"),
            ("metadata.generateName", "A-", "Invalid metadata.generateName"),
            ("metadata.generation", -1, "Invalid metadata.generation"),
            ("metadata.labels", {"a b": ""}, "Invalid metadata.labels"),
            ("metadata.labels", {"a": "b c"}, "Invalid metadata.labels"),
            ("metadata.annotations", {"a b": ""}, "Invalid metadata.annotations"),
            ("metadata.annotations", {"a": "x" * 262_144}, "TooLong metadata.annotations"),
            ("metadata.finalizers", ["odd"], "Invalid metadata.finalizers[0]"),
            ("metadata.finalizers", ["a b/c"], "Invalid metadata.finalizers"),
            ("metadata.finalizers", ["orphan", "foregroundDeletion"], "Invalid metadata.finalizers"),
            (
                "metadata.ownerReferences",
                [{"apiVersion": "v1", "kind": "Pod", "uid": "u"}],
                "Invalid metadata.ownerReferences.name",
            ),
            (
                "metadata.ownerReferences",
                [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": True} for uid in "uv"],
                "Invalid metadata.ownerReferences",
            ),
        ],
    )
    def test_metadata(self, obj: Any, type_: type[Object], validate: Any, path: str, value: Any, expected: str) -> None:
        assert found(validate(convert(type_, changed(obj, path, value)))) == [expected]

    @pytest.mark.parametrize("name", ["a", "a.b", "x-"])
    def test_generated_names(self, obj: Any, type_: type[Object], validate: Any, name: str) -> None:
        assert validate(convert(type_, changed(obj, "metadata.generateName", name))) == []

    def test_namespaces(self, obj: Any, type_: type[Object], validate: Any) -> None:
        namespaced = "namespace" in obj["metadata"]
        wrong = changed(obj, "metadata.namespace", "" if namespaced else "ns")
        expected = "Required metadata.namespace" if namespaced else "Forbidden metadata.namespace"
        assert found(validate(convert(type_, wrong))) == [expected]

    @pytest.mark.parametrize(
        ("path", "value", "expected"),
        [
            ("metadata.name", "y", "Invalid metadata.name"),
            ("metadata.uid", "y", "Invalid metadata.uid"),
            ("metadata.deletionTimestamp", "2026-01-01T00:00:00Z", "Invalid metadata.deletionTimestamp"),
            ("metadata.resourceVersion", "", "Invalid metadata.resourceVersion"),
            ("metadata.labels", {"a b": ""}, "Invalid metadata.labels"),
        ],
    )
    def test_updates(self, obj: Any, type_: type[Object], validate: Any, path: str, value: Any, expected: str) -> None:
        assert found(validate(convert(type_, changed(obj, path, value)), convert(type_, obj))) == [expected]

    def test_an_object_in_deletion_gets_no_finalizer(self, obj: Any, type_: type[Object], validate: Any) -> None:
        old = changed(obj, "metadata.deletionTimestamp", "2026-01-01T00:00:00Z")
        new = changed(old, "metadata.finalizers", ["a/b"])
        assert found(validate(convert(type_, new), convert(type_, old))) == ["Forbidden metadata.finalizers"]
        assert validate(convert(type_, old), convert(type_, new)) == []


POLICY = "spec.devices.0.capacity.memory.requestPolicy"
SHAREABLE = changed(SLICE, "spec.devices.0.allowMultipleAllocations", True)


@pytest.mark.parametrize(
    ("obj", "path", "value", "expected"),
    [
        (SLICE, "spec.driver", "", ["Required spec.driver"]),
        (SLICE, "spec.driver", "D.example.com", []),
        (SLICE, "spec.pool.name", "a//b", ["Invalid spec.pool.name"]),
        (SLICE, "spec.pool.generation", -1, ["Invalid spec.pool.generation"]),
        (SLICE, "spec.pool.resourceSliceCount", 0, ["Invalid spec.pool.resourceSliceCount"]),
        (SLICE, "spec.nodeName", DELETE, ["Required spec"]),
        (SLICE, "spec.nodeName", "", ["Invalid spec.nodeName", "Required spec"]),
        (SLICE, "spec.allNodes", True, ["Invalid spec"]),
        (SLICE, "spec.allNodes", False, ["Invalid spec.allNodes"]),
        (SLICE, "spec.sharedCounters", [{"name": "s", "counters": {"c": {"value": "1"}}}], ["Invalid spec"]),
        (SLICE, "spec.devices", [], []),
        (SLICE, "spec.devices", [{"name": "a"}, {"name": "a"}], ["Duplicate spec.devices[1]"]),
        (SLICE, "spec.devices", [{"name": f"d{i}"} for i in range(129)], ["TooMany spec.devices"]),
        (SLICE, "spec.devices", [{"name": f"d{i}"} for i in range(128)], []),
        (
            SLICE,
            "spec.devices",
            SLICE["spec"]["devices"] + [{"name": f"d{i}"} for i in range(64)],
            ["TooMany spec.devices"],
        ),
        (SLICE, "spec.devices.0.name", "A", ["Invalid spec.devices[0].name"]),
        (SLICE, "spec.devices.0.attributes", {f"a{i}": {"int": i} for i in range(32)}, ["Invalid spec.devices[0]"]),
        (SLICE, "spec.devices.0.attributes.model", {}, ["Invalid spec.devices[0].attributes[model]"]),
        (SLICE, "spec.devices.0.attributes.model", {"int": 0}, []),
        (SLICE, "spec.devices.0.attributes.model", {"ints": []}, ["Invalid spec.devices[0].attributes[model].ints"]),
        (
            SLICE,
            "spec.devices.0.attributes.model",
            {"strings": ["", "x" * 65]},
            ["TooLong spec.devices[0].attributes[model].strings[1]"],
        ),
        (SLICE, "spec.devices.0.attributes.model", {"ints": [0] * 49}, ["Invalid spec.devices[0]"]),
        (
            SLICE,
            "spec.devices.0.capacity",
            {"x" * 120: {"value": "1", "requestPolicy": {}}},
            [
                "Forbidden spec.devices[0].capacity[" + "x" * 47 + "..." + "x" * 46 + "].requestPolicy",
                "TooLong spec.devices[0].capacity",
            ],
        ),
        (SLICE, "spec.devices.0.taints.0.effect", "", ["Required spec.devices[0].taints[0].effect"]),
        (SLICE, "spec.devices.0.nodeName", "n", ["Invalid spec.devices[0]"]),
        (
            SLICE,
            "spec.devices.0.consumesCounters",
            [{"counterSet": "s", "counters": {}}, {"counterSet": "s", "counters": {"c": {"value": "1"}}}],
            ["Duplicate spec.devices[0].consumesCounters[1]", "Required spec.devices[0].consumesCounters[0].counters"],
        ),
        (SLICE, "spec.devices.0.bindingConditions", ["a"], ["Invalid spec.devices[0].bindingFailureConditions"]),
        (
            SLICE,
            "spec.devices.0.nodeAllocatableResourceMappings",
            {"cpu": {"capacityKey": "no"}, "a.b/c": {"allocationMultiplier": "1"}},
            [
                "Invalid spec.devices[0].nodeAllocatableResourceMappings[a.b/c]",
                "NotFound spec.devices[0].nodeAllocatableResourceMappings[cpu].capacityKey",
            ],
        ),
        (SLICE, POLICY, {}, ["Forbidden spec.devices[0].capacity[memory].requestPolicy"]),
        (SHAREABLE, POLICY, {}, []),
        (SHAREABLE, POLICY, {"default": "1Gi"}, []),
        (
            SHAREABLE,
            POLICY,
            {"default": "1", "validRange": {"min": "1", "step": "0"}},
            ["Invalid spec.devices[0].capacity[memory].requestPolicy.validRange.step"],
        ),
        (
            SHAREABLE,
            POLICY,
            {"default": "1", "validRange": {"min": "1", "step": "-1"}},
            ["Invalid spec.devices[0].capacity[memory].requestPolicy.validRange.step"],
        ),
        (
            SHAREABLE,
            POLICY,
            {"default": "1", "validValues": [str(i) for i in range(1, 12)]},
            ["TooMany spec.devices[0].capacity[memory].requestPolicy.validValues"],
        ),
    ],
)
def test_slices(obj: dict[str, Any], path: str, value: Any, expected: list[str]) -> None:
    assert found(validate_resource_slice(convert(ResourceSlice, changed(obj, path, value)))) == expected


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("spec.driver", "other", ["Invalid spec.driver"]),
        ("spec.pool.name", "other", ["Invalid spec.pool.name"]),
        ("spec.nodeName", "other", ["Invalid spec.nodeName"]),
        ("spec.pool.generation", 2, []),
        ("spec.devices", [], []),
        ("spec.devices.0.taints.0.effect", "Odd", ["NotSupported spec.devices[0].taints[0].effect"]),
    ],
)
def test_slice_updates(path: str, value: Any, expected: list[str]) -> None:
    new, old = (convert(ResourceSlice, obj) for obj in (changed(SLICE, path, value), SLICE))
    assert found(validate_resource_slice(new, old)) == expected


def test_faulty_taints_and_capacities_that_are_stored_do_not_block_updates() -> None:
    old = changed(changed(SLICE, "spec.devices.0.taints.0.effect", "Odd"), POLICY, {})
    new = changed(old, "spec.pool.generation", 3)
    assert validate_resource_slice(convert(ResourceSlice, new), convert(ResourceSlice, old)) == []


def test_upper_case_in_the_name_of_a_driver_is_warned_about() -> None:
    assert driver_warnings(convert(ResourceSlice, SLICE)) == []
    (warning,) = driver_warnings(convert(ResourceSlice, changed(SLICE, "spec.driver", "D.io")))
    assert warning == 'spec.driver: driver names should be lowercase; "D.io" contains uppercase characters'


DEVICES, EXACTLY = "spec.devices", "spec.devices.requests.0.exactly"
IN_EXACTLY = "spec.devices.requests[0].exactly"


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        (
            f"{DEVICES}.requests",
            [],
            [
                "Invalid spec.devices.config[0].requests[0]",
                "Invalid spec.devices.constraints[0].requests[0]",
                "Invalid spec.devices.constraints[0].requests[1]",
            ],
        ),
        (f"{DEVICES}.requests.0.exactly", DELETE, ["Required spec.devices.requests[0]"]),
        (
            f"{DEVICES}.requests.0.name",
            "s",
            ["Duplicate spec.devices.requests[1]", "Invalid spec.devices.constraints[0].requests[0]"],
        ),
        (
            f"{DEVICES}.requests.1.firstAvailable.0.count",
            1,
            ["Invalid spec.devices.requests[1].firstAvailable[0].count"],
        ),
        (f"{EXACTLY}.deviceClassName", "", [f"Required {IN_EXACTLY}.deviceClassName"]),
        (f"{EXACTLY}.count", 0, [f"Invalid {IN_EXACTLY}.count"]),
        (f"{EXACTLY}.allocationMode", "", [f"NotSupported {IN_EXACTLY}.allocationMode"]),
        (f"{EXACTLY}.tolerations.0.value", "x", [f"Invalid {IN_EXACTLY}.tolerations[0].value"]),
        (f"{EXACTLY}.selectors.0.cel", DELETE, [f"Required {IN_EXACTLY}.selectors[0].cel"]),
        (f"{EXACTLY}.selectors.0.cel.expression", "bad", [f"Invalid {IN_EXACTLY}.selectors[0].cel.expression"]),
        (f"{EXACTLY}.selectors.0.cel.expression", "costly", [f"Forbidden {IN_EXACTLY}.selectors[0].cel.expression"]),
        (f"{EXACTLY}.selectors.0.cel.expression", "b" * 10241, [f"TooLong {IN_EXACTLY}.selectors[0].cel.expression"]),
        (f"{DEVICES}.constraints.0.requests", ["r", "r"], ["Duplicate spec.devices.constraints[0].requests[1]"]),
        (f"{DEVICES}.constraints.0.requests", ["r/t"], ["Invalid spec.devices.constraints[0].requests[0]"]),
        (f"{DEVICES}.constraints.0.requests", ["s/t/u"], ["Invalid spec.devices.constraints[0].requests[0]"]),
        (f"{DEVICES}.constraints.0.matchAttribute", DELETE, ["Required spec.devices.constraints[0]"]),
        (f"{DEVICES}.constraints.0.distinctAttribute", "ignored", []),
        (f"{DEVICES}.constraints", [{"matchAttribute": "a/b"}] * 33, ["TooMany spec.devices.constraints"]),
        (f"{DEVICES}.config.0.opaque", DELETE, ["Required spec.devices.config[0].opaque"]),
        (f"{DEVICES}.config.0.opaque.parameters", None, ["Required spec.devices.config[0].opaque.parameters"]),
        (f"{DEVICES}.config.0.opaque.parameters", [], ["Invalid spec.devices.config[0].opaque.parameters"]),
    ],
)
def test_claims_and_templates(path: str, value: Any, expected: list[str]) -> None:
    def check_selector(expression: str, stored: bool) -> SelectorVerdict:
        assert not stored
        assert len(expression) <= 10240
        return SelectorVerdict(
            "no" if expression == "bad" else None, 1_000_001 if expression == "costly" else 1_000_000
        )

    obj = changed(CLAIM, path, value)
    assert found(validate_resource_claim(convert(ResourceClaim, obj), check_selector=check_selector)) == expected
    template = convert(ResourceClaimTemplate, {"metadata": obj["metadata"], "spec": {"spec": obj["spec"]}})
    errors = found(validate_resource_claim_template(template, check_selector=check_selector))
    assert errors == [error.replace(" spec.", " spec.spec.") for error in expected]


def test_without_consumable_capacity_a_constraint_can_only_match() -> None:
    obj = convert(ResourceClaim, changed(CLAIM, f"{DEVICES}.constraints.0.matchAttribute", DELETE))
    errors = validate_resource_claim(obj, gates=FeatureGates.of({"DRAConsumableCapacity": False}))
    assert found(errors) == ["Required spec.devices.constraints[0].matchAttribute"]


@pytest.mark.parametrize("empty", [[], None])
def test_the_spec_of_claims_and_templates_is_immutable(empty: Any) -> None:
    old = changed(CLAIM, f"{DEVICES}.config", DELETE)
    for new, expected in ((changed(old, f"{DEVICES}.config", empty), []), (CLAIM, ["Invalid spec"])):
        assert found(validate_resource_claim(convert(ResourceClaim, new), convert(ResourceClaim, old))) == expected
        templates = [
            convert(ResourceClaimTemplate, {"metadata": obj["metadata"], "spec": {"spec": obj["spec"]}})
            for obj in (new, old)
        ]
        assert found(validate_resource_claim_template(*templates)) == expected


def test_metadata_in_a_template() -> None:
    inner = {"labels": {"a": "b c"}, "annotations": {"a b": ""}, "name": "n", "finalizers": []}
    template = convert(ResourceClaimTemplate, changed(TEMPLATE, "spec.metadata", inner))
    assert found(validate_resource_claim_template(template)) == [
        "Forbidden spec.metadata.name",
        "Invalid spec.metadata.annotations",
        "Invalid spec.metadata.labels",
    ]


UNALLOCATED = changed(CLAIM, "status", {})
RESULT = "status.allocation.devices.results.0"
IN_RESULT = "status.allocation.devices.results[0]"
REPORT = "status.devices.0"
FIELD = "status.allocation.nodeSelector.nodeSelectorTerms.0.matchFields.0"
IN_FIELD = "status.allocation.nodeSelector.nodeSelectorTerms[0].matchFields[0]"


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("status.reservedFor.0.uid", "", ["Required status.reservedFor[0].uid"]),
        ("status.reservedFor", CLAIM["status"]["reservedFor"] * 2, ["Duplicate status.reservedFor[1]"]),
        (
            "status.reservedFor",
            [{"resource": "pods", "name": "p", "uid": f"{i}"} for i in range(257)],
            ["TooMany status.reservedFor"],
        ),
        ("status.allocation", DELETE, ["Forbidden status.reservedFor", "Invalid status.devices[0]"]),
        (f"{RESULT}.request", "s", []),
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
        ("status.devices", CLAIM["status"]["devices"] * 2, ["Duplicate status.devices[1]"]),
        (f"{REPORT}.device", "b", ["Invalid status.devices[0]"]),
        (f"{REPORT}.data", [1], ["Invalid status.devices[0].data"]),
        (f"{REPORT}.conditions.0.status", "true", ["NotSupported status.devices[0].conditions[0].status"]),
        (f"{REPORT}.conditions.0.reason", "a b", ["Invalid status.devices[0].conditions[0].reason"]),
        (
            f"{REPORT}.conditions.0.lastTransitionTime",
            None,
            ["Required status.devices[0].conditions[0].lastTransitionTime"],
        ),
        (f"{REPORT}.conditions", [CONDITION, CONDITION], ["Duplicate status.devices[0].conditions[1].type"]),
        (f"{REPORT}.networkData.interfaceName", "ä" * 129, ["TooLong status.devices[0].networkData.interfaceName"]),
        (f"{REPORT}.networkData.ips", ["10.0.0.1/24"] * 2, ["Duplicate status.devices[0].networkData.ips[1]"]),
    ],
)
def test_the_status_of_a_claim(path: str, value: Any, expected: list[str]) -> None:
    new, old = (convert(ResourceClaim, obj) for obj in (changed(CLAIM, path, value), UNALLOCATED))
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
    term = [{"matchExpressions": [requirement]}]
    new = changed(CLAIM, "status.allocation.nodeSelector.nodeSelectorTerms", term)
    errors = validate_resource_claim_status(convert(ResourceClaim, new), convert(ResourceClaim, UNALLOCATED))
    assert found(errors) == expected


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        pytest.param(f"{RESULT}.device", "b", ["Invalid status.allocation", "Invalid status.devices[0]"], id="changed"),
        pytest.param("status", {}, [], id="removed"),
        pytest.param("status.reservedFor", [], [], id="not in use any more"),
        pytest.param("status.allocation.devices.results.0.tolerations", [], [], id="empty means absent"),
    ],
)
def test_an_allocation_can_only_be_removed(path: str, value: Any, expected: list[str]) -> None:
    new, old = (convert(ResourceClaim, obj) for obj in (changed(CLAIM, path, value), CLAIM))
    assert found(validate_resource_claim_status(new, old)) == expected


def test_an_allocation_that_breaks_a_new_rule_can_still_be_used() -> None:
    old = changed(changed(CLAIM, f"{RESULT}.request", "gone"), "status.reservedFor", [])
    new = changed(old, "status.reservedFor", CLAIM["status"]["reservedFor"])
    assert validate_resource_claim_status(convert(ResourceClaim, new), convert(ResourceClaim, old)) == []


def test_a_claim_in_deletion_gets_no_new_consumers() -> None:
    old = changed(CLAIM, "metadata.deletionTimestamp", "2026-01-01T00:00:00Z")
    more = changed(
        old, "status.reservedFor", [*CLAIM["status"]["reservedFor"], {"resource": "pods", "name": "q", "uid": "v"}]
    )
    for new, expected in (
        (more, ["Forbidden status.reservedFor"]),
        (changed(old, "status.reservedFor", []), []),
        (old, []),
    ):
        assert (
            found(validate_resource_claim_status(convert(ResourceClaim, new), convert(ResourceClaim, old))) == expected
        )


def test_what_a_class_keeps_is_judged_as_stored() -> None:
    seen: list[tuple[str, bool]] = []

    def check_selector(expression: str, stored: bool) -> SelectorVerdict:
        seen.append((expression, stored))
        return SelectorVerdict()

    big = [{"opaque": {"driver": "d", "parameters": {"a": "x" * 10240}}}]
    old = convert(DeviceClass, changed(CLASS, "spec.config", big))
    assert validate_device_class(old, old, check_selector=check_selector) == []
    new = convert(
        DeviceClass, changed(changed(CLASS, "spec.config", big * 2), "spec.selectors", CLASS["spec"]["selectors"] * 2)
    )
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
def test_taint_rules(path: str, value: Any, expected: list[str]) -> None:
    assert found(validate_device_taint_rule(convert(DeviceTaintRule, changed(RULE, path, value)))) == expected


def test_conditions_of_a_taint_rule() -> None:
    conditions = [{**CONDITION, "type": f"T{i}"} for i in range(9)]
    old, good, bad = (
        convert(DeviceTaintRule, changed(RULE, "status.conditions", conditions[:count])) for count in (0, 8, 9)
    )
    assert validate_device_taint_rule_status(good, old) == []
    assert found(validate_device_taint_rule_status(bad, old)) == ["TooMany status.conditions"]


REQUEST_WITHOUT_STATUS = changed(POOL_STATUS, "status", DELETE)


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("status.poolCount", DELETE, ["Required status.poolCount"]),
        ("status.pools.0.totalDevices", -1, ["Invalid status.pools[0].totalDevices"]),
        ("status.pools.0.resourceSliceCount", 0, ["Invalid status.pools[0].resourceSliceCount"]),
        ("status.pools.0.validationError", "ä" * 129, ["TooLong status.pools[0].validationError"]),
        ("status", DELETE, []),
    ],
)
def test_pool_status(path: str, value: Any, expected: list[str]) -> None:
    new, old = (
        convert(ResourcePoolStatusRequest, obj) for obj in (changed(POOL_STATUS, path, value), REQUEST_WITHOUT_STATUS)
    )
    assert found(validate_resource_pool_status_request_status(new, old)) == expected


def test_pool_status_requests_never_change() -> None:
    old = convert(ResourcePoolStatusRequest, POOL_STATUS)
    limit = convert(ResourcePoolStatusRequest, changed(POOL_STATUS, "spec.limit", 2))
    count = convert(ResourcePoolStatusRequest, changed(POOL_STATUS, "status.poolCount", 2))
    assert found(validate_resource_pool_status_request(limit, old)) == ["Invalid spec"]
    assert found(validate_resource_pool_status_request_status(count, old)) == ["Invalid status"]
    assert validate_resource_pool_status_request_status(old, old) == []
    assert found(
        validate_resource_pool_status_request(
            convert(ResourcePoolStatusRequest, changed(POOL_STATUS, "spec.limit", 1001))
        )
    ) == ["Invalid spec.limit"]
