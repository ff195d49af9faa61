"""Rules of ResourceClaim and ResourceClaimTemplate, one fault at a time (api.md section 6)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from dra_api.gates import FeatureGates
from dra_api.meta import Object
from dra_api.resource import ResourceClaim, ResourceClaimTemplate
from dra_api.validation import FieldError, SelectorVerdict, validate_resource_claim, validate_resource_claim_template
from objects import found, sample

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
        (f"{DEVICES}.requests.0.exactly", ..., ["Required spec.devices.requests[0]"]),
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
        (f"{EXACTLY}.selectors.0.cel", ..., [f"Required {IN_EXACTLY}.selectors[0].cel"]),
        (f"{EXACTLY}.selectors.0.cel.expression", "bad", [f"Invalid {IN_EXACTLY}.selectors[0].cel.expression"]),
        (f"{EXACTLY}.selectors.0.cel.expression", "costly", [f"Forbidden {IN_EXACTLY}.selectors[0].cel.expression"]),
        (f"{EXACTLY}.selectors.0.cel.expression", "b" * 10241, [f"TooLong {IN_EXACTLY}.selectors[0].cel.expression"]),
        (f"{DEVICES}.constraints.0.requests", ["r", "r"], ["Duplicate spec.devices.constraints[0].requests[1]"]),
        (f"{DEVICES}.constraints.0.requests", ["r/t"], ["Invalid spec.devices.constraints[0].requests[0]"]),
        (f"{DEVICES}.constraints.0.requests", ["s/t/u"], ["Invalid spec.devices.constraints[0].requests[0]"]),
        (f"{DEVICES}.constraints.0.matchAttribute", ..., ["Required spec.devices.constraints[0]"]),
        (f"{DEVICES}.constraints.0.distinctAttribute", "ignored", []),
        (f"{DEVICES}.constraints", [{"matchAttribute": "a/b"}] * 33, ["TooMany spec.devices.constraints"]),
        (f"{DEVICES}.config.0.opaque", ..., ["Required spec.devices.config[0].opaque"]),
        (f"{DEVICES}.config.0.opaque.parameters", None, ["Required spec.devices.config[0].opaque.parameters"]),
        (f"{DEVICES}.config.0.opaque.parameters", [], ["Invalid spec.devices.config[0].opaque.parameters"]),
    ],
)
def test_claims_and_templates(path: str, value: object, expected: list[str]) -> None:
    def check_selector(expression: str, stored: bool) -> SelectorVerdict:
        assert not stored
        assert len(expression) <= 10240
        too_much = expression == "costly"
        return SelectorVerdict("no" if expression == "bad" else None, 1_000_000 + too_much)

    claim = sample(ResourceClaim, {path: value})
    assert found(validate_resource_claim(claim, check_selector=check_selector)) == expected
    template = sample(ResourceClaimTemplate, {f"spec.{path}": value})
    errors = found(validate_resource_claim_template(template, check_selector=check_selector))
    assert errors == [error.replace(" spec.", " spec.spec.") for error in expected]


def test_without_consumable_capacity_a_constraint_can_only_match() -> None:
    claim = sample(ResourceClaim, {f"{DEVICES}.constraints.0.matchAttribute": ...})
    errors = validate_resource_claim(claim, gates=FeatureGates.of({"DRAConsumableCapacity": False}))
    assert found(errors) == ["Required spec.devices.constraints[0].matchAttribute"]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        pytest.param([], [], id="an empty list equals an absent one"),
        pytest.param(None, [], id="null too"),
        pytest.param([{}], ["Invalid spec"], id="and a change is one error, however wrong it is"),
    ],
)
@pytest.mark.parametrize(
    ("kind", "validate", "path"),
    [
        (ResourceClaim, validate_resource_claim, f"{DEVICES}.config"),
        (ResourceClaimTemplate, validate_resource_claim_template, f"spec.{DEVICES}.config"),
    ],
)
def test_the_spec_is_immutable(
    kind: type[Object], validate: Callable[..., list[FieldError]], path: str, config: object, expected: list[str]
) -> None:
    assert found(validate(sample(kind, {path: config}), sample(kind, {path: ...}))) == expected


def test_metadata_in_a_template() -> None:
    inner = {"labels": {"a": "b c"}, "annotations": {"a b": ""}, "name": "n", "finalizers": []}
    assert found(validate_resource_claim_template(sample(ResourceClaimTemplate, {"spec.metadata": inner}))) == [
        "Forbidden spec.metadata.name",
        "Invalid spec.metadata.annotations",
        "Invalid spec.metadata.labels",
    ]
