"""Errors print as an API server prints them."""

from __future__ import annotations

import pytest
from dra_api.codec import convert
from dra_api.resource import DeviceClass, OpaqueDeviceConfiguration, ResourceClaim
from dra_api.validation import ErrorType, FieldError, summary, validate_device_class
from dra_api.validation.formats import (
    duplicate,
    forbidden,
    invalid,
    not_found,
    not_supported,
    required,
    too_long,
    too_many,
)
from msgspec import Raw


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (required("spec.driver"), "spec.driver: Required value"),
        (required("spec", "exactly one of"), "spec: Required value: exactly one of"),
        (invalid("a[0].name", "x y", "bad"), 'a[0].name: Invalid value: "x y": bad'),
        (invalid("a", -1, "bad"), "a: Invalid value: -1: bad"),
        (invalid("a", False, "bad"), "a: Invalid value: false: bad"),
        (invalid("a", None, "bad"), "a: Invalid value: null: bad"),
        (invalid("a", ["é"], "bad"), 'a: Invalid value: ["é"]: bad'),
        (duplicate("a[1]", "x"), 'a[1]: Duplicate value: "x"'),
        (forbidden("a", "not now"), "a: Forbidden: not now"),
        (not_supported("a", "x", {"c", "b"}), 'a: Unsupported value: "x": supported values: "b", "c"'),
        (not_found("a", "x"), 'a: Not found: "x"'),
        (too_long("a", 64), "a: Too long: may not be more than 64 bytes"),
        (too_many("a", 33, 32), "a: Too many: 33: must have at most 32 items"),
    ],
)
def test_text(error: FieldError, text: str) -> None:
    assert str(error) == text
    assert f"{error.field}: {error.body}" == text


def test_types_are_the_reasons_of_causes() -> None:
    assert str(ErrorType.REQUIRED) == "FieldValueRequired"
    assert f"{too_many('a', 1, 0).type}" == "FieldValueTooMany"


def test_a_struct_is_shown_as_json() -> None:
    spec = convert(ResourceClaim, {"spec": {"devices": {"requests": [{"name": "a"}]}}}).spec
    assert str(invalid("spec", spec, "bad")) == 'spec: Invalid value: {"devices":{"requests":[{"name":"a"}]}}: bad'


def test_parameters_are_shown_as_they_are_broken_or_not() -> None:
    config = OpaqueDeviceConfiguration(driver="d", parameters=Raw(b"{oops \xff"))
    assert str(invalid("a", config, "bad")) == 'a: Invalid value: {"driver":"d","parameters":{oops \ufffd}: bad'


def test_summary() -> None:
    one, other = required("a"), required("b")
    assert summary([one]) == "a: Required value"
    assert summary([one, other, one]) == "[a: Required value, b: Required value]"


def test_an_object_gets_all_its_errors() -> None:
    errors = validate_device_class(convert(DeviceClass, {"spec": {"selectors": [{}], "extendedResourceName": "x"}}))
    assert [str(error) for error in errors] == [
        "metadata.name: Required value: name or generateName is required",
        "spec.selectors[0].cel: Required value",
        'spec.extendedResourceName: Invalid value: "x": must be a valid extended resource name',
    ]
