"""Rules of ResourceSlice, one fault at a time (api.md section 4)."""

from __future__ import annotations

from typing import Any

import pytest
from dra_api.gates import FeatureGates
from dra_api.releases import Release
from dra_api.resource import ResourceSlice
from dra_api.validation import driver_warnings, validate_resource_slice
from objects import found, sample

IN_MODEL = "spec.devices[0].attributes[model]"
POLICY = "spec.devices.0.capacity.memory.requestPolicy"
IN_POLICY = "spec.devices[0].capacity[memory].requestPolicy"


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("spec.driver", "", ["Required spec.driver"]),
        ("spec.driver", "D.example.com", []),
        ("spec.pool.name", "a//b", ["Invalid spec.pool.name"]),
        ("spec.pool.generation", -1, ["Invalid spec.pool.generation"]),
        ("spec.pool.resourceSliceCount", 0, ["Invalid spec.pool.resourceSliceCount"]),
        ("spec.nodeName", ..., ["Required spec"]),
        ("spec.nodeName", "", ["Invalid spec.nodeName", "Required spec"]),
        ("spec.allNodes", True, ["Invalid spec"]),
        ("spec.allNodes", False, ["Invalid spec.allNodes"]),
        ("spec.sharedCounters", [{"name": "s", "counters": {"c": {"value": "1"}}}], ["Invalid spec"]),
        ("spec.devices", [], []),
        ("spec.devices", [{"name": "a"}, {"name": "a"}], ["Duplicate spec.devices[1]"]),
        ("spec.devices", [{"name": f"d{i}"} for i in range(129)], ["TooMany spec.devices"]),
        ("spec.devices", [{"name": f"d{i}"} for i in range(128)], []),
        (
            "spec.devices",
            lambda devices: devices + [{"name": f"d{i}"} for i in range(64)],
            ["TooMany spec.devices"],
        ),
        ("spec.devices.0.name", "A", ["Invalid spec.devices[0].name"]),
        ("spec.devices.0.attributes", {f"a{i}": {"int": i} for i in range(32)}, ["Invalid spec.devices[0]"]),
        ("spec.devices.0.attributes.model", {}, ["Invalid spec.devices[0].attributes[model]"]),
        ("spec.devices.0.attributes.model", {"int": 0}, []),
        ("spec.devices.0.attributes.model", {"string": "x" * 65}, [f"TooLong {IN_MODEL}.string"]),
        ("spec.devices.0.attributes.model", {"version": "1.0"}, [f"Invalid {IN_MODEL}.version"]),
        ("spec.devices.0.attributes.model", {"versions": ["1.0.0", "1"]}, [f"Invalid {IN_MODEL}.versions[1]"]),
        ("spec.devices.0.attributes.model", {"int": 1, "bools": [True]}, [f"Invalid {IN_MODEL}"]),
        (
            "spec.devices.0.consumesCounters",
            [{"counterSet": "", "counters": {"c": {"value": "1"}}}],
            ["Required spec.devices[0].consumesCounters[0].counterSet"],
        ),
        ("spec.devices.0.attributes.model", {"ints": []}, ["Invalid spec.devices[0].attributes[model].ints"]),
        (
            "spec.devices.0.attributes.model",
            {"strings": ["", "x" * 65]},
            ["TooLong spec.devices[0].attributes[model].strings[1]"],
        ),
        ("spec.devices.0.attributes.model", {"ints": [0] * 49}, ["Invalid spec.devices[0]"]),
        (
            "spec.devices.0.capacity",
            {"x" * 120: {"value": "1", "requestPolicy": {}}},
            [
                "Forbidden spec.devices[0].capacity[" + "x" * 47 + "..." + "x" * 46 + "].requestPolicy",
                "TooLong spec.devices[0].capacity",
            ],
        ),
        ("spec.devices.0.taints.0.effect", "", ["Required spec.devices[0].taints[0].effect"]),
        ("spec.devices.0.nodeName", "n", ["Invalid spec.devices[0]"]),
        (
            "spec.devices.0.consumesCounters",
            [{"counterSet": "s", "counters": {}}, {"counterSet": "s", "counters": {"c": {"value": "1"}}}],
            ["Duplicate spec.devices[0].consumesCounters[1]", "Required spec.devices[0].consumesCounters[0].counters"],
        ),
        ("spec.devices.0.bindingConditions", ["a"], ["Invalid spec.devices[0].bindingFailureConditions"]),
        (
            "spec.devices.0.nodeAllocatableResourceMappings",
            {"cpu": {"capacityKey": "no"}, "a.b/c": {"allocationMultiplier": "1"}},
            [
                "Invalid spec.devices[0].nodeAllocatableResourceMappings[a.b/c]",
                "NotFound spec.devices[0].nodeAllocatableResourceMappings[cpu].capacityKey",
            ],
        ),
        (POLICY, {}, [f"Forbidden {IN_POLICY}"]),
    ],
)
def test_slices(path: str, value: object, expected: list[str]) -> None:
    assert found(validate_resource_slice(sample(ResourceSlice, {path: value}))) == expected


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ({}, []),
        ({"default": "1Gi"}, []),
        (
            {"default": "1", "validRange": {"min": "1", "step": "0"}},
            [f"Invalid {IN_POLICY}.validRange.step"],
        ),
        (
            {"default": "1", "validRange": {"min": "1", "step": "-1"}},
            [f"Invalid {IN_POLICY}.validRange.step"],
        ),
        (
            {"default": "1", "validValues": [str(i) for i in range(1, 12)]},
            [f"TooMany {IN_POLICY}.validValues"],
        ),
    ],
)
def test_shareable_capacities(policy: object, expected: list[str]) -> None:
    it = sample(ResourceSlice, {"spec.devices.0.allowMultipleAllocations": True, POLICY: policy})
    assert found(validate_resource_slice(it)) == expected


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
def test_slice_updates(path: str, value: object, expected: list[str]) -> None:
    assert found(validate_resource_slice(sample(ResourceSlice, {path: value}), sample(ResourceSlice))) == expected


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        pytest.param({"nodeName": "n"}, [], id="one node"),
        pytest.param({"allNodes": True}, [], id="all nodes"),
        pytest.param({"nodeSelector": {"nodeSelectorTerms": [{}, {}]}}, [], id="a selector of any number of terms"),
        pytest.param({}, ["Required spec.devices[0]"], id="nothing"),
        pytest.param({"nodeName": "n", "allNodes": True}, ["Invalid spec.devices[0]"], id="two"),
        pytest.param({"nodeName": ""}, ["Invalid spec.devices[0].nodeName", "Required spec.devices[0]"], id="no name"),
        pytest.param({"nodeName": "A"}, ["Invalid spec.devices[0].nodeName"], id="no node name"),
        pytest.param(
            {"allNodes": False}, ["Invalid spec.devices[0].allNodes", "Required spec.devices[0]"], id="not all nodes"
        ),
        pytest.param(
            {"nodeSelector": {}}, ["Required spec.devices[0].nodeSelector.nodeSelectorTerms"], id="an empty selector"
        ),
    ],
)
def test_devices_that_choose_their_nodes(choice: dict[str, Any], expected: list[str]) -> None:
    changes = {"spec.nodeName": ..., "spec.perDeviceNodeSelection": True, "spec.devices": [{"name": "a", **choice}]}
    assert found(validate_resource_slice(sample(ResourceSlice, changes))) == expected


