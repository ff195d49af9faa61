"""Metadata has the same rules in every kind (api.md section 1)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from dra_api.meta import Object
from dra_api.resource import (
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourcePoolStatusRequest,
    ResourceSlice,
)
from dra_api.validation import (
    FieldError,
    validate_device_class,
    validate_device_taint_rule,
    validate_resource_claim,
    validate_resource_claim_template,
    validate_resource_pool_status_request,
    validate_resource_slice,
)
from objects import found, sample

VALIDATORS: list[tuple[type[Object], Callable[..., list[FieldError]]]] = [
    (ResourceSlice, validate_resource_slice),
    (ResourceClaim, validate_resource_claim),
    (DeviceClass, validate_device_class),
    (ResourceClaimTemplate, validate_resource_claim_template),
    (DeviceTaintRule, validate_device_taint_rule),
    (ResourcePoolStatusRequest, validate_resource_pool_status_request),
]


@pytest.mark.parametrize(("kind", "validate"), VALIDATORS, ids=[kind.__name__ for kind, _ in VALIDATORS])
class TestEveryKind:
    def test_a_valid_object_has_no_errors(self, kind: type[Object], validate: Callable[..., list[FieldError]]) -> None:
        assert validate(sample(kind)) == []
        assert validate(sample(kind), sample(kind)) == []

    @pytest.mark.parametrize(
        ("path", "value", "expected"),
        [
            ("metadata.name", "", "Required metadata.name"),
            ("metadata.name", "A", "Invalid metadata.name"),
            ("metadata.generateName", "A-", "Invalid metadata.generateName"),
            ("metadata.generation", -1, "Invalid metadata.generation"),
            ("metadata.labels", {"a b": ""}, "Invalid metadata.labels"),
            ("metadata.labels", {"a": "b c"}, "Invalid metadata.labels"),
            ("metadata.annotations", {"a b": ""}, "Invalid metadata.annotations"),
            ("metadata.annotations", {"a": "x" * 262_144}, "TooLong metadata.annotations"),
            ("metadata.finalizers", ["odd"], "Invalid metadata.finalizers[0]"),
            ("metadata.finalizers", ["a b/c"], "Invalid metadata.finalizers"),
            ("metadata.finalizers", ["orphan", "foregroundDeletion"], "Invalid metadata.finalizers"),
            (
                "metadata.ownerReferences",
                [{"apiVersion": "v1", "kind": "Pod", "uid": "u"}],
                "Invalid metadata.ownerReferences.name",
            ),
            (
                "metadata.ownerReferences",
                [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": True} for uid in "uv"],
                "Invalid metadata.ownerReferences",
            ),
        ],
    )
    def test_metadata(
        self, kind: type[Object], validate: Callable[..., list[FieldError]], path: str, value: object, expected: str
    ) -> None:
        assert found(validate(sample(kind, {path: value}))) == [expected]

    @pytest.mark.parametrize("name", ["a", "a.b", "x-"])
    def test_generated_names(self, kind: type[Object], validate: Callable[..., list[FieldError]], name: str) -> None:
        assert validate(sample(kind, {"metadata.generateName": name})) == []

    def test_namespaces(self, kind: type[Object], validate: Callable[..., list[FieldError]]) -> None:
        namespaced = kind in (ResourceClaim, ResourceClaimTemplate)
        wrong = sample(kind, {"metadata.namespace": "" if namespaced else "ns"})
        assert found(validate(wrong)) == [f"{'Required' if namespaced else 'Forbidden'} metadata.namespace"]

    @pytest.mark.parametrize(
        ("path", "value", "expected"),
        [
            ("metadata.name", "y", "Invalid metadata.name"),
            ("metadata.uid", "y", "Invalid metadata.uid"),
            ("metadata.deletionTimestamp", "2026-01-01T00:00:00Z", "Invalid metadata.deletionTimestamp"),
            ("metadata.resourceVersion", "", "Invalid metadata.resourceVersion"),
            ("metadata.labels", {"a b": ""}, "Invalid metadata.labels"),
        ],
    )
    def test_updates(
        self, kind: type[Object], validate: Callable[..., list[FieldError]], path: str, value: object, expected: str
    ) -> None:
        assert found(validate(sample(kind, {path: value}), sample(kind))) == [expected]

    def test_an_object_in_deletion_gets_no_finalizer(
        self, kind: type[Object], validate: Callable[..., list[FieldError]]
    ) -> None:
        deleted = {"metadata.deletionTimestamp": "2026-01-01T00:00:00Z"}
        old, new = sample(kind, deleted), sample(kind, {**deleted, "metadata.finalizers": ["a/b"]})
        assert found(validate(new, old)) == ["Forbidden metadata.finalizers"]
        assert validate(old, new) == []


def test_a_generation_only_grows() -> None:
    old = sample(ResourceClaim, {"metadata.generation": 2})
    assert validate_resource_claim(sample(ResourceClaim, {"metadata.generation": 3}), old) == []
    assert validate_resource_claim(old, old) == []
    less = validate_resource_claim(sample(ResourceClaim, {"metadata.generation": 1}), old)
    assert found(less) == ["Invalid metadata.generation"]
