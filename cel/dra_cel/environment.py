"""Environments (the names that an expression may use, as data), and the environment of admission policies.

An environment is a table of functions, of variables and of structs. It also has the sizes of the variables' values,
for the cost estimate. ``dra_cel.device`` has the environments of device selectors.

Struct literals are the few protobuf messages that an expression may build (``MESSAGE_TYPES``).
``google.protobuf.Int64Value{value: 1}`` is the number 1, ``google.protobuf.Duration{seconds: 1}`` a duration, and
``google.protobuf.Value``, ``Struct`` and ``ListValue`` hold any JSON. Kubernetes' own structs can be named,
but not built.

Objects of admission policies are of unknown type: any JSON that ``json.loads`` gives is a valid value. A namespace has
only some of its fields, as in the reference. ``variables`` holds the policy's own variables; the caller knows their
types because it compiles them one after the other.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from dra_cel.basics.declarations import Function, Library, merge
from dra_cel.basics.errors import EvaluationError
from dra_cel.basics.types import (
    ANY,
    BOOL,
    BYTES,
    CIDR,
    DOUBLE,
    DURATION,
    DYN,
    INT,
    IP,
    NULL,
    STRING,
    TIMESTAMP,
    TYPE,
    UINT,
    Type,
    list_of,
    map_of,
    optional_of,
    struct,
    type_of,
    type_type,
)
from dra_cel.basics.values import NANOS, UINT_MAX, Duration, Optional, Timestamp, Uint, unwrap_key
from dra_cel.libraries import (
    addresses,
    authorization,
    clock,
    containers,
    conversions,
    formats,
    lists,
    operators,
    scalars,
    strings,
)
from dra_cel.libraries.authorization import AUTHORIZER, RESOURCE_CHECK
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
    for named, value in zip(node.fields, values, strict=True):
        if not named.optional:
            given[named.name] = value
        elif not isinstance(value, Optional):
            raise EvaluationError("other", f"cannot initialize optional entry {named.name!r} from a plain value")
        elif value.present:
            given[named.name] = value.value
        else:
            given.pop(named.name, None)
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


@dataclass(frozen=True, slots=True)
class Shape:
    """What is known about a variable's values beyond their type: how large they can be, and what their parts are.

    ``size`` is the largest number of characters or entries. ``any_field`` gives the shape of fields which are not
    listed, as in a map whose values are all alike.
    """

    size: int = UINT_MAX
    key: Shape | None = None
    value: Shape | None = None
    fields: Mapping[str, Shape] = field(default_factory=dict)
    any_field: Shape | None = None

    def below(self, step: str) -> Shape | None:
        """The shape one step down a path: ``@keys``, ``@items``, ``@values`` or a field's name."""
        if step == "@keys":
            return self.key
        if step in ("@items", "@values"):
            return self.value
        return self.fields.get(step, self.any_field)


@dataclass(frozen=True, slots=True, eq=False)
class Environment:
    """Everything that an expression may refer to. ``accepts_result`` decides which output types are allowed;
    ``result_rule`` says it in words.

    ``type_names`` are names that stand for a type at run time; those of ``checked_names`` only do so for the checker.
    ``bindings``: whether there is a ``cel.bind``.
    """

    name: str
    functions: Mapping[str, Function]
    variables: Mapping[str, Type]
    structs: Mapping[str, Mapping[str, Type]] = field(default_factory=dict)
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    type_names: Mapping[str, Type] = field(default_factory=dict)
    checked_names: Mapping[str, Type] = field(default_factory=dict)
    accepts_result: Callable[[Type], bool] = lambda output: True
    result_rule: str = "any type"
    cost_limit: int = 1_000_000
    bindings: bool = True

    def knows_type(self, name: str) -> bool:
        return name in self.type_names or name in self.checked_names

    def type_of_name(self, name: str) -> Type:
        """The type of a name of a type: ``type(int)`` for ``int``."""
        return type_type(self.type_names.get(name) or self.checked_names[name])


STANDARD_TYPES: Final[Mapping[str, Type]] = {
    "bool": BOOL, "bytes": BYTES, "double": DOUBLE, "int": INT, "uint": UINT, "string": STRING, "null_type": NULL,
    "type": TYPE, "list": list_of(DYN), "map": map_of(DYN, DYN), "net.IP": IP, "net.CIDR": CIDR,
    "optional_type": optional_of(DYN), "google.protobuf.Duration": DURATION, "google.protobuf.Timestamp": TIMESTAMP,
}  # fmt: skip
"""Names that stand for types in expressions, as in ``type(x) == string``."""

