"""What the API server refuses in a DeviceTaintRule. Spec: api.md section 7."""

from __future__ import annotations

from typing import Final

from dra_api.resource import DeviceTaintRule, DeviceTaintSelector
from dra_api.validation.errors import Errors, FieldError, too_many
from dra_api.validation.fields.conditions import conditions
from dra_api.validation.fields.device import taint
from dra_api.validation.fields.metadata import metadata, metadata_update
from dra_api.validation.formats import checked, dns_label, driver_name, pool_name

RULE_CONDITIONS_LIMIT: Final = 8


def validate_device_taint_rule(new: DeviceTaintRule, old: DeviceTaintRule | None = None) -> list[FieldError]:
    """What is wrong with a new rule, or with the change from ``old`` to ``new``."""
    if old is None:
        errors = list(metadata(new.metadata, namespaced=False))
    else:
        errors = list(metadata_update(new.metadata, old.metadata))
    if new.spec.device_selector is not None:
        errors += _selector(new.spec.device_selector, "spec.deviceSelector")
    errors += taint(new.spec.taint, "spec.taint", old.spec.taint if old is not None else None)
    return errors


def validate_device_taint_rule_status(new: DeviceTaintRule, old: DeviceTaintRule) -> list[FieldError]:
    """What is wrong with the change of a rule's status."""
    errors = list(metadata_update(new.metadata, old.metadata))
    errors += conditions(new.status.conditions, "status.conditions")
    if len(new.status.conditions or ()) > RULE_CONDITIONS_LIMIT:
        errors.append(too_many("status.conditions", len(new.status.conditions or ()), RULE_CONDITIONS_LIMIT))
    return errors


def _selector(selector: DeviceTaintSelector, path: str) -> Errors:
    if selector.driver is not None:
        yield from driver_name(selector.driver, f"{path}.driver")
    if selector.pool is not None:
        yield from pool_name(selector.pool, f"{path}.pool")
    if selector.device is not None:
        yield from checked(dns_label, selector.device, f"{path}.device")
