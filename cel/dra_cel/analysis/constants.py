"""Parts of an expression whose value is known before evaluation.

As in the reference, literals, lists and maps of constants, conversions of constants (``int("12")``) and membership in
a constant list are computed once: they cost nothing at run time, and a conversion that fails is a compile error.

Validators check literals beyond their types before evaluation. Durations, timestamps and patterns given as literals
must be valid, ``format`` must fit its literal arguments, and the entries of list and map literals must be of the very
same type (``dyn`` does not mix with others).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NoReturn

from dra_cel.basics.errors import CompileError, EvaluationError, EvaluationStopped, Issue, in_order
from dra_cel.basics.types import Type, is_optional, type_of
from dra_cel.basics.values import INT_MAX, INT_MIN, MISSING, UINT_MAX, Made, Opaque, Uint, wrap_key
from dra_cel.libraries import conversions, regexes
from dra_cel.libraries.containers import is_key
from dra_cel.libraries.regexes import compile_pattern
from dra_cel.libraries.strings import ALLOWED, clauses, not_printable
from dra_cel.syntax.tree import Call, Ident, ListLiteral, Literal, MapLiteral, Node, Select, Source, children, nodes

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


def validate(root: Node, source: Source) -> None:
    """Raises CompileError for literals that could never be evaluated, or that mix types."""
    issues: list[Issue] = []
    pending = [(root, False)]
    while pending:
        node, exempt = pending.pop()
        if isinstance(node, Call):
            issues += _literal_argument(node, source) + _format(node, source)
            exempt = exempt or node.function == "format"
        elif not exempt:
            issues += _entries(node, source)
        pending.extend((child, exempt) for child in children(node))
    if issues:
        raise CompileError(in_order(issues), source.text)


_PARSERS: Final[dict[str, Callable[[Any], object]]] = {
    "duration": conversions.to_duration,
    "timestamp": conversions.to_timestamp,
    "matches": regexes.compile_pattern,
}


def _literal_argument(node: Call, source: Source) -> list[Issue]:
    parser = _PARSERS.get(node.function)
    literal = node.args[0] if node.args else None
    if parser is None or not isinstance(literal, Literal):
        return []
    try:
        parser(literal.value)
    except EvaluationError as error:
        return [source.issue(literal.at, "validator", f"invalid {node.function} argument: {error.message}")]
    return []


def _entries(node: Node, source: Source) -> list[Issue]:
    if isinstance(node, ListLiteral):
        return _alike([(item, position in node.optional) for position, item in enumerate(node.elements)], source)
    if isinstance(node, MapLiteral):
        keys = _alike([(entry.key, False) for entry in node.entries], source)
        return keys + _alike([(entry.value, entry.optional) for entry in node.entries], source)
    return []


def _alike(items: list[tuple[Node, bool]], source: Source) -> list[Issue]:
    """At most one complaint: about an optional entry without an optional value, or an entry of another type than the
    first."""
    wanted: Type | None = None
    for node, optional in items:
        if optional and not is_optional(node.type):
            # The reference's own check panics here.
            message = f"an optional entry needs an optional value, not '{node.type.label}': write optional.of(...)"
            return [source.issue(node.at, "type-mismatch", message)]
        type_ = node.type.params[0] if optional else node.type
        if wanted is None:
            wanted = type_
        elif type_ != wanted and not (type_.kind == wanted.kind and type_.nullable | wanted.nullable):
            message = f"expected type '{wanted.label}' but found '{type_.label}'"
            return [source.issue(node.at, "type-mismatch", message)]
    return []


def _format(node: Call, source: Source) -> list[Issue]:
    """``"...".format([...])`` with literals on both sides."""
    if node.function != "format" or not isinstance(node.target, Literal) or not isinstance(node.target.value, str):
        return []
    values = node.args[0]
    if not isinstance(values, ListLiteral):
        return []
    try:
        pieces = clauses(node.target.value)
    except EvaluationError as error:
        return [source.issue(node.at, "validator", error.message)]
    letters = [letter for _, letter, _ in pieces if letter]
    for position, letter in enumerate(letters):
        if position >= len(values.elements):
            return [source.issue(node.at, "validator", f"index {position} out of range")]
        wrong = _unprintable(values.elements[position], letter)
        if wrong is not None:
            return [source.issue(wrong.at, "validator", not_printable(letter, wrong.type))]
    if len(values.elements) > len(letters):
        message = f"too many arguments for format (expected {len(letters)}, got {len(values.elements)})"
        return [source.issue(node.at, "validator", message)]
    return []


def _unprintable(root: Node, letter: str) -> Node | None:
    """The first node whose type a placeholder cannot print; ``%s`` also looks into literals."""
    pending = [root]
    while pending:
        node = pending.pop(0)
        if node.type.kind not in ALLOWED[letter] and node.type.kind != "dyn":
            return node
        if letter == "s" and isinstance(node, (ListLiteral, MapLiteral)):
            pending = children(node) + pending
    return None
