"""Parts of an expression whose value is known before evaluation.

As in the reference, literals, lists and maps of constants, conversions of constants (``int("12")``) and membership in
a constant list are computed once: they cost nothing at run time, and a conversion that fails is a compile error.
"""

from __future__ import annotations

from typing import Any, Final, NoReturn

from .errors import CompileError, EvaluationError
from .lexer import Source
from .libraries.regexes import compile_pattern
from .tree import Call, Ident, ListLiteral, Literal, MapLiteral, Node, Select, nodes
from .types import FORMAT, SEMVER, type_of
from .values import INT_MAX, INT_MIN, MISSING, UINT_MAX, Uint, wrap_key

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
                return MISSING if node.constant is None else node.constant
            case ListLiteral() if not node.optional:
                values = [self.get(element) for element in node.elements]
                return MISSING if any(value is MISSING for value in values) else values
            case MapLiteral() if not any(entry.optional for entry in node.entries):
                pairs = [(self.get(entry.key), self.get(entry.value)) for entry in node.entries]
                if any(key is MISSING or value is MISSING for key, value in pairs):
                    return MISSING
                return {wrap_key(key): value for key, value in pairs}
            case Call() if node.function in CONVERSIONS and node.target is None and len(node.args) == 1:
                value = self.get(node.args[0])
                return MISSING if value is MISSING else self._convert(node, value)
            case Call() if node.function in PATTERNS:
                self._check_pattern(node)
        return MISSING

    def _check_pattern(self, node: Call) -> None:
        operands = node.operands()
        pattern = self.get(operands[1]) if len(operands) > 1 else MISSING
        if isinstance(pattern, str):
            try:
                compile_pattern(pattern)
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

    def _fail(self, node: Call, message: str) -> NoReturn:
        raise CompileError((self.source.issue(node.at, "program", message),), self.source.text)


class MemberSet:
    """A constant list of plain values, for ``in``: numbers are found whatever their type."""

    __slots__ = ("keys",)

    def __init__(self, items: list[Any]) -> None:
        self.keys = {key for item in items for key in _equal_keys(item)}

    @staticmethod
    def possible(items: list[Any]) -> bool:
        return all(type(item) in (bool, int, Uint, float, str) for item in items)

    def __contains__(self, value: object) -> bool:
        if type_of(value) in (SEMVER, FORMAT):
            raise EvaluationError("other", f"{type_of(value).name} cannot be looked up in a list of constants")
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
