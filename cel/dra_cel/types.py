"""The types of expressions, as the checker sees them and as ``type(x)`` returns them.

A type is a kind, a name and parameters: ``list(string)`` is ``Type("list", "list", (STRING,))``. Types that only
have a name (``kubernetes.Quantity``) are of kind ``struct`` (they may have fields) or ``opaque`` (``net.IP``,
``optional_type(T)``). ``dyn`` and ``any`` switch checking off; ``param`` is a type variable of a declaration.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Type:
    """One type. ``nullable`` marks the wrappers (``google.protobuf.Int64Value``) that may also be null."""

    kind: str
    name: str
    params: tuple[Type, ...] = ()
    nullable: bool = False

    def __str__(self) -> str:
        if self.params:
            return f"{self.name}({', '.join(map(str, self.params))})"
        return self.name

    @property
    def label(self) -> str:
        """The name used in messages about checking (``any`` instead of its long name)."""
        if self.params:
            return f"{self.name}({', '.join(param.label for param in self.params)})"
        return _LABELS.get(self.kind, self.name)

    @property
    def is_dynamic(self) -> bool:
        return self.kind in ("dyn", "any")

    @property
    def is_loose(self) -> bool:
        """Whether values of the type may hold anything, at any depth."""
        return self.is_dynamic or any(inner.is_loose for inner in self.params)


DYN: Final = Type("dyn", "dyn")
ANY: Final = Type("any", "google.protobuf.Any")
BOOL: Final = Type("bool", "bool")
BYTES: Final = Type("bytes", "bytes")
DOUBLE: Final = Type("double", "double")
INT: Final = Type("int", "int")
UINT: Final = Type("uint", "uint")
STRING: Final = Type("string", "string")
NULL: Final = Type("null_type", "null_type")
DURATION: Final = Type("duration", "google.protobuf.Duration")
TIMESTAMP: Final = Type("timestamp", "google.protobuf.Timestamp")
TYPE: Final = Type("type", "type")
ERROR: Final = Type("error", "error")
QUANTITY: Final = Type("struct", "kubernetes.Quantity")
SEMVER: Final = Type("struct", "kubernetes.Semver")
URL: Final = Type("struct", "kubernetes.URL")
FORMAT: Final = Type("struct", "kubernetes.NamedFormat")
IP: Final = Type("opaque", "net.IP")
CIDR: Final = Type("opaque", "net.CIDR")

_LABELS: Final = {
    "any": "any", "duration": "duration", "timestamp": "timestamp", "null_type": "null", "error": "!error!",
}  # fmt: skip
SCALARS: Final = frozenset({"bool", "double", "duration", "int", "timestamp", "uint"})


def list_of(element: Type) -> Type:
    return Type("list", "list", (element,))


def map_of(key: Type, value: Type) -> Type:
    return Type("map", "map", (key, value))


def optional_of(value: Type) -> Type:
    return Type("opaque", "optional_type", (value,))


def type_type(of: Type) -> Type:
    return Type("type", "type", (of,))


def param(name: str) -> Type:
    return Type("param", name)


def struct(name: str) -> Type:
    return Type("struct", name)


def is_optional(type_: Type) -> bool:
    return type_.name == "optional_type" and type_.kind == "opaque"


def is_scalar(type_: Type) -> bool:
    """Whether every value of the type has size 1 (also inside an optional)."""
    return type_.kind in SCALARS or (is_optional(type_) and is_scalar(type_.params[0]))


_LIST: Final = list_of(DYN)
_MAP: Final = map_of(DYN, DYN)
RUNTIME: Final[dict[type, Type | Callable[..., Type]]] = {
    bool: BOOL, int: INT, float: DOUBLE, str: STRING, bytes: BYTES, type(None): NULL,
    list: _LIST, tuple: _LIST, dict: _MAP, Type: TYPE,
}  # fmt: skip
"""Python class of a value -> its type; modules that define further value classes add theirs."""


def type_of(value: object) -> Type:
    """The type of a value, without parameters for lists and maps."""
    found = RUNTIME.get(type(value))
    if isinstance(found, Type):
        return found
    cel_type = getattr(value, "cel_type", None)
    return cel_type if isinstance(cel_type, Type) else DYN


def accepts(type_: Type, value: object) -> bool:
    """Whether a value may be passed for a parameter of that type; of containers the first entry is looked at."""
    kind = type_.kind
    if kind in ("dyn", "any", "param"):
        return True
    actual = type_of(value)
    if actual.kind != kind or actual.name != type_.name:
        return type_.nullable and value is None
    if kind == "list" and value:
        return accepts(type_.params[0], value[0])  # type: ignore[index]  # the kind says that it is a sequence
    if kind == "map" and value:
        from .values import unwrap_key

        key, entry = next(iter(value.items()))  # type: ignore[attr-defined]  # the kind says that it is a dict
        return accepts(type_.params[0], unwrap_key(key)) and accepts(type_.params[1], entry)
    return True
