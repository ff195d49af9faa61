"""The text of an expression, the nodes of its tree, and the macros that become such nodes while parsing.

Macros (``all``, ``map``, ``cel.bind``, ...) are calls that become loops, bindings or presence tests: ``Fold`` nodes. A
macro is chosen by name, number of arguments and whether it has a receiver. An expander returns the new node, or None if
the call is an ordinary one after all (``x.bind(...)`` where x is not ``cel``).

``at`` is the offset in the source. The checker fills in ``type`` and, for calls, ``overloads``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

from dra_cel.basics.errors import CompileError, Issue, Walk, walk
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


COPIED_NODES: Final = 20_000
"""Nodes that macros may copy in one expression: chains of ``optMap`` double with every link."""

Expander = Callable[["Expansion"], "Node | None"]


class Expansion:
    """One macro call, and what expanders need to build its replacement."""

    def __init__(self, macros: Macros, source: Source, at: int, name: str, target: Node | None, args: list[Node]):
        self.macros = macros
        self.source = source
        self.at = at
        self.name = name
        self.target = target
        self.args = args

    @property
    def over(self) -> Node:
        assert self.target is not None, "only receiver macros ask for their receiver"
        return self.target

    def variable(self, index: int) -> str:
        """The argument as the name of a loop variable. Fails when it is none."""
        arg = self.args[index]
        if not isinstance(arg, Ident):
            self.source.fail(arg.at, "the argument must be a simple name", "macro")
        if arg.name in (ACCUMULATOR, "__result__"):
            self.source.fail(arg.at, "the iteration variable overwrites the accumulator variable", "macro")
        return arg.name

    def variables(self) -> tuple[str, str]:
        first, second = self.variable(0), self.variable(1)
        if first == second:
            self.source.fail(self.args[1].at, f"duplicate variable name: {first}", "macro")
        return first, second

    def accu(self) -> Node:
        return Ident(self.at, ACCUMULATOR)

    def call(self, function: str, *args: Node) -> Node:
        return Call(self.at, function, None, list(args))

    def constant(self, value: bool | int) -> Node:
        return Literal(self.at, value)

    def fold(self, names: tuple[str, str | None], init: Node, condition: Node, step: Node, result: Node) -> Node:
        return Fold(self.at, self.name, self.over, *names, ACCUMULATOR, init, condition, step, result)

    def bind(self, name: str, value: Node, body: Node) -> Node:
        """``body`` in which ``name`` stands for a value that is computed when first needed."""
        empty: Node = ListLiteral(self.at, [])
        return Fold(
            self.at, self.name, empty, UNUSED, None, name, value, self.constant(False), Ident(self.at, name), body
        )

    def copy(self, node: Node) -> Node:
        """A second tree like this one, because the checker annotates nodes."""
        return walk(self._copy(node))

    def _copy(self, node: Node) -> Walk[Node]:
        self.macros.copied += 1
        if self.macros.copied > COPIED_NODES:
            self.source.fail(self.at, "the expression becomes too large when its macros are expanded", "macro")
        match node:
            case Select(at, operand, name, test):
                return Select(at, (yield self._copy(operand)), name, test)
            case Call(at, function, target, args):
                receiver = None if target is None else (yield self._copy(target))
                return Call(at, function, receiver, (yield self._copies(args)))
            case ListLiteral(at, elements, optional):
                return ListLiteral(at, (yield self._copies(elements)), optional)
            case MapLiteral(at, entries):
                keys = yield self._copies([entry.key for entry in entries])
                values = yield self._copies([entry.value for entry in entries])
                triples = zip(entries, keys, values, strict=True)
                return MapLiteral(at, [Entry(old.at, key, value, old.optional) for old, key, value in triples])
            case StructLiteral(at, name, fields):
                values = yield self._copies([field.value for field in fields])
                pairs = zip(fields, values, strict=True)
                return StructLiteral(at, name, [Field(old.at, old.name, value, old.optional) for old, value in pairs])
            case Fold(at, macro, over, var, var2, accu, init, condition, step, result):
                parts = yield self._copies([over, init, condition, step, result])
                return Fold(at, macro, parts[0], var, var2, accu, *parts[1:])
            case Literal(at, value):
                return Literal(at, value)
            case Ident(at, name):
                return Ident(at, name)

    def _copies(self, nodes: list[Node]) -> Walk[list[Node]]:
        copied: list[Node] = []
        for node in nodes:
            copy: Node = yield self._copy(node)
            copied.append(copy)
        return copied


def _has(call: Expansion) -> Node:
    arg = call.args[0]
    if not isinstance(arg, Select) or arg.test:
        call.source.fail(arg.at, "invalid argument to has(): write has(a.b)", "macro")
    return Select(call.at, arg.operand, arg.name, test=True)


def _quantifier(call: Expansion, names: tuple[str, str | None]) -> Node:
    predicate = call.args[-1]
    if call.name == "all":
        condition = call.call("@not_strictly_false", call.accu())
        step = call.call("_&&_", call.accu(), predicate)
        return call.fold(names, call.constant(True), condition, step, call.accu())
    if call.name == "exists":
        condition = call.call("@not_strictly_false", call.call("!_", call.accu()))
        step = call.call("_||_", call.accu(), predicate)
        return call.fold(names, call.constant(False), condition, step, call.accu())
    one_more = call.call("_+_", call.accu(), call.constant(1))
    step = call.call("_?_:_", predicate, one_more, call.accu())
    result = call.call("_==_", call.accu(), call.constant(1))
    return call.fold(names, call.constant(0), call.constant(True), step, result)


def _gather(call: Expansion, names: tuple[str, str | None], empty: Node, step: Node, only: Node | None) -> Node:
    """A fold that adds to a list or map, for the entries that pass the filter."""
    if only is not None:
        step = call.call("_?_:_", only, step, call.accu())
    return call.fold(names, empty, call.constant(True), step, call.accu())


def _append(call: Expansion, element: Node) -> Node:
    return call.call("_+_", call.accu(), ListLiteral(call.at, [element]))


def _map(call: Expansion) -> Node:
    names = call.variable(0), None
    only = call.args[1] if len(call.args) == 3 else None
    return _gather(call, names, ListLiteral(call.at, []), _append(call, call.args[-1]), only)


def _filter(call: Expansion) -> Node:
    name = call.variable(0)
    step = _append(call, Ident(call.args[0].at, name))
    return _gather(call, (name, None), ListLiteral(call.at, []), step, call.args[1])


def _transform(call: Expansion) -> Node:
    names = call.variables()
    only = call.args[2] if len(call.args) == 4 else None
    body = call.args[-1]
    if call.name == "transformList":
        return _gather(call, names, ListLiteral(call.at, []), _append(call, body), only)
    inserted = (body,) if call.name == "transformMapEntry" else (Ident(call.args[0].at, names[0]), body)
    return _gather(call, names, MapLiteral(call.at, []), call.call("cel.@mapInsert", call.accu(), *inserted), only)


def _optional_map(call: Expansion) -> Node:
    arg = call.args[0]
    if not isinstance(arg, Ident):
        call.source.fail(arg.at, f"{call.name}() needs a simple name as its variable", "macro")
    value: Node = Call(call.at, "value", call.copy(call.over), [])
    body = call.bind(arg.name, value, call.args[1])
    if call.name == "optMap":
        body = call.call("optional.of", body)
    present: Node = Call(call.at, "hasValue", call.target, [])
    return call.call("_?_:_", present, body, call.call("optional.none"))


def _bind(call: Expansion) -> Node | None:
    if not (isinstance(call.target, Ident) and call.target.name == "cel"):
        return None
    arg = call.args[0]
    if not isinstance(arg, Ident):
        call.source.fail(arg.at, "cel.bind() variable names must be simple identifiers", "macro")
    return call.bind(arg.name, call.args[1], call.args[2])


def _sort_by(call: Expansion) -> Node:
    over = call.over
    if not isinstance(over, (ListLiteral, Select, Ident, Fold, Call)):
        call.source.fail(over.at, "sortBy can only be applied to a list", "macro")
    name = "@sorted"
    mapping = Expansion(call.macros, call.source, call.at, "map", Ident(call.at, name), call.args)
    keys = _map(mapping)
    return call.bind(name, over, Call(call.at, "@sortByAssociatedKeys", Ident(call.at, name), [keys]))


_GLOBAL: Final[Mapping[tuple[str, int], Expander]] = {("has", 1): _has}
_QUANTIFIERS: Final = ("all", "exists", "exists_one")
_RECEIVER: Final[Mapping[tuple[str, int], Expander]] = {
    **{(name, 2): lambda call: _quantifier(call, (call.variable(0), None)) for name in _QUANTIFIERS},
    **{(name, 3): lambda call: _quantifier(call, call.variables()) for name in (*_QUANTIFIERS, "existsOne")},
    ("map", 2): _map,
    ("map", 3): _map,
    ("filter", 2): _filter,
    **{(f"transform{what}", n): _transform for what in ("List", "Map", "MapEntry") for n in (3, 4)},
    ("optMap", 2): _optional_map,
    ("optFlatMap", 2): _optional_map,
    ("bind", 3): _bind,
    ("sortBy", 2): _sort_by,
}


class Macros:
    """The macros while one expression is parsed; ``copied`` counts towards COPIED_NODES."""

    def __init__(self, *, bindings: bool = True) -> None:
        self.bindings = bindings
        self.copied = 0

    def expand(self, source: Source, at: int, name: str, target: Node | None, args: list[Node]) -> Node:
        """The node for a call: its expansion, or the call itself."""
        table = _GLOBAL if target is None else _RECEIVER
        expander = table.get((name, len(args))) if self.bindings or name != "bind" else None
        node = expander(Expansion(self, source, at, name, target, args)) if expander else None
        return node if node is not None else Call(at, name, target, args)
