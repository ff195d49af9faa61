"""Which types fit where: assignability with type variables.

The rules are the reference's, including its generosity: ``dyn`` and ``any`` fit everything, in both directions, and a
type variable that met two types takes the more general one.
"""

from __future__ import annotations

from .types import Type

_NULLABLE = ("opaque", "struct", "any", "duration", "timestamp")


class Bindings:
    """What type variables stand for."""

    __slots__ = ("bound", "changes")

    def __init__(self) -> None:
        self.bound: dict[Type, Type] = {}
        self.changes: list[tuple[Type, Type | None]] = []

    def resolve(self, type_: Type, *, default: Type | None = None) -> Type:
        """The type with its variables replaced; free ones stay, or become the default."""
        seen = self.bound.get(type_)
        if seen is not None:
            return self.resolve(seen, default=default)
        if type_.kind == "param":
            return type_ if default is None else default
        if not type_.params:
            return type_
        params = tuple(self.resolve(inner, default=default) for inner in type_.params)
        return type_ if params == type_.params else Type(type_.kind, type_.name, params, type_.nullable)

    def assign(self, sources: tuple[Type, ...], targets: tuple[Type, ...]) -> bool:
        """Whether sources fit targets one by one; if so, and only then, variables are bound."""
        self.changes = []
        if len(sources) == len(targets) and all(map(self._fits, sources, targets)):
            return True
        for variable, before in reversed(self.changes):
            if before is None:
                del self.bound[variable]
            else:
                self.bound[variable] = before
        return False

    def _bind(self, variable: Type, type_: Type) -> None:
        self.changes.append((variable, self.bound.get(variable)))
        self.bound[variable] = type_

    def _fits(self, source: Type, target: Type) -> bool:
        if target.kind == "param":
            fits, known = self._stands_for(source, target)
            if fits or known:
                return fits
        if source.kind == "param":
            return self._stands_for(target, source)[0]
        if source.kind in ("dyn", "any", "error") or target.kind in ("dyn", "any", "error"):
            return True
        if source.kind == "null_type":
            return _accepts_null(target)
        if target.kind == "null_type":
            return _accepts_null(source)
        if source.kind != target.kind:
            return False
        if source.kind == "type":
            return True
        if source.kind in ("opaque", "list", "map"):
            return (
                source.name == target.name
                and len(source.params) == len(target.params)
                and all(map(self._fits, source.params, target.params))
            )
        return source.name == target.name

    def _stands_for(self, type_: Type, variable: Type) -> tuple[bool, bool]:
        """Whether the type may be what the variable stands for, and whether that was known before."""
        if type_ == variable:
            return True, True
        known = self.bound.get(variable)
        if known is not None:
            if type_ == known:
                return True, True
            if not self._fits(type_, known):
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
        if inside == variable:
            return True
        if inside.kind == "param":
            known = self.bound.get(inside)
            return known is not None and self._occurs(variable, known)
        return any(self._occurs(variable, inner) for inner in inside.params)


def _accepts_null(type_: Type) -> bool:
    return type_.nullable or type_.kind in _NULLABLE or type_.kind == "null_type"


def more_general(left: Type, right: Type) -> Type:
    """Of two types that fit each other, the one that says less."""
    return left if _no_more_specific(left, right) else right


def _no_more_specific(left: Type, right: Type) -> bool:
    if left.is_dynamic or left.kind == "param":
        return True
    if right.is_dynamic or right.kind == "param" or left.kind != right.kind:
        return False
    if left.kind in ("opaque", "list", "map"):
        return (
            left.name == right.name
            and len(left.params) == len(right.params)
            and all(map(_no_more_specific, left.params, right.params))
        )
    return left.kind == "type" or left == right


def fresh(types: tuple[Type, ...], number: int) -> tuple[Type, ...]:
    """The types of a declaration with type variables of their own, told apart by the number."""
    return tuple(_renamed(type_, number) for type_ in types)


def _renamed(type_: Type, number: int) -> Type:
    if type_.kind == "param":
        return Type("param", f"{type_.name}{number}")
    if not type_.params:
        return type_
    return Type(type_.kind, type_.name, fresh(type_.params, number), type_.nullable)
