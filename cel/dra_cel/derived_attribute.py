"""Expressions whose value is an attribute of a device (kubernetes-1.37.md section 10)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dra_api.resource import DeviceAttribute

from .basics.errors import EvaluationError
from .basics.types import type_of
from .basics.values import Optional, Uint
from .environments.device import PreparedDevice
from .libraries.semver import SemverValue
from .selector import Program


class DerivedAttribute(Program):
    """A compiled expression. Raises CompileError when the expression is not acceptable."""

    def of(self, device: PreparedDevice) -> DeviceAttribute:
        """The attribute of a device. Raises EvaluationError, also for a value that no attribute can have."""
        if device.fault is not None:
            raise device.fault
        value = self.evaluate(device.bindings)
        while isinstance(value, Optional) and value.present:
            value = value.value
        if isinstance(value, (list, tuple)):
            return _listed(list(value))
        field, convert = _field(value)
        return DeviceAttribute(**{field: convert(value)})


def _listed(values: list[Any]) -> DeviceAttribute:
    fields = {_field(value)[0] for value in values} or {"string"}
    if len(fields) > 1:
        raise EvaluationError("not-an-attribute", "the result is a list of values of several types")
    found: dict[str, Any] = {_LISTS[fields.pop()]: tuple(_field(value)[1](value) for value in values)}
    return DeviceAttribute(**found)


_LISTS = {"string": "strings", "int_": "ints", "bool_": "bools", "version": "versions"}


def _field(value: Any) -> tuple[str, Callable[[Any], Any]]:
    if isinstance(value, bool):
        return "bool_", bool
    if isinstance(value, int) and not isinstance(value, Uint):
        return "int_", int
    if isinstance(value, str):
        return "string", str
    if isinstance(value, SemverValue):
        return "version", lambda version: version.version.text
    raise EvaluationError("not-an-attribute", f"the result is of type {type_of(value)}, which no attribute can have")
