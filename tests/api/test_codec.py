"""JSON becomes structs and back; what is malformed is named, and only that object is lost."""

from __future__ import annotations

import json

import pytest
from dra_api.codec import DecodeError, brief, convert, decode, encode, to_dict
from dra_api.core import Pod
from dra_api.resource import (
    AllocatedDeviceStatus,
    Counter,
    DeviceCapacity,
    OpaqueDeviceConfiguration,
    ResourceClaim,
    ResourceSlice,
)
from dra_api.values import Quantity
from objects import decode_list


def test_a_struct_keeps_what_it_knows_and_ignores_the_rest() -> None:
    it = convert(ResourceSlice, {"metadata": {"name": "s"}, "spec": {"driver": "d", "future": 1}, "future": {}})
    assert (it.metadata.name, it.spec.driver, it.spec.devices) == ("s", "d", None)
    assert to_dict(it) == {"metadata": {"name": "s"}, "spec": {"driver": "d"}}


def test_absent_and_empty_stay_apart() -> None:
    assert convert(ResourceSlice, {"spec": {"devices": []}}).spec.devices == ()
    assert convert(ResourceSlice, {"spec": {"devices": None}}).spec.devices is None


@pytest.mark.parametrize(
    ("data", "text"), [('"1Gi"', "1Gi"), ("3", "3"), ("0.5", "0.5"), ("-1", "-1"), ('"1000m"', "1000m")]
)
def test_quantities_are_texts_or_numbers(data: str, text: str) -> None:
    it = decode(Counter, f'{{"value": {data}}}')
    assert it.value == Quantity(text)
    assert json.loads(encode(it)) == {"value": text}


def test_raw_parameters_keep_their_bytes() -> None:
    data = b'{"spec":{"devices":{"config":[{"opaque":{"driver":"d","parameters":{ "b":1,  "a":null}}}]}}}'
    it = decode(ResourceClaim, data)
    (config,) = it.spec.devices.config or ()
    assert config.opaque is not None
    assert bytes(config.opaque.parameters) == b'{ "b":1,  "a":null}'
    assert b'{ "b":1,  "a":null}' in encode(it)


def test_missing_raw_data_is_left_out() -> None:
    for it in (OpaqueDeviceConfiguration(driver="d"), AllocatedDeviceStatus(driver="d")):
        assert to_dict(it) == {"driver": "d"}
    assert json.loads(bytes(OpaqueDeviceConfiguration().parameters)) is None


@pytest.mark.parametrize(
    ("type_", "data", "text"),
    [
        (ResourceSlice, '{"spec": {"driver": 3}}', r"\$\.spec\.driver"),
        (DeviceCapacity, '{"value": "lots"}', "'lots' is not a quantity"),
        (DeviceCapacity, '{"value": true}', "expected a quantity, got bool"),
        (Pod, '{"spec": {"containers": {}}}', r"\$\.spec\.containers"),
        (Pod, "{", "truncated"),
    ],
)
def test_a_malformed_object_is_named(type_: type, data: str, text: str) -> None:
    with pytest.raises(DecodeError, match=text):
        decode(type_, data)


def test_one_bad_item_of_a_list_does_not_spoil_the_others() -> None:
    items = [{"metadata": {"name": "a"}}, {"metadata": {"name": 3}}, {"metadata": {"name": "b"}}]
    good, bad, metadata = decode_list(Pod, json.dumps({"metadata": {"resourceVersion": "7"}, "items": items}).encode())
    assert [pod.metadata.name for pod in good] == ["a", "b"]
    ((raw, error),) = bad
    assert json.loads(raw) == items[1]
    assert "$.metadata.name" in str(error)
    assert metadata == {"resourceVersion": "7"}


def test_a_list_that_is_none_is_refused() -> None:
    with pytest.raises(DecodeError):
        decode_list(Pod, b'{"items": 3}')


def test_an_object_knows_its_key() -> None:
    assert convert(Pod, {"metadata": {"name": "p", "namespace": "ns"}}).key == "ns/p"
    assert convert(ResourceSlice, {"metadata": {"name": "s"}}).key == "s"


def test_of_a_malformed_object_that_is_long_little_is_kept() -> None:
    meta, long = {"name": "c", "namespace": "ns", "uid": "u", "resourceVersion": "1"}, "x" * 1100
    results = {"devices": {"results": [{"driver": "d"}]}}
    for obj, kept in (
        ({"metadata": {**meta, "labels": {"a": long}}}, {"metadata": meta}),
        ({"metadata": meta, "spec": long}, {"metadata": meta}),
        (
            {"metadata": meta, "spec": long, "status": {"allocation": {**results, "more": 1}}},
            {"metadata": meta, "status": {"allocation": results}},
        ),
        ({"metadata": meta, "spec": long, "status": {}}, {"metadata": meta, "status": {"allocation": None}}),
        ({"metadata": meta, "spec": long, "status": "odd"}, {"metadata": meta, "status": {"allocation": {}}}),
        (
            {"metadata": meta, "spec": long, "status": {"allocation": {"devices": {"results": ["x" * (64 << 10)]}}}},
            {"metadata": meta},
        ),
        ({"metadata": "odd", "spec": long}, {"metadata": {}}),
        ({"spec": long}, {}),
    ):
        assert json.loads(brief(json.dumps(obj).encode())) == kept
    assert brief(b"x" * 1024) == b"x" * 1024
    assert brief(b"x" * 1025) == b"{}"
