"""What a driver published for a node, and which devices claims can hold side by side."""

from __future__ import annotations

from typing import Any

import pytest
from dra_driver_test.harness.devices import Device, devices_of, incomplete, is_of_node, side_by_side, too_much_together

Json = dict[str, Any]
NODE: Json = {"metadata": {"name": "node-1", "labels": {"zone": "a", "size": "8"}}}


def slice_of(**spec: Any) -> Json:
    pool = {"name": "pool", "generation": 1, "resourceSliceCount": 1}
    return {"spec": {"driver": "gpu.example.com", "pool": pool, **spec}}


def drawing(name: str, memory: str) -> Json:
    return {"name": name, "consumesCounters": [{"counterSet": "board", "counters": {"memory": {"value": memory}}}]}


BOARD = [{"name": "board", "counters": {"memory": {"value": "40Gi"}}}]
PARTS = [drawing("whole", "40Gi"), drawing("half-0", "20Gi"), drawing("half-1", "20480Mi"), drawing("third", "15Gi")]


@pytest.mark.parametrize(
    "slices",
    [
        [slice_of(sharedCounters=BOARD), slice_of(devices=PARTS)],
        [slice_of(sharedCounters=BOARD, devices=PARTS)],  # the form of Kubernetes 1.33 and 1.34
    ],
)
def test_counters_say_which_devices_fit(slices: list[Json]) -> None:
    devices = devices_of(slices, NODE)
    assert [one.name for one in side_by_side(devices)] == ["third", "half-0"]
    half, rest = devices[1], [devices[0], devices[2], devices[3]]
    assert [one.name for one in side_by_side(rest, [half])] == ["third"], "beside a half that a claim holds"
    pair = too_much_together(devices)
    assert pair is not None
    assert {one.name for one in pair} == {"whole", "half-0"}


def test_a_device_whose_counter_is_malformed_takes_nothing_from_others() -> None:
    devices = devices_of([slice_of(sharedCounters=BOARD, devices=[PARTS[0], drawing("odd", "much")])], NODE)
    assert sorted(one.name for one in side_by_side(devices)) == ["odd", "whole"]


def test_a_result_has_the_conditions_that_the_device_is_bound_by() -> None:
    conditions = {"bindingConditions": ["Attached"], "bindingFailureConditions": ["Broken"]}
    (bound,) = devices_of([slice_of(devices=[{"name": "a", **conditions}])], NODE)
    assert bound.result("req", {}).items() >= conditions.items()
    assert bound.result("req", {"bindingConditions": []})["bindingConditions"] == []


def test_tainted_devices_are_left_out_unless_the_taint_has_no_effect() -> None:
    effects = ["NoSchedule", "NoExecute", "None"]
    found = [{"name": effect.lower(), "taints": [{"key": "bad", "effect": effect}]} for effect in effects]
    assert [one.name for one in side_by_side(devices_of([slice_of(devices=found)], NODE))] == ["none"]


@pytest.mark.parametrize(
    ("capacity", "shares", "part"),
    [
        ({}, 1000, {}),
        ({"memory": {"value": "8Gi"}}, 1, {"memory": "8Gi"}),
        ({"memory": {"value": "8Gi", "requestPolicy": {"default": "2Gi"}}}, 4, {"memory": "2Gi"}),
        (
            {"memory": {"value": "8Gi", "requestPolicy": {"default": "4Gi", "validRange": {"min": "1Gi"}}}},
            8,
            {"memory": "1Gi"},
        ),
        ({"seats": {"value": "6", "requestPolicy": {"default": "3", "validValues": ["3", "2"]}}}, 3, {"seats": "2"}),
    ],
)
def test_a_claim_has_the_smallest_part_of_a_shared_device(capacity: Json, shares: int, part: dict[str, str]) -> None:
    device = Device("gpu.example.com", "pool", "gpu", {"allowMultipleAllocations": True, "capacity": capacity})
    assert (device.shares, device.part) == (shares, part)
    result = device.result("req", {})
    assert result.get("consumedCapacity", {}) == part
    assert result["shareID"] != device.result("req", {})["shareID"]
    assert "shareID" not in device.result("req", {"adminAccess": True})


def selector(key: str, operator: str, *values: str) -> Json:
    return {
        "nodeSelector": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}]
        }
    }


@pytest.mark.parametrize(
    ("where", "is_here"),
    [
        ({"nodeName": "node-1"}, True),
        ({"nodeName": "node-2"}, False),
        ({"allNodes": True}, True),
        (selector("zone", "In", "a", "b"), True),
        (selector("zone", "NotIn", "a"), False),
        (selector("rack", "Exists"), False),
        (selector("rack", "DoesNotExist"), True),
        (selector("size", "Gt", "7"), True),
        (selector("size", "Lt", "7"), False),
        (selector("rack", "Gt", "7"), False),
    ],
)
def test_slices_of_other_nodes_are_left_out(where: Json, is_here: bool) -> None:
    assert is_of_node(where, NODE) is is_here
    each = slice_of(perDeviceNodeSelection=True, devices=[{"name": "gpu-0", **where}])
    assert [one.name for one in devices_of([each], NODE)] == ["gpu-0"] * is_here


def test_a_pool_without_all_its_slices_is_named() -> None:
    one = slice_of(devices=[])
    assert incomplete([one]) == ""
    one["spec"]["pool"]["resourceSliceCount"] = 2
    assert incomplete([one]) == "pool pool has 1 slices, and they say 2"
