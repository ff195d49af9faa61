"""ResourceClaim and ResourceClaimTemplate, without the status. Spec: api.md sections 6 and 7."""

from __future__ import annotations

from dra_api.releases.gates import FeatureGates
from dra_api.resource import ResourceClaim, ResourceClaimTemplate
from dra_api.validation.errors import FieldError, immutable
from dra_api.validation.fields.metadata import metadata, metadata_update, template_metadata
from dra_api.validation.fields.requests import SelectorCheck, accept_selectors, device_claim
from dra_api.values.equality import same

DEFAULT_GATES = FeatureGates.of({})


def validate_resource_claim(
    new: ResourceClaim,
    old: ResourceClaim | None = None,
    *,
    gates: FeatureGates = DEFAULT_GATES,
    check_selector: SelectorCheck = accept_selectors,
    check_derived: SelectorCheck = accept_selectors,
) -> list[FieldError]:
    """What is wrong with a new claim, or with the change from ``old`` to ``new``.

    The spec never changes, so an update does not validate it again: rules may be stricter by now.
    """
    if old is not None:
        errors = list(metadata_update(new.metadata, old.metadata))
        return errors if same(new.spec, old.spec) else [*errors, immutable("spec", new.spec)]
    errors = list(metadata(new.metadata, namespaced=True))
    errors += device_claim(new.spec.devices, "spec.devices", gates, check_selector, check_derived)
    return errors


def validate_resource_claim_template(
    new: ResourceClaimTemplate,
    old: ResourceClaimTemplate | None = None,
    *,
    gates: FeatureGates = DEFAULT_GATES,
    check_selector: SelectorCheck = accept_selectors,
    check_derived: SelectorCheck = accept_selectors,
) -> list[FieldError]:
    """What is wrong with a new template, or with the change from ``old`` to ``new``; its spec never changes either."""
    if old is not None:
        errors = list(metadata_update(new.metadata, old.metadata))
        return errors if same(new.spec, old.spec) else [*errors, immutable("spec", new.spec)]
    errors = list(metadata(new.metadata, namespaced=True))
    errors += template_metadata(new.spec.metadata, "spec.metadata")
    errors += device_claim(new.spec.spec.devices, "spec.spec.devices", gates, check_selector, check_derived)
    return errors
