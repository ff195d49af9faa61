"""Faults of single fields, worded as the real server words them; an Invalid answer collects them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from .structure import Fault


def _literal(value: Any) -> str:
    return orjson.dumps(value, default=str).decode()


def required(field: str, detail: str = "") -> Fault:
    return Fault("FieldValueRequired", field, "Required value" + (f": {detail}" if detail else ""))


def invalid(field: str, value: Any, detail: str) -> Fault:
    return Fault("FieldValueInvalid", field, f"Invalid value: {_literal(value)}: {detail}")


def unsupported(field: str, value: Any, supported: Sequence[str]) -> Fault:
    options = ", ".join(f'"{option}"' for option in supported)
    return Fault("FieldValueNotSupported", field, f"Unsupported value: {_literal(value)}: supported values: {options}")


def duplicate(field: str, value: Any) -> Fault:
    return Fault("FieldValueDuplicate", field, f"Duplicate value: {_literal(value)}")


def forbidden(field: str, detail: str) -> Fault:
    return Fault("FieldValueForbidden", field, f"Forbidden: {detail}")


def unknown(field: str, value: Any) -> Fault:
    return Fault("FieldValueNotFound", field, f"Not found: {_literal(value)}")


def too_long(field: str, limit: int) -> Fault:
    return Fault("FieldValueTooLong", field, f"Too long: may not be more than {limit} bytes")


def immutable(field: str, value: Any) -> Fault:
    return invalid(field, value, "field is immutable")
