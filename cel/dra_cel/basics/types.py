"""The types of expressions, as the checker sees them and as ``type(x)`` returns them.

A type is a kind, a name and parameters: ``list(string)`` is ``Type("list", "list", (STRING,))``. Types that only
have a name (``kubernetes.Quantity``) are of kind ``struct`` (they may have fields) or ``opaque`` (``net.IP``,
``optional_type(T)``). ``dyn`` and ``any`` switch checking off; ``param`` is a type variable of a declaration.

Types nest as deep as expressions do. Equal types are therefore the same object. Comparing and hashing them does not
visit their parameters. The most frequent questions of passes are answered when a type is made.

Assignability with type variables decides which types fit. The rules are as generous as the reference's: ``dyn`` and
``any`` fit everything, in both directions, and a type variable that meets two types takes the more general one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final
from weakref import WeakValueDictionary

from dra_cel.basics.errors import Walk, walk

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


_NULLABLE = ("opaque", "struct", "any", "duration", "timestamp")


class Bindings:
    """What type variables stand for."""

    __slots__ = ("bound", "changes")

    def __init__(self) -> None:
        self.bound: dict[Type, Type] = {}
        self.changes: list[tuple[Type, Type | None]] = []

    def resolve(self, type_: Type, *, default: Type | None = None) -> Type:
        """The type with its variables replaced; free ones stay, or become the default."""
        return walk(self._resolve(type_, default)) if type_.is_open else type_

    def _resolve(self, type_: Type, default: Type | None) -> Walk[Type]:
        while type_ in self.bound:
            type_ = self.bound[type_]
        if type_.kind == "param":
            return type_ if default is None else default
        if not type_.is_open:
            return type_
        params: list[Type] = []
        for inner in type_.params:
            resolved: Type = yield self._resolve(inner, default)
            params.append(resolved)
        return Type(type_.kind, type_.name, tuple(params), type_.nullable)

    def assign(self, sources: tuple[Type, ...], targets: tuple[Type, ...]) -> bool:
        """Whether sources fit targets one by one; if so, and only then, variables are bound."""
        self.changes = []
        if len(sources) == len(targets) and walk(self._all_fit(sources, targets)):
            return True
        for variable, before in reversed(self.changes):
            if before is None:
                del self.bound[variable]
            else:
                self.bound[variable] = before
        return False

    def _all_fit(self, sources: tuple[Type, ...], targets: tuple[Type, ...]) -> Walk[bool]:
        for source, target in zip(sources, targets, strict=True):
            if source is target and not source.is_open:
                continue  # equal types are the same object, see ``Type``
            fits: bool = yield self._fits(source, target)
            if not fits:
                return False
        return True

    def _bind(self, variable: Type, type_: Type) -> None:
        self.changes.append((variable, self.bound.get(variable)))
        self.bound[variable] = type_

    def _fits(self, source: Type, target: Type) -> Walk[bool]:
        fits: bool
        if target.kind == "param":
            fits, known = yield self._stands_for(source, target)
            if fits or known:
                return fits
        if source.kind == "param":
            fits, _ = yield self._stands_for(target, source)
            return fits
        if source.kind in ("dyn", "any", "error") or target.kind in ("dyn", "any", "error"):
            return True
        if source.kind == "null_type" or target.kind == "null_type":
            return _accepts_null(target if source.kind == "null_type" else source)
        if source.kind == "type":
            return target.kind == "type"
        if source.kind != target.kind or source.name != target.name or len(source.params) != len(target.params):
            return False
        fits = yield self._all_fit(source.params, target.params)
        return fits

    def _stands_for(self, type_: Type, variable: Type) -> Walk[tuple[bool, bool]]:
        """Whether the variable may stand for the type, and whether that was known before."""
        known = variable if type_ is variable else self.bound.get(variable)
        if known is not None:
            if type_ is known:
                return True, True
            fits: bool = yield self._fits(type_, known)
            if not fits:
                return False, True
            general = more_general(type_, known)
            if not self._occurs(variable, general):
                self._bind(variable, general)
            return True, True
        if self._occurs(variable, type_):
            return False, False
        self._bind(variable, type_)
        return True, False

    def _occurs(self, variable: Type, inside: Type) -> bool:
        pending = [inside]
        while pending:
            type_ = pending.pop()
            if type_ is variable:
                return True
            if type_.kind == "param" and type_ in self.bound:
                pending.append(self.bound[type_])
            elif type_.is_open:
                pending.extend(type_.params)
        return False


def _accepts_null(type_: Type) -> bool:
    return type_.nullable or type_.kind in _NULLABLE or type_.kind == "null_type"


def more_general(left: Type, right: Type) -> Type:
    """Of two types that fit each other, the one that says less."""
    pending = [(left, right)]
    while pending:
        one, other = pending.pop()
        if one is other or one.is_dynamic or one.kind == "param":
            continue
        alike = one.kind == other.kind and one.name == other.name and len(one.params) == len(other.params)
        if one.kind in ("opaque", "list", "map") and alike:
            pending.extend(zip(one.params, other.params, strict=True))
        elif one.kind != "type" or other.kind != "type":
            return right
    return left


def fresh(types: tuple[Type, ...], number: int) -> tuple[Type, ...]:
    """The types of a declaration with type variables of their own, distinguished by the number."""
    return tuple(_renamed(type_, number) if type_.is_open else type_ for type_ in types)


def _renamed(type_: Type, number: int) -> Type:
    if type_.kind == "param":
        return Type("param", f"{type_.name}{number}")
    return Type(type_.kind, type_.name, fresh(type_.params, number), type_.nullable)
