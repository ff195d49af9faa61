"""Binding conditions of devices and of allocation results. Spec: api.md section 4.

Conditions in a status: the common rules of ``metav1.Condition``.
"""

from __future__ import annotations

import re
from typing import Final

from dra_api.meta import Condition
from dra_api.resource import Device, DeviceRequestAllocationResult
from dra_api.validation.errors import Errors, duplicate, invalid, not_supported, required, too_long
from dra_api.validation.formats import checked, label_key, size
from dra_api.validation.lists import limited, repeated

BINDING_CONDITIONS_LIMIT: Final = 4


def binding_conditions(item: Device | DeviceRequestAllocationResult, path: str) -> Errors:
    """Both lists or neither, at most 4 entries each, all different."""
    awaited, fatal = item.binding_conditions or (), item.binding_failure_conditions or ()
    awaited_path, fatal_path = f"{path}.bindingConditions", f"{path}.bindingFailureConditions"
    for conditions, list_path in ((awaited, awaited_path), (fatal, fatal_path)):
        yield from limited(
            conditions, list_path, BINDING_CONDITIONS_LIMIT, lambda item, path: checked(label_key, item, path)
        )
        yield from repeated(conditions, list_path)
    for index, condition in enumerate(fatal):
        if condition in awaited:
            detail = "bindingFailureConditions must not overlap with bindingConditions"
            yield invalid(f"{fatal_path}[{index}]", condition, detail)
    if fatal and not awaited:
        yield invalid(awaited_path, [], "bindingConditions are required to use bindingFailureConditions")
    if awaited and not fatal:
        yield invalid(fatal_path, [], "bindingFailureConditions are required to use bindingConditions")


_STATUSES: Final = {"True", "False", "Unknown"}
_REASON: Final = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", re.ASCII)
_REASON_BYTES: Final = 1024
_MESSAGE_BYTES: Final = 32 * 1024


def conditions(items: tuple[Condition, ...] | None, path: str) -> Errors:
    """Every condition is complete, and there is one of each type."""
    seen = set()
    for index, condition in enumerate(items or ()):
        if condition.type in seen:
            yield duplicate(f"{path}[{index}].type", condition.type)
        seen.add(condition.type)
        yield from _condition(condition, f"{path}[{index}]")


def _condition(condition: Condition, path: str) -> Errors:
    yield from checked(label_key, condition.type, f"{path}.type")
    if condition.status not in _STATUSES:
        yield not_supported(f"{path}.status", condition.status, _STATUSES)
    if (condition.observed_generation or 0) < 0:
        detail = "must be greater than or equal to zero"
        yield invalid(f"{path}.observedGeneration", condition.observed_generation, detail)
    if not condition.last_transition_time:
        yield required(f"{path}.lastTransitionTime", "must be set")
    if not condition.reason:
        yield required(f"{path}.reason", "must be set")
    elif not _REASON.fullmatch(condition.reason):
        detail = "must consist of letters, digits, '_', ',' and ':', beginning with a letter (e.g. 'MyReason')"
        yield invalid(f"{path}.reason", condition.reason, detail)
    if size(condition.reason) > _REASON_BYTES:
        yield too_long(f"{path}.reason", _REASON_BYTES)
    if size(condition.message) > _MESSAGE_BYTES:
        yield too_long(f"{path}.message", _MESSAGE_BYTES)
