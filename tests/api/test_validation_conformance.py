"""Every case of the reference's validation tables: the same error types at the same fields.

Where a case turns on compiling a selector, a stub that knows the expression answers in place of the
CEL room: STUBBED names those expressions.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
from corpus import document
from dra_api import conversion
from dra_api.codec import convert
from dra_api.gates import FeatureGates
from dra_api.meta import Object
from dra_api.releases import Release
from dra_api.resource import (
    DeviceCapacity,
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
    validate_device_class,
    validate_device_taint_rule,
    validate_resource_claim,
    validate_resource_claim_status,
    validate_resource_claim_template,
    validate_resource_pool_status_request,
    validate_resource_pool_status_request_status,
    validate_resource_slice,
)
from dra_api.validation.device import capacity
from rounds import each_of

RECORDED = FeatureGates.of({}, Release.V1_36)
"""The answers are those of 1.36."""
FILES = (
    "devicecapacity",
    "deviceclass",
    "devicetaintrule",
    "resourceclaim",
    "resourceclaim-status",
    "resourceclaimtemplate",
    "resourcepoolstatusrequest",
    "resourceslice",
    "strategy",
)
TYPES: dict[str, type[Object]] = {
    "deviceclass": DeviceClass,
    "deviceclasses": DeviceClass,
    "devicetaintrule": DeviceTaintRule,
    "resourceclaim": ResourceClaim,
    "resourceclaims": ResourceClaim,
    "resourceclaim-status": ResourceClaim,
    "resourceclaimtemplate": ResourceClaimTemplate,
    "resourcepoolstatusrequest": ResourcePoolStatusRequest,
    "resourcepoolstatusrequests": ResourcePoolStatusRequest,
    "resourceslice": ResourceSlice,
    "ResourceSlice": ResourceSlice,
}
TEN = "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]"
COSTLY = (
    "".join(f"{TEN}.all({name}, " for name in ("x", "y", "z", "z2", "z3", "z4", "z5"))
    + f"int('1'.find('[0-9]*')) < 100{')' * 7}"
)
STUBBED = {
    "noSuchVar": SelectorVerdict(error="compilation failed: undeclared reference to 'noSuchVar'"),
    "device.attributes[true].someBoolean": SelectorVerdict(error="compilation failed: no matching overload"),
    COSTLY: SelectorVerdict(max_cost=10**9),
}


def check_selector(expression: str, stored: bool) -> SelectorVerdict:
    return STUBBED.get(expression, SelectorVerdict())


class Case(NamedTuple):
    """A row of a file of the reference."""

    file: str
    kind: str
    case: dict[str, Any]

    def __str__(self) -> str:
        kind = self.case.get("resource", "")
        said = f"{kind} {self.case['operation']} {self.case['name']}"
        return f"{self.file}: {said.strip()}"


CASES = [
    Case(file, case.get("resource", file), case)
    for file in FILES
    for case in document(f"validation/{file}.json")["cases"]
]


def versions(case: dict[str, Any]) -> list[str]:
    """The versions in which the reference ran a case with the same outcome."""
    return [f"resource.k8s.io/{version}" for version in case.get("requestVersions") or ()]


def with_raw(value: object) -> Any:
    """A struct in which ``{"$raw": text}`` became the bytes of the text."""
    if isinstance(value, msgspec.Raw):
        if bytes(value).startswith(b'{"$raw":'):
            return msgspec.Raw(json.loads(bytes(value))["$raw"].encode())
        return value
    if isinstance(value, tuple):
        return tuple(with_raw(item) for item in value)
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.replace(
            value, **{name: with_raw(getattr(value, name)) for name in value.__struct_fields__}
        )
    return value


def errors_of(kind: str, case: dict[str, Any]) -> list[FieldError]:
    if kind == "devicecapacity":
        it = convert(DeviceCapacity, case["object"])
        return list(capacity(it, "spec.devices.capacity", shareable=True, gates=RECORDED))
    new: Object = with_raw(convert(TYPES[kind], case["object"]))
    old: Object | None = with_raw(convert(TYPES[kind], case["oldObject"])) if "oldObject" in case else None
    defaults = msgspec.to_builtins(RECORDED)
    gates = msgspec.convert(defaults | case.get("featureGates", {}), FeatureGates)  # one by one, as no release allows
    if case["operation"] == "updateStatus":
        status: dict[type, Callable[..., list[FieldError]]] = {
            ResourceClaim: validate_resource_claim_status,
            ResourcePoolStatusRequest: validate_resource_pool_status_request_status,
        }
        return status[type(new)](new, old)
    validators: dict[type, Callable[..., list[FieldError]]] = {
        DeviceClass: functools.partial(validate_device_class, check_selector=check_selector),
        DeviceTaintRule: validate_device_taint_rule,
        ResourceClaim: functools.partial(validate_resource_claim, gates=gates, check_selector=check_selector),
        ResourceClaimTemplate: functools.partial(
            validate_resource_claim_template, gates=gates, check_selector=check_selector
        ),
        ResourcePoolStatusRequest: validate_resource_pool_status_request,
        ResourceSlice: functools.partial(validate_resource_slice, gates=gates),
    }
    return validators[type(new)](new, old)


@each_of(CASES)
def test_the_reference_finds_the_same_errors(row: Case) -> None:
    file, kind, case = row
    found = Counter((str(error.type), error.field) for error in errors_of(kind, case))
    expected = Counter((error["type"], error["field"]) for error in case["errors"])
    if file == "strategy":  # two layers may report the same fault there
        assert set(found) == set(expected)
    else:
        assert found == expected


@each_of(row for row in CASES if "resource.k8s.io/v1beta1" in versions(row.case))
def test_the_errors_are_the_same_when_the_object_came_as_v1beta1(row: Case) -> None:
    _, kind, case = row
    there_and_back = {
        name: conversion.convert(conversion.convert(case[name], "resource.k8s.io/v1beta1"), case[name]["apiVersion"])
        for name in ("object", "oldObject")
        if name in case
    }
    assert errors_of(kind, case | there_and_back) == errors_of(kind, case)
