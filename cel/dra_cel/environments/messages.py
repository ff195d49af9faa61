"""Struct literals: the few protobuf messages that an expression may build.

``google.protobuf.Int64Value{value: 1}`` is the number 1, ``google.protobuf.Duration{seconds: 1}`` a duration, and
``google.protobuf.Value``, ``Struct`` and ``ListValue`` hold what JSON can hold. Kubernetes' own structs can be named,
but not built.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any, Final

from dra_cel.basics.errors import EvaluationError
from dra_cel.basics.types import (
    ANY,
    BOOL,
    BYTES,
    DOUBLE,
    DYN,
    INT,
    STRING,
    UINT,
    Type,
    list_of,
    map_of,
    type_of,
)  # fmt: skip
from dra_cel.basics.values import NANOS, Duration, Optional, Timestamp, Uint, unwrap_key
from dra_cel.syntax.tree import StructLiteral

_PREFIX: Final = "google.protobuf."
_INT32: Final = range(-(2**31), 2**31)
_UINT32: Final = range(2**32)
_JSON_WHOLE: Final = range(-(2**53) + 1, 2**53)
_WRAPPERS: Final[Mapping[str, tuple[Type, Any]]] = {
    "BoolValue": (BOOL, False), "BytesValue": (BYTES, b""), "DoubleValue": (DOUBLE, 0.0), "FloatValue": (DOUBLE, 0.0),
    "Int32Value": (INT, 0), "Int64Value": (INT, 0), "StringValue": (STRING, ""), "UInt32Value": (UINT, Uint(0)),
    "UInt64Value": (UINT, Uint(0)),
}  # fmt: skip
_OBJECT: Final = map_of(STRING, DYN)
_ARRAY: Final = list_of(DYN)
_TIME: Final[Mapping[str, Type]] = {"seconds": INT, "nanos": INT}

NULL_VALUE: Final = _PREFIX + "NullValue.NULL_VALUE"
"""The one enumerated constant; its value is 0."""
STRUCTS: Final[Mapping[str, Mapping[str, Type]]] = {
    **{_PREFIX + name: {"value": type_} for name, (type_, _) in _WRAPPERS.items()},
    _PREFIX + "Value": {
        "null_value": INT, "bool_value": BOOL, "number_value": DOUBLE, "string_value": STRING, "struct_value": _OBJECT,
        "list_value": _ARRAY,
    },
    _PREFIX + "Struct": {"fields": _OBJECT},
    _PREFIX + "ListValue": {"values": _ARRAY},
    _PREFIX + "Duration": _TIME,
    _PREFIX + "Timestamp": _TIME,
    _PREFIX + "Any": {"type_url": STRING, "value": BYTES},
}  # fmt: skip
MESSAGE_TYPES: Final[Mapping[str, Type]] = {
    **{_PREFIX + name: Type(type_.kind, type_.name, nullable=True) for name, (type_, _) in _WRAPPERS.items()},
    _PREFIX + "Value": DYN,
    _PREFIX + "Struct": _OBJECT,
    _PREFIX + "ListValue": _ARRAY,
    _PREFIX + "Any": ANY,
}


def build_message(node: StructLiteral, values: Sequence[Any]) -> Any:
    """The value of a struct literal. Raises EvaluationError."""
    given: dict[str, Any] = {}
    for field, value in zip(node.fields, values, strict=True):
        if not field.optional:
            given[field.name] = value
        elif not isinstance(value, Optional):
            raise EvaluationError("other", f"cannot initialize optional entry {field.name!r} from a plain value")
        elif value.present:
            given[field.name] = value.value
        else:
            given.pop(field.name, None)
    name = node.name.removeprefix(_PREFIX)
    if name in _WRAPPERS and name != node.name:
        return _wrapped(name, given)
    match name:
        case "Value":
            field_name, value = next(reversed(given.items()), ("null_value", None))
            return None if field_name == "null_value" else _json(value)
        case "Struct":
            return _json(given.get("fields", {}))
        case "ListValue":
            return _json(given.get("values", []))
        case "Duration":
            return Duration(_nanos(given))
        case "Timestamp":
            return Timestamp(_nanos(given))
    raise EvaluationError("other", f"unknown type {node.name!r}: such values cannot be built")


def _wrapped(name: str, given: Mapping[str, Any]) -> Any:
    value = given.get("value", _WRAPPERS[name][1])
    allowed = {"Int32Value": _INT32, "UInt32Value": _UINT32}.get(name)
    if allowed is not None and int(value) not in allowed:
        raise EvaluationError("overflow", f"{value} does not fit {name}")
    return value


def _nanos(given: Mapping[str, Any]) -> int:
    nanos: int = given.get("nanos", 0)
    if nanos not in _INT32:
        raise EvaluationError("overflow", f"{nanos} nanos do not fit 32 bits")
    seconds: int = given.get("seconds", 0)
    return seconds * NANOS + nanos


def _json(value: Any) -> Any:
    """The value as JSON would hold it: numbers are doubles, or text where doubles are not exact. Raises
    EvaluationError for what JSON cannot hold."""
    if value is None or isinstance(value, (bool, float, str)):
        return value
    if isinstance(value, int):
        return float(value) if value in _JSON_WHOLE else str(int(value))
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, (list, tuple)):
        return [_json(item) for item in value]
    if isinstance(value, dict):
        return {_json_key(unwrap_key(key)): _json(item) for key, item in value.items()}
    raise EvaluationError("other", f"a {type_of(value).name} cannot be part of JSON")


def _json_key(key: Any) -> str:
    if isinstance(key, str):
        return key
    raise EvaluationError("other", f"a {type_of(key).name} cannot be a key in JSON")
