"""Binding conditions of devices and of allocation results. Spec: api.md section 4."""

from __future__ import annotations

from typing import Final

from dra_api.resource import Device, DeviceRequestAllocationResult
from dra_api.validation.errors import Errors, invalid
from dra_api.validation.formats import checked, label_key
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
