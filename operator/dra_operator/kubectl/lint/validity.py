"""What the API server would refuse: its validation, apart from selectors, which have a check of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dra_api.core import Pod
from dra_api.meta import Object
from dra_api.releases.gates import FeatureGates
from dra_api.resource import DeviceClass, DeviceTaintRule, ResourceClaim, ResourceClaimTemplate, ResourceSlice
from dra_api.validation import (
    FieldError,
    validate_device_class,
    validate_device_taint_rule,
    validate_pod_claims,
    validate_resource_claim,
    validate_resource_claim_template,
    validate_resource_slice,
)

from .manifest import Finding, Manifest, Severity


def invalid_fields(manifests: Iterable[Manifest], gates: FeatureGates) -> Iterator[Finding]:
    """An error for each."""
    for manifest in manifests:
        for error in _errors(manifest.obj, gates):
            yield manifest.finding(Severity.ERROR, error.field, error.body)


def _errors(obj: Object, gates: FeatureGates) -> list[FieldError]:
    match obj:
        case ResourceClaim():
            return validate_resource_claim(obj, gates=gates)
        case ResourceClaimTemplate():
            return validate_resource_claim_template(obj, gates=gates)
        case DeviceClass():
            return validate_device_class(obj)
        case DeviceTaintRule():
            return validate_device_taint_rule(obj)
        case ResourceSlice():
            return validate_resource_slice(obj)
        case Pod():
            return validate_pod_claims(obj)
        case _:
            return []
