"""What the API server fills in, in each version (api.md sections 11 and 12)."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from dra_api.conversion import set_defaults

NOW = "2026-01-02T03:04:05Z"


def filled(kind: str, spec: object, version: str = "v1", **more: Any) -> Any:
    obj = {"apiVersion": f"resource.k8s.io/{version}", "kind": kind, "spec": copy.deepcopy(spec), **more}
    set_defaults(obj, now=NOW)
    once = copy.deepcopy(obj)
    set_defaults(obj, now="later")
    assert obj == once, "defaulting twice changes nothing"
    return obj["spec"]


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        pytest.param({}, {"allocationMode": "ExactCount", "count": 1}, id="nothing said"),
        pytest.param({"count": 0}, {"allocationMode": "ExactCount", "count": 1}, id="zero counts as not said"),
        pytest.param({"count": 3}, {"allocationMode": "ExactCount", "count": 3}, id="a count"),
        pytest.param({"allocationMode": "All"}, {"allocationMode": "All"}, id="all devices"),
        pytest.param({"allocationMode": "Odd"}, {"allocationMode": "Odd"}, id="an unknown mode"),
        pytest.param(
            {"allocationMode": "All", "tolerations": [{"key": "a"}, {"operator": "Exists"}]},
            {"allocationMode": "All", "tolerations": [{"key": "a", "operator": "Equal"}, {"operator": "Exists"}]},
            id="tolerations",
        ),
    ],
)
@pytest.mark.parametrize("version", ["v1", "v1beta2"])
def test_requests(version: str, request_: dict[str, Any], expected: dict[str, Any]) -> None:
    requests = [{"name": "a", "exactly": request_}, {"name": "b", "firstAvailable": [request_]}]
    wanted = [{"name": "a", "exactly": expected}, {"name": "b", "firstAvailable": [expected]}]
    spec = {"devices": {"requests": requests}}
    assert filled("ResourceClaim", spec, version)["devices"]["requests"] == wanted
    assert filled("ResourceClaimTemplate", {"spec": spec}, version)["spec"]["devices"]["requests"] == wanted


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        pytest.param(
            {"deviceClassName": "c"}, {"deviceClassName": "c", "allocationMode": "ExactCount", "count": 1}, id="a class"
        ),
        pytest.param({"count": 0}, {"count": 0}, id="no class, nothing is filled in"),
        pytest.param({"tolerations": [{}]}, {"tolerations": [{"operator": "Equal"}]}, id="but tolerations are"),
        pytest.param(
            {"firstAvailable": [{"name": "x"}]},
            {"firstAvailable": [{"name": "x", "allocationMode": "ExactCount", "count": 1}]},
            id="alternatives",
        ),
    ],
)
def test_flat_requests_of_v1beta1(request_: dict[str, Any], expected: dict[str, Any]) -> None:
    spec = filled("ResourceClaim", {"devices": {"requests": [request_]}}, "v1beta1")
    assert spec == {"devices": {"requests": [expected]}}


def test_a_misplaced_field_of_another_version_is_left_alone() -> None:
    request_ = {"deviceClassName": "c"}
    assert filled("ResourceClaim", {"devices": {"requests": [request_]}}, "v1") == {"devices": {"requests": [request_]}}


def test_tolerations_of_an_allocation() -> None:
    results = [{"tolerations": [{"key": "a"}]}]
    filled("ResourceClaim", {}, status={"allocation": {"devices": {"results": results}}})
    assert results == [{"tolerations": [{"key": "a", "operator": "Equal"}]}]


DEVICE = {"taints": [{"key": "a"}, {"timeAdded": "t"}], "nodeAllocatableResourceMappings": {"cpu": {}}}
DEVICE_FILLED = {
    "taints": [{"key": "a", "timeAdded": NOW}, {"timeAdded": "t"}],
    "nodeAllocatableResourceMappings": {"cpu": {"allocationMultiplier": "1"}},
}


def test_devices() -> None:
    assert filled("ResourceSlice", {"devices": [DEVICE]}) == {"devices": [DEVICE_FILLED]}
    assert filled("ResourceSlice", {"devices": [{"basic": DEVICE}]}, "v1beta1") == {
        "devices": [{"basic": DEVICE_FILLED}]
    }


def test_taint_rules_and_pool_status_requests() -> None:
    assert filled("DeviceTaintRule", {"taint": {"key": "a"}}, "v1beta2") == {"taint": {"key": "a", "timeAdded": NOW}}
    assert filled("ResourcePoolStatusRequest", {"driver": "d"}, "v1alpha3") == {"driver": "d", "limit": 100}
    assert filled("ResourcePoolStatusRequest", {"limit": 0}, "v1alpha3") == {"limit": 0}


@pytest.mark.parametrize(
    "spec", [None, [], "x", {"devices": 1}, {"devices": [1, {"taints": 3}]}, {"spec": []}, {"taint": []}]
)
@pytest.mark.parametrize(
    "kind", ["ResourceClaim", "ResourceClaimTemplate", "ResourceSlice", "DeviceTaintRule", "Pod", None]
)
@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_malformed_and_foreign_objects_are_left_alone(kind: str, spec: object, version: str) -> None:
    assert filled(kind, spec, version) == spec
