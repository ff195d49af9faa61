"""Request policies of shareable capacities, and binding conditions (api.md section 4)."""

from __future__ import annotations

from typing import Any

import pytest
from dra_api.codec import convert
from dra_api.resource import Device, DeviceCapacity
from dra_api.validation.bindingconditions import binding_conditions
from dra_api.validation.capacity import capacity


def errors_of(policy: dict[str, Any]) -> list[str]:
    it = convert(DeviceCapacity, {"value": "10", "requestPolicy": policy})
    errors = capacity(it, "c", shareable=True)
    return [
        f"{error.type.removeprefix('FieldValue')} {error.field.removeprefix('c.requestPolicy')}" for error in errors
    ]


@pytest.mark.parametrize(
    ("default", "values", "expected"),
    [
        pytest.param("1", ["1", "2", "10"], [], id="valid"),
        pytest.param("1000m", ["1"], [], id="numbers count, not texts"),
        pytest.param(None, ["1"], ["Required .default"], id="no default"),
        pytest.param("3", ["1", "2"], ["Invalid .validValues"], id="the default is no choice"),
        pytest.param("1", ["1", "11"], ["Invalid .validValues[1]"], id="beyond the capacity"),
        pytest.param("1", ["2", "1"], ["Invalid .validValues[1]"], id="not ascending"),
        pytest.param("1", ["1", "1"], ["Duplicate .validValues[1]"], id="twice"),
        pytest.param("1", ["1", "1500m", "2"], ["Duplicate .validValues[2]"], id="equal when rounded up"),
    ],
)
def test_valid_values(default: str | None, values: list[str], expected: list[str]) -> None:
    assert errors_of({"default": default, "validValues": values}) == expected


@pytest.mark.parametrize(
    ("default", "bounds", "expected"),
    [
        pytest.param("1", {"min": "1"}, [], id="a lower bound"),
        pytest.param("3", {"min": "1", "max": "9", "step": "2"}, [], id="all bounds"),
        pytest.param("1", {}, ["Required .validRange.min"], id="no lower bound"),
        pytest.param(None, {"min": "1"}, ["Required .default"], id="no default"),
        pytest.param("1", {"min": "2"}, ["Invalid .validRange.min"], id="the default is too small"),
        pytest.param("12", {"min": "11"}, ["Invalid .validRange.min"], id="the minimum exceeds the capacity"),
        pytest.param(
            "1", {"min": "1", "max": "11"}, ["Invalid .validRange.max"], id="the maximum exceeds the capacity"
        ),
        pytest.param("3", {"min": "1", "max": "2"}, ["Invalid .validRange.max"], id="the default is too large"),
        pytest.param(
            "3", {"min": "3", "max": "2"}, ["Invalid .validRange.max", "Invalid .validRange.max"], id="bounds cross"
        ),
        pytest.param("2", {"min": "2", "step": "9"}, ["Invalid .validRange.step"], id="no step fits"),
        pytest.param("2", {"min": "1", "step": "2"}, ["Invalid .validRange.step"], id="the default is between steps"),
        pytest.param("1", {"min": "1", "max": "4", "step": "2"}, ["Invalid .validRange.step"], id="so is the maximum"),
        pytest.param("1500m", {"min": "1", "step": "1"}, [], id="fractions are rounded up before steps are counted"),
    ],
)
def test_valid_ranges(default: str | None, bounds: dict[str, str], expected: list[str]) -> None:
    assert errors_of({"default": default, "validRange": bounds}) == expected


def test_values_and_range_exclude_each_other() -> None:
    assert errors_of({"validValues": ["1"], "validRange": {"min": "1"}}) == ["Forbidden "]


@pytest.mark.parametrize(
    ("awaited", "fatal", "expected"),
    [
        pytest.param(["a", "example.com/b"], ["c"], [], id="valid"),
        pytest.param([], [], [], id="none"),
        pytest.param(["a"], [], ["Invalid bindingFailureConditions"], id="nothing can fail"),
        pytest.param([], ["a"], ["Invalid bindingConditions"], id="nothing to wait for"),
        pytest.param(["a", "a"], ["c"], ["Duplicate bindingConditions[1]"], id="twice"),
        pytest.param(["a"], ["c", "c"], ["Duplicate bindingFailureConditions[1]"], id="failure twice"),
        pytest.param(["a"], ["a"], ["Invalid bindingFailureConditions[0]"], id="both"),
        pytest.param(
            ["a b"], ["c d"], ["Invalid bindingConditions[0]", "Invalid bindingFailureConditions[0]"], id="form"
        ),
        pytest.param(list("abcde"), ["x"], ["TooMany bindingConditions"], id="too many"),
        pytest.param(["x"], list("abcde"), ["TooMany bindingFailureConditions"], id="too many failures"),
    ],
)
def test_binding_conditions(awaited: list[str], fatal: list[str], expected: list[str]) -> None:
    device = convert(Device, {"bindingConditions": awaited, "bindingFailureConditions": fatal})
    errors = binding_conditions(device, "d")
    assert [f"{error.type.removeprefix('FieldValue')} {error.field.removeprefix('d.')}" for error in errors] == expected
