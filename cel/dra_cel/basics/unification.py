"""Which types fit where: assignability with type variables.

The rules are as generous as the reference's: ``dyn`` and ``any`` fit everything, in both directions, and a type
variable that meets two types takes the more general one.
"""

from __future__ import annotations

from .types import Type
from .walk import Walk, walk

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