ONE = {"value": "1"}
COUNTER_SETS = "spec.sharedCounters"


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        pytest.param([{"name": "s", "counters": {"c": ONE}}], [], id="valid"),
        pytest.param([{"name": "s", "counters": {"c": {"value": "-1"}}}], [], id="any quantity"),
        pytest.param([{"name": "", "counters": {"c": ONE}}], [f"Required {COUNTER_SETS}[0].name"], id="no name"),
        pytest.param([{"name": "A", "counters": {"c": ONE}}], [f"Invalid {COUNTER_SETS}[0].name"], id="no label"),
        pytest.param([{"name": "s"}], [f"Required {COUNTER_SETS}[0].counters"], id="no counters"),
        pytest.param(
            [{"name": "s", "counters": {"A": ONE}}], [f"Invalid {COUNTER_SETS}[0].counters"], id="counter name"
        ),
        pytest.param(
            [{"name": "s", "counters": {f"c{index}": ONE for index in range(33)}}],
            [f"TooMany {COUNTER_SETS}[0].counters"],
            id="too many counters",
        ),
        pytest.param([{"name": "s", "counters": {"c": ONE}}] * 2, [f"Duplicate {COUNTER_SETS}[1]"], id="twice"),
        pytest.param(
            [{"name": f"s{index}", "counters": {"c": ONE}} for index in range(9)],
            [f"TooMany {COUNTER_SETS}"],
            id="nine",
        ),
    ],
)
def test_shared_counters(sets: list[Any], expected: list[str]) -> None:
    it = sample(ResourceSlice, {"spec.devices": ..., "spec.sharedCounters": sets})
    assert found(validate_resource_slice(it)) == expected


