"""Objects mean the same in every version of the API and come back as they went (api.md section 12)."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from dra_api.conversion import ConversionError, convert
from hypothesis import given
from hypothesis import strategies as st

V1, V1BETA2, V1BETA1, V1ALPHA3 = (f"resource.k8s.io/{name}" for name in ("v1", "v1beta2", "v1beta1", "v1alpha3"))


def claim(version: str, *requests: Any, kind: str = "ResourceClaim") -> dict[str, Any]:
    devices = {"devices": {"requests": list(requests), "constraints": [{"matchAttribute": "a.b/c"}]}}
    spec = {"spec": devices, "metadata": {"labels": {"a": "b"}}} if kind == "ResourceClaimTemplate" else devices
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "c", "future": 1}, "spec": spec}


def slice_(version: str, *devices: Any, **spec: Any) -> dict[str, Any]:
    content = {"driver": "d", "pool": {"name": "p"}, "devices": list(devices), **spec}
    return {"apiVersion": version, "kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": content}


NESTED = {"name": "r", "exactly": {"deviceClassName": "c", "count": 2, "adminAccess": False, "future": [1]}}
FLAT = {"name": "r", "deviceClassName": "c", "count": 2, "adminAccess": False, "future": [1]}
ALTERNATIVES = {"name": "r", "firstAvailable": [{"name": "a", "deviceClassName": "c"}]}


@pytest.mark.parametrize("kind", ["ResourceClaim", "ResourceClaimTemplate"])
@pytest.mark.parametrize(
    ("nested", "flat"),
    [
        pytest.param(NESTED, FLAT, id="an exact request, with a field of the future"),
        pytest.param(ALTERNATIVES, ALTERNATIVES, id="alternatives"),
        pytest.param(ALTERNATIVES | NESTED, ALTERNATIVES | FLAT, id="both, for validation to reject"),
        pytest.param({"name": "r"}, {"name": "r"}, id="neither"),
    ],
)
def test_requests(kind: str, nested: dict[str, Any], flat: dict[str, Any]) -> None:
    assert convert(claim(V1, nested, kind=kind), V1BETA1) == claim(V1BETA1, flat, kind=kind)
    assert convert(claim(V1BETA1, flat, kind=kind), V1) == claim(V1, nested, kind=kind)
    assert convert(claim(V1BETA2, nested, kind=kind), V1BETA1) == claim(V1BETA1, flat, kind=kind)


@pytest.mark.parametrize(
    ("flat", "has_exactly"),
    [
        pytest.param({"deviceClassName": ""}, False, id="an empty class is unset"),
        pytest.param({"count": 0}, False, id="a count of zero is unset"),
        pytest.param({"allocationMode": None}, False, id="null is unset"),
        pytest.param({"adminAccess": False}, True, id="false is set where unset differs from it"),
        pytest.param({"selectors": []}, True, id="an empty list is set"),
        pytest.param({"capacity": {}}, True, id="an empty object is set"),
    ],
)
def test_when_a_flat_request_is_an_exact_one(flat: dict[str, Any], has_exactly: bool) -> None:
    (request,) = convert(claim(V1BETA1, {"name": "r", **flat}), V1)["spec"]["devices"]["requests"]
    assert request == ({"name": "r", "exactly": flat} if has_exactly else {"name": "r"})


def test_devices_keep_everything_but_the_name_in_basic() -> None:
    plain = {"name": "d", "attributes": {"a": {"int": 1}}, "future": 1}
    basic = {"name": "d", "basic": {"attributes": {"a": {"int": 1}}, "future": 1}}
    assert convert(slice_(V1, plain, {"name": "e"}), V1BETA1) == slice_(V1BETA1, basic, {"name": "e", "basic": {}})
    assert convert(slice_(V1BETA1, basic, {"name": "e"}), V1) == slice_(V1, plain, {"name": "e"})


@pytest.mark.parametrize(
    ("flat", "nested"),
    [
        ({"nodeName": "", "allNodes": False}, {}),
        ({"nodeName": "n", "allNodes": True}, {"nodeName": "n", "allNodes": True}),
        ({"nodeName": None}, {}),
        ({"nodeName": "", "allNodes": True}, {"allNodes": True}),
    ],
)
def test_unset_nodes_of_a_slice(flat: dict[str, Any], nested: dict[str, Any]) -> None:
    assert convert(slice_(V1BETA1, **flat), V1) == slice_(V1, **nested)
    assert convert(slice_(V1, **nested), V1BETA1) == slice_(V1BETA1, **nested)


@pytest.mark.parametrize(
    ("kind", "source", "target"),
    [
        ("DeviceClass", V1BETA1, V1),
        ("DeviceTaintRule", V1ALPHA3, V1BETA2),
        ("DeviceTaintRule", V1BETA2, V1),
        ("ResourceSlice", V1, V1BETA2),
        ("ResourcePoolStatusRequest", V1ALPHA3, V1ALPHA3),
    ],
)
def test_other_kinds_change_their_version_only(kind: str, source: str, target: str) -> None:
    obj = {"apiVersion": source, "kind": kind, "spec": {"devices": [{"name": "x", "more": 1}], "taint": {}}}
    assert convert(obj, target) == obj | {"apiVersion": target}


@pytest.mark.parametrize(
    ("obj", "target", "text"),
    [
        ({"kind": "Pod", "apiVersion": "v1"}, "v1", "kind 'Pod' has no versions"),
        ({"apiVersion": V1}, V1BETA1, "kind None has no versions"),
        ({"kind": "DeviceClass"}, V1, "DeviceClass has no version None"),
        ({"kind": "DeviceClass", "apiVersion": V1}, V1ALPHA3, "DeviceClass has no version 'resource.k8s.io/v1alpha3'"),
        ({"kind": "DeviceClass", "apiVersion": "other/v1"}, V1, "known: resource.k8s.io/v1, "),
    ],
)
def test_what_cannot_be_converted_is_named(obj: dict[str, Any], target: str, text: str) -> None:
    with pytest.raises(ConversionError, match=text):
        convert(obj, target)


@pytest.mark.parametrize(
    "spec",
    [
        None,
        [],
        "x",
        {"devices": None},
        {"devices": {"requests": {"a": 1}}},
        {"devices": {"requests": [1]}},
        {"devices": [1, None, {"basic": 3}]},
    ],
)
@pytest.mark.parametrize("kind", ["ResourceClaim", "ResourceClaimTemplate", "ResourceSlice"])
def test_a_malformed_object_is_handed_on(kind: str, spec: object) -> None:
    there = convert({"apiVersion": V1BETA1, "kind": kind, "spec": spec}, V1)
    assert convert(there, V1BETA1)["apiVersion"] == V1BETA1


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=6,
)
UNKNOWN = st.dictionaries(st.from_regex(r"future[A-Z]{0,3}", fullmatch=True), VALUES, max_size=2)
EXACTLY = st.builds(
    lambda known, unknown: known | unknown,
    st.fixed_dictionaries(
        {"deviceClassName": st.text(min_size=1, max_size=5)},
        optional={
            "count": st.integers(1),
            "selectors": st.just([]),
            "adminAccess": st.booleans(),
            "tolerations": VALUES,
        },
    ),
    UNKNOWN,
)
REQUESTS = st.fixed_dictionaries({"name": st.text(max_size=5)}, optional={"exactly": EXACTLY, "firstAvailable": VALUES})
DEVICES = st.builds(lambda name, unknown: {"name": name} | unknown, st.text(max_size=5), UNKNOWN)


@given(st.lists(REQUESTS, max_size=3), st.sampled_from(["ResourceClaim", "ResourceClaimTemplate"]))
def test_a_claim_comes_back_from_v1beta1_as_it_went(requests: list[Any], kind: str) -> None:
    there = claim(V1, *requests, kind=kind)
    before = copy.deepcopy(there)
    assert convert(convert(there, V1BETA1), V1) == before
    assert there == before


@given(st.lists(DEVICES, max_size=3), UNKNOWN)
def test_a_slice_comes_back_from_v1beta1_as_it_went(devices: list[Any], unknown: dict[str, Any]) -> None:
    there = slice_(V1, *devices, **unknown)
    before = copy.deepcopy(there)
    assert convert(convert(there, V1BETA1), V1) == before
    assert there == before
