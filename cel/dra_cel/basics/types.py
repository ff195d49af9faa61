"""The types of expressions, as the checker sees them and as ``type(x)`` returns them.

A type is a kind, a name and parameters: ``list(string)`` is ``Type("list", "list", (STRING,))``. Types that only
have a name (``kubernetes.Quantity``) are of kind ``struct`` (they may have fields) or ``opaque`` (``net.IP``,
``optional_type(T)``). ``dyn`` and ``any`` switch checking off; ``param`` is a type variable of a declaration.

Types nest as deep as expressions do. Equal types are therefore the same object. Comparing and hashing them does not
visit their parameters, and what passes ask most often is computed when a type is made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final
from weakref import WeakValueDictionary

_SHOWN_LEVELS: Final = 6


class Type:
    """One type. ``nullable`` marks the wrappers (``google.protobuf.Int64Value``) that may also be null.

    ``is_open``: it contains type variables. ``is_loose``: its values may hold values of any type, at some depth.
    """

    __slots__ = ("__weakref__", "is_loose", "is_open", "kind", "name", "nullable", "params")
    kind: str
    name: str
    params: tuple[Type, ...]
    nullable: bool
    is_open: bool
    is_loose: bool
    _known: ClassVar[WeakValueDictionary[Any, Type]] = WeakValueDictionary()

    def __new__(cls, kind: str, name: str, params: tuple[Type, ...] = (), nullable: bool = False) -> Type:
        key = kind, name, params, nullable
        known = cls._known.get(key)
        if known is not None:
            return known
        self = super().__new__(cls)
        self.kind, self.name, self.params, self.nullable = key
        self.is_open = kind == "param" or any(inner.is_open for inner in params)
        self.is_loose = kind in ("dyn", "any") or any(inner.is_loose for inner in params)
        return cls._known.setdefault(key, self)

    def __str__(self) -> str:
        return self._text(lambda type_: type_.name, _SHOWN_LEVELS)

    __repr__ = __str__

    @property
    def label(self) -> str:
        """The name used in messages about checking (``any`` instead of its long name)."""
        return self._text(lambda type_: _LABELS.get(type_.kind, type_.name), _SHOWN_LEVELS)

    def _text(self, name: Callable[[Type], str], depth: int) -> str:
        if not self.params:
            return name(self)
        inner = ", ".join(param._text(name, depth - 1) for param in self.params) if depth else "..."
        return f"{self.name}({inner})"

    @property
    def is_dynamic(self) -> bool:
        return self.kind in ("dyn", "any")


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


def may_be_optional(type_: Type) -> bool:
    """Whether the type allows optional values."""
    return is_optional(type_) or type_.is_dynamic


def is_scalar(type_: Type) -> bool:
    """Whether every value of the type has size 1 (also inside an optional)."""
    while is_optional(type_):
        type_ = type_.params[0]
    return type_.kind in SCALARS


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