@pytest.mark.parametrize(
    ("mapping", "expected"),
    [
        pytest.param({"capacityKey": "memory"}, [], id="a capacity"),
        pytest.param({"allocationMultiplier": "2"}, [], id="a multiplier"),
        pytest.param({}, ["Invalid "], id="neither"),
        pytest.param({"capacityKey": ""}, ["Invalid .capacityKey"], id="an empty key"),
        pytest.param({"allocationMultiplier": "0"}, ["Invalid .allocationMultiplier"], id="times nothing"),
    ],
)
def test_native_resources(mapping: dict[str, str], expected: list[str]) -> None:
    path = "spec.devices[0].nodeAllocatableResourceMappings[cpu]"
    it = sample(ResourceSlice, {"spec.devices.0.nodeAllocatableResourceMappings": {"cpu": mapping}})
    assert [error.replace(path, "") for error in found(validate_resource_slice(it))] == expected


def test_faulty_taints_and_capacities_that_are_stored_do_not_block_updates() -> None:
    faults = {"spec.devices.0.taints.0.effect": "Odd", POLICY: {}}
    old = sample(ResourceSlice, faults)
    assert validate_resource_slice(old) != []
    assert validate_resource_slice(sample(ResourceSlice, {**faults, "spec.pool.generation": 3}), old) == []


def test_upper_case_in_the_name_of_a_driver_is_warned_about() -> None:
    assert driver_warnings(sample(ResourceSlice)) == []
    (warning,) = driver_warnings(sample(ResourceSlice, {"spec.driver": "D.io"}))
    assert warning == 'spec.driver: driver names should be lowercase; "D.io" contains uppercase characters'


@pytest.mark.parametrize(
    ("counters", "draws", "expected"),
    [
        pytest.param(1, {"s": ["c0"]}, [], id="valid"),
        pytest.param(32, {"s": ["c0"]}, [], id="as many counters as there may be"),
        pytest.param(33, {"s": ["c0"]}, ["Invalid spec.sharedCounters"], id="too many counters"),
        pytest.param(
            1, {"other": ["c0"]}, ["Invalid spec.devices[0].consumesCounters[0].counterSet"], id="no such set"
        ),
        pytest.param(1, {"s": ["c1"]}, ["Invalid spec.devices[0].consumesCounters[0].counters"], id="no such counter"),
    ],
)
def test_until_1_34_devices_draw_from_the_counters_of_their_own_slice(
    counters: int, draws: dict[str, list[str]], expected: list[str]
) -> None:
    chunks = {"s": range(min(counters, 32)), "t": range(32, counters)}
    sets = [{"name": name, "counters": {f"c{index}": ONE for index in of}} for name, of in chunks.items() if of]
    drawn = [{"counterSet": name, "counters": dict.fromkeys(names, ONE)} for name, names in draws.items()]
    it = sample(ResourceSlice, {"spec.devices.0.consumesCounters": drawn, COUNTER_SETS: sets})
    gates = FeatureGates.of({"DRAPartitionableDevices": True}, Release.V1_34)
    assert [each for each in found(validate_resource_slice(it, gates=gates)) if "ounter" in each] == expected
