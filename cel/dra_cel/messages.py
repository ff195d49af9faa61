"""Struct literals: the few protobuf messages that expressions may build.

``google.protobuf.Int64Value{value: 1}`` is the number 1. Kubernetes' own structs can be named, but not built.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from .errors import EvaluationError
from .tree import StructLiteral
from .types import BOOL, BYTES, DOUBLE, DYN, INT, STRING, UINT, Type
from .values import NONE, Optional, Uint

_PREFIX: Final = "google.protobuf."
_INT32: Final = range(-(2**31), 2**31)
_UINT32: Final = range(2**32)
_WRAPPERS: Final[Mapping[str, tuple[Type, Any]]] = {
    "BoolValue": (BOOL, False), "BytesValue": (BYTES, b""), "DoubleValue": (DOUBLE, 0.0), "FloatValue": (DOUBLE, 0.0),
    "Int32Value": (INT, 0), "Int64Value": (INT, 0), "StringValue": (STRING, ""), "UInt32Value": (UINT, Uint(0)),
    "UInt64Value": (UINT, Uint(0)),
}  # fmt: skip

STRUCTS: Final[Mapping[str, Mapping[str, Type]]] = {
    **{_PREFIX + name: {"value": type_} for name, (type_, _) in _WRAPPERS.items()},
    _PREFIX + "Value": {"bool_value": BOOL, "number_value": DOUBLE, "string_value": STRING},
}
TYPE_NAMES: Final[Mapping[str, Type]] = {
    **{_PREFIX + name: Type(type_.kind, type_.name, nullable=True) for name, (type_, _) in _WRAPPERS.items()},
    _PREFIX + "Value": DYN,
}


def build_message(node: StructLiteral, values: Sequence[Any]) -> Any:
    """The value of a struct literal. Raises EvaluationError."""
    name = node.name.removeprefix(_PREFIX)
    given: dict[str, Any] = {}
    for field, value in zip(node.fields, values, strict=True):
        if not field.optional:
            given[field.name] = value
        elif not isinstance(value, Optional):
            raise EvaluationError("other", f"cannot initialize optional entry {field.name!r} from a plain value")
        elif value is not NONE and value.present:
            given[field.name] = value.value
    if node.name == _PREFIX + "Value":
        return next(reversed(given.values()), None)
    if name not in _WRAPPERS or name == node.name:
        raise EvaluationError("other", f"unknown type {node.name!r}: such values cannot be built")
    value = given.get("value", _WRAPPERS[name][1])
    allowed = {"Int32Value": _INT32, "UInt32Value": _UINT32}.get(name)
    if allowed is not None and int(value) not in allowed:
        raise EvaluationError("overflow", f"{value} does not fit {name}")
    return value
