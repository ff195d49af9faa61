"""The text of an expression, and the nodes of its tree.

Macros (``all``, ``map``, ``cel.bind``, ...) are already expanded: they are ``Fold`` nodes. ``at`` is the offset in the
source. The checker fills in ``type`` and, for calls, ``overloads``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from dra_cel.basics.errors import CompileError, Issue
from dra_cel.basics.types import DYN, Type

if TYPE_CHECKING:
    from dra_cel.basics.declarations import Overload


class Source:
    """The text of an expression, with positions and the errors about them."""

    def __init__(self, text: str) -> None:
        self.text = text

    def issue(self, at: int, kind: str, message: str) -> Issue:
        before = self.text[:at]
        return Issue(before.count("\n") + 1, at - (before.rfind("\n") + 1) + 1, kind, message)

    def fail(self, at: int, message: str, kind: str = "syntax") -> NoReturn:
        raise CompileError((self.issue(at, kind, message),), self.text)


@dataclass(slots=True, eq=False)
class Literal:
    at: int
    value: Any
    type: Type = DYN


@dataclass(slots=True, eq=False)
class Ident:
    """``constant`` is set by the checker when the name stands for a type."""

    at: int
    name: str
    type: Type = DYN
    constant: Type | None = None


@dataclass(slots=True, eq=False)
class Select:
    """``operand.name``; with ``test`` the presence test of ``has()``.

    The checker may find that the whole is the dotted name of a type or a variable; ``constant`` is its value, if known.
    """

    at: int
    operand: Node
    name: str
    test: bool = False
    type: Type = DYN
    constant: Any = None
    variable: str | None = None


@dataclass(slots=True, eq=False)
class Call:
    """A function or operator; ``target`` is the receiver of a method. ``&&`` and ``||`` take any number of terms."""

    at: int
    function: str
    target: Node | None
    args: list[Node]
    type: Type = DYN
    overloads: tuple[Overload, ...] = ()

    def operands(self) -> list[Node]:
        """Receiver and arguments in the order in which the implementation gets them."""
        return self.args if self.target is None else [self.target, *self.args]


@dataclass(slots=True, eq=False)
class ListLiteral:
    at: int
    elements: list[Node]
    optional: frozenset[int] = frozenset()
    type: Type = DYN


@dataclass(slots=True, eq=False)
class Entry:
    at: int
    key: Node
    value: Node
    optional: bool = False


@dataclass(slots=True, eq=False)
class MapLiteral:
    at: int
    entries: list[Entry]
    type: Type = DYN


@dataclass(slots=True, eq=False)
class Field:
    at: int
    name: str
    value: Node
    optional: bool = False


@dataclass(slots=True, eq=False)
class StructLiteral:
    at: int
    name: str
    fields: list[Field] = field(default_factory=list)
    type: Type = DYN


@dataclass(slots=True, eq=False)
class Fold:
    """A comprehension: ``accu`` starts as ``init`` (evaluated when first needed), ``step`` runs for every entry of
    ``over`` while ``condition`` holds, and ``result`` is the value. ``macro`` names what the author wrote."""

    at: int
    macro: str
    over: Node
    var: str
    var2: str | None
    accu: str
    init: Node
    condition: Node
    step: Node
    result: Node
    type: Type = DYN

    @property
    def is_bind(self) -> bool:
        """A named value (``cel.bind`` and its like) and no loop."""
        return self.var == UNUSED


Node: TypeAlias = Literal | Ident | Select | Call | ListLiteral | MapLiteral | StructLiteral | Fold

ACCUMULATOR = "@result"
"""Name of a fold's accumulator; ``@`` keeps it out of reach of expressions."""
UNUSED = "#unused"
"""Iteration variable of a fold that only binds a name."""


def children(node: Node) -> list[Node]:
    """The nodes directly below, in the order of evaluation."""
    match node:
        case Select():
            return [node.operand] if node.constant is None and node.variable is None else []
        case Call():
            return node.operands()
        case ListLiteral():
            return node.elements
        case MapLiteral():
            return [child for entry in node.entries for child in (entry.key, entry.value)]
        case StructLiteral():
            return [item.value for item in node.fields]
        case Fold():
            return [node.over, node.init, node.condition, node.step, node.result]
    return []


def nodes(root: Node) -> list[Node]:
    """Every node of the tree, parents first."""
    found: list[Node] = []
    pending = [root]
    while pending:
        node = pending.pop()
        found.append(node)
        pending.extend(reversed(children(node)))
    return found


_SELECTIONS = ("_[_]", "_?._", "_[?_]")


def walk_chain(node: Node) -> tuple[Node, list[Select | Call]]:
    """``a.b[c]`` as its root ``a`` and the selections, in the order in which they are made."""
    selections: list[Select | Call] = []
    while True:
        if isinstance(node, Select) and node.constant is None and node.variable is None:
            selections.append(node)
            node = node.operand
        elif isinstance(node, Call) and node.function in _SELECTIONS:
            selections.append(node)
            node = node.args[0]
        else:
            return node, selections[::-1]
