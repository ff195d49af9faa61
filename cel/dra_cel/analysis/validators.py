"""Checks of a typed tree beyond its types: literals that can be judged before evaluation.

Durations, timestamps and patterns given as literals must be valid, ``format`` must fit its literal arguments, and the
entries of list and map literals must be of the very same type (``dyn`` does not mix with others).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from dra_cel.basics.errors import CompileError, EvaluationError, Issue, in_order
from dra_cel.basics.types import Type, is_optional
from dra_cel.libraries import conversions, regexes
from dra_cel.libraries.formatting import ALLOWED, clauses, not_printable
from dra_cel.syntax.lexer import Source
from dra_cel.syntax.tree import Call, ListLiteral, Literal, MapLiteral, Node, children


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
