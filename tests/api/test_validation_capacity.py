"""Request policies of shareable capacities, and binding conditions (api.md section 4)."""

from __future__ import annotations

from typing import Any

import pytest
from dra_api.codec import convert
from dra_api.gates import FeatureGates
from dra_api.releases import Release
from dra_api.resource import Device, DeviceCapacity
from dra_api.validation.device import capacity
from dra_api.validation.metadata import binding_conditions

OLD, NEW = FeatureGates.of({}, Release.V1_36), FeatureGates.of({}, Release.V1_37)
FRACTIONAL = FeatureGates.of({"DRAFractionalCapacityRange": True}, Release.V1_37)


def errors_of(policy: dict[str, Any], gates: FeatureGates = OLD, value: str = "10") -> list[str]:
    it = convert(DeviceCapacity, {"value": value, "requestPolicy": policy})
    errors = capacity(it, "c", shareable=True, gates=gates)
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


@pytest.mark.rule("K37-BUG-12", "K37-BUG-13", "K37-FR-08")
@pytest.mark.parametrize(
    ("default", "bounds", "old", "new"),
    [
        pytest.param("1", {"min": "-1"}, [], ["Invalid .validRange.min"], id="a negative minimum"),
        pytest.param("-1", {"min": "-1"}, [], ["Invalid .default", "Invalid .validRange.min"], id="a negative default"),
        pytest.param("10E", {"min": "0"}, [], ["Invalid .default"], id="a default beyond 64 bits"),
        pytest.param("1", {"min": "1", "max": "10E"}, [], ["Invalid .validRange.max"], id="a maximum beyond 64 bits"),
        pytest.param("1", {"min": "0", "step": "0"}, *[["Invalid .validRange.step"]] * 2, id="no step, a divisor once"),
        pytest.param("9E", {"min": "9E"}, [], [], id="large"),
    ],
)
def test_amounts_of_policies_are_neither_negative_nor_beyond_64_bits_from_1_37_on(
    default: str, bounds: dict[str, str], old: list[str], new: list[str]
) -> None:
    """A step of zero was refused here before Kubernetes refused it."""
    policy = {"default": default, "validRange": bounds}
    assert (errors_of(policy, OLD, "100E"), errors_of(policy, NEW, "100E")) == (old, new)


@pytest.mark.rule("K37-FR-05", "K37-FR-06")
@pytest.mark.parametrize(
    ("default", "bounds", "on", "off"),
    [
        pytest.param("250m", {"min": "100m", "step": "100m"}, ["Invalid .validRange.step"], [], id="between steps"),
        pytest.param("300m", {"min": "100m", "step": "100m"}, [], [], id="at a step"),
        pytest.param(
            "1u",
            {"min": "1u", "step": "1u"},
            ["Invalid .default", "Invalid .validRange.min", "Invalid .validRange.step"],
            [],
            id="finer than thousandths",
        ),
        pytest.param("2", {"min": "1", "step": "2"}, *[["Invalid .validRange.step"]] * 2, id="whole numbers"),
    ],
)
def test_ranges_with_fractions_are_counted_in_thousandths_with_their_gate(
    default: str, bounds: dict[str, str], on: list[str], off: list[str]
) -> None:
    policy = {"default": default, "validRange": bounds}
    assert (errors_of(policy, FRACTIONAL), errors_of(policy, NEW)) == (on, off)


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