CHECKED_TYPES: Final[Mapping[str, Type]] = {"duration": DURATION, "timestamp": TIMESTAMP, **MESSAGE_TYPES}
"""Names that the checker takes for types, but that mean nothing at run time."""

KUBERNETES: Final[tuple[Library, ...]] = (
    operators.LIBRARY, conversions.LIBRARY, clock.LIBRARY, lists.LIBRARY, strings.STRINGS, strings.FORMATTING,
    containers.LIBRARY, scalars.QUANTITIES, scalars.VERSIONS, addresses.URLS, addresses.NETWORKS, formats.LIBRARY,
    authorization.LIBRARY,
)  # fmt: skip
"""What Kubernetes 1.36 offers in every environment. The order matters for calls that several overloads fit: lists come
before texts."""


def kubernetes(*more: Library) -> dict[str, Function]:
    """The functions of Kubernetes' base environment and of further libraries."""
    return merge(*KUBERNETES, *more)


_REQUEST: Final = struct("kubernetes.AdmissionRequest")
_KIND: Final = struct("kubernetes.GroupVersionKind")
_RESOURCE: Final = struct("kubernetes.GroupVersionResource")
_USER: Final = struct("kubernetes.UserInfo")
_VARIABLES: Final = struct("kubernetes.variables")
_NAMESPACE: Final = struct("kubernetes.Namespace")
_METADATA: Final = struct("kubernetes.NamespaceMetadata")
_SPEC: Final = struct("kubernetes.NamespaceSpec")
_STATUS: Final = struct("kubernetes.NamespaceStatus")
_CONDITION: Final = struct("kubernetes.NamespaceCondition")

_STRUCTS: Final[Mapping[str, Mapping[str, Type]]] = {
    _REQUEST.name: {
        "kind": _KIND, "resource": _RESOURCE, "subResource": STRING, "requestKind": _KIND, "requestResource": _RESOURCE,
        "requestSubResource": STRING, "name": STRING, "namespace": STRING, "operation": STRING, "userInfo": _USER,
        "dryRun": BOOL, "options": DYN,
    },
    _KIND.name: {"group": STRING, "version": STRING, "kind": STRING},
    _RESOURCE.name: {"group": STRING, "version": STRING, "resource": STRING},
    _USER.name: {
        "username": STRING, "uid": STRING, "groups": list_of(STRING), "extra": map_of(STRING, list_of(STRING)),
    },
    _NAMESPACE.name: {"metadata": _METADATA, "spec": _SPEC, "status": _STATUS},
    _METADATA.name: {
        "name": STRING, "generateName": STRING, "namespace": STRING, "labels": map_of(STRING, STRING),
        "annotations": map_of(STRING, STRING), "UID": STRING, "creationTimestamp": TIMESTAMP,
        "deletionGracePeriodSeconds": INT, "deletionTimestamp": TIMESTAMP, "generation": INT,
        "resourceVersion": STRING, "finalizers": list_of(STRING),
    },
    _SPEC.name: {"finalizers": list_of(STRING)},
    _STATUS.name: {"conditions": list_of(_CONDITION), "phase": STRING},
    _CONDITION.name: {
        "status": STRING, "type": STRING, "lastTransitionTime": TIMESTAMP, "message": STRING, "reason": STRING,
    },
}  # fmt: skip


def admission_policies(variables: Mapping[str, Type] | None = None, *, result: Type | None = BOOL) -> Environment:
    """The environment of a policy's expressions.

    ``variables`` are the types of the policy's variables so far. ``result`` is the type that the expression must have:
    bool for validations, string for messages, None for variables, which may be anything. An expression of unknown type
    (``object.spec.enabled``) is refused, as by the reference: write ``object.spec.enabled == true``.
    """
    return Environment(
        name="admission policies",
        functions=kubernetes(),
        variables={
            "object": DYN,
            "oldObject": DYN,
            "params": DYN,
            "namespaceObject": _NAMESPACE,
            "request": _REQUEST,
            "variables": _VARIABLES,
            "authorizer": AUTHORIZER,
            "authorizer.requestResource": RESOURCE_CHECK,
        },
        structs={**STRUCTS, **_STRUCTS, _VARIABLES.name: dict(variables or {})},
        type_names=STANDARD_TYPES,
        checked_names={**CHECKED_TYPES, **{name: struct(name) for name in _STRUCTS}},
        bindings=False,
        accepts_result=lambda output: result is None or output == result,
        result_rule="any type" if result is None else str(result),
    )
