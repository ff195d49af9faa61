"""Parts of an expression whose value is known before evaluation.

As in the reference, literals, lists and maps of constants, conversions of constants (``int("12")``) and membership in
a constant list are computed once: they cost nothing at run time, and a conversion that fails is a compile error.
"""

from __future__ import annotations

from typing import Any, Final, NoReturn

from dra_cel.basics.errors import EvaluationError, EvaluationStopped
from dra_cel.basics.types import type_of
from dra_cel.basics.values import INT_MAX, INT_MIN, MISSING, UINT_MAX, Made, Opaque, Uint, wrap_key
from dra_cel.libraries.containers import is_key
from dra_cel.libraries.regexes import compile_pattern
from dra_cel.syntax.lexer import Source
from dra_cel.syntax.tree import Call, Ident, ListLiteral, Literal, MapLiteral, Node, Select, nodes

CONVERSIONS: Final = frozenset(
    {"bool", "bytes", "double", "duration", "dyn", "int", "string", "timestamp", "type", "uint"}
)
PATTERNS: Final = frozenset({"matches", "find", "findAll"})


class Constants:
    """The values of the constant nodes of one checked tree."""

    def __init__(self, root: Node, source: Source) -> None:
        self.source = source
        self.values: dict[int, Any] = {}
        for node in reversed(nodes(root)):
            value = self._fold(node)
            if value is not MISSING:
                self.values[id(node)] = value

    def get(self, node: Node) -> Any:
        """The node's value, or MISSING."""
        return self.values.get(id(node), MISSING)

    def _fold(self, node: Node) -> Any:
        match node:
            case Literal():
                return node.value
            case Ident() | Select():
                self._check_type_name(node)
                return MISSING if node.constant is None else node.constant
            case ListLiteral() if not node.optional:
                values = [self.get(element) for element in node.elements]
                return MISSING if any(value is MISSING for value in values) else values
            case MapLiteral() if not any(entry.optional for entry in node.entries):
                pairs = [(self.get(entry.key), self.get(entry.value)) for entry in node.entries]
                if any(key is MISSING or value is MISSING for key, value in pairs):
                    return MISSING
                return self._map(node, pairs)
            case Call() if node.function in CONVERSIONS and node.target is None and len(node.args) == 1:
                value = self.get(node.args[0])
                return MISSING if value is MISSING else self._convert(node, value)
            case Call() if node.function in PATTERNS:
                self._check_pattern(node)
            case Call() if node.function in ("_[_]", "_[?_]"):
                key = self.get(node.args[1])
                if key is not MISSING and not is_key(key):
                    self._fail(node, f"a {type_of(key).name} cannot be an index")
            case Call() if node.function == "@in" and self.is_empty_list(node):
                return False
        return MISSING

    def _check_type_name(self, node: Ident | Select) -> None:
        """Names of types must be known at run time. The reference takes variables that hold a type for such names."""
        name = node.name if isinstance(node, Ident) else node.variable
        if name is not None and node.constant is None and node.type.kind == "type":
            self._fail(node, f"reference to undefined type: {name}")

    def is_empty_list(self, node: Call) -> bool:
        """Whether the right side of an ``in`` is known to be an empty list: nothing is in it, not even an error."""
        items = self.get(node.args[1])
        return isinstance(items, list) and not items and len(node.overloads) == 1

    def _check_pattern(self, node: Call) -> None:
        pattern = self.get(node.operands()[1])
        if isinstance(pattern, str):
            try:
                compile_pattern(pattern)
            except EvaluationError as error:
                self._fail(node, error.message)

    def _map(self, node: MapLiteral, pairs: list[tuple[Any, Any]]) -> Made:
        try:
            return Made({wrap_key(key): value for key, value in pairs})
        except EvaluationError as error:
            self._fail(node, error.message)

    def _convert(self, node: Call, value: Any) -> Any:
        overload = next((overload for overload in node.overloads if overload.accepts((value,))), None)
        if overload is None:
            self._fail(node, f"no such overload: {node.function}({type_of(value).name})")
        try:
            return overload.run(value)
        except EvaluationError as error:
            self._fail(node, error.message)

    def _fail(self, node: Node, message: str) -> NoReturn:
        self.source.fail(node.at, message, "program")


class MemberSet:
    """A constant list of plain values, for ``in``: numbers are found whatever their type."""

    __slots__ = ("keys",)

    def __init__(self, items: list[Any]) -> None:
        self.keys = {key for item in items for key in _equal_keys(item)}

    @staticmethod
    def possible(items: list[Any]) -> bool:
        return all(type(item) in (bool, int, Uint, float, str) for item in items)

    def __contains__(self, value: object) -> bool:
        if isinstance(value, bytes) or (isinstance(value, Opaque) and value.no_key):
            raise EvaluationStopped("other", f"{type_of(value).name} cannot be looked up in a list of constants")
        if type(value) not in (bool, int, Uint, float, str):
            return False
        return wrap_key(value) in self.keys


def _equal_keys(item: Any) -> list[Any]:
    """The item and the same number in the other types."""
    if type(item) not in (int, Uint, float):
        return [wrap_key(item)]
    keys = [item, float(item)] if isinstance(item, int) else [item]
    if float(item).is_integer():
        keys += [int(item)] if INT_MIN <= item <= INT_MAX else []
        keys += [Uint(int(item))] if 0 <= item <= UINT_MAX else []
    return [wrap_key(key) for key in keys]
