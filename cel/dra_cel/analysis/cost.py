"""The cost of an expression in the worst case, before it runs.

The estimate is the reference's, habits included: validation accepts and refuses by these figures. Sizes are tracked
along the way. A literal has its size, a variable the size of its declared shape, a sum the sizes of its parts.
Everything else is unbounded.

With ``strict`` the result is a true upper bound of the charge of an evaluation. It charges for selections from values
of unknown type, as the reference forgets to do, and a call whose rule gives no bound counts as unbounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any, Final, NamedTuple

from dra_cel.basics.declarations import (
    FREE,
    LIST_COST,
    MAP_COST,
    ONE,
    SELECT_COST,
    STRUCT_COST,
    UNKNOWN,
    Estimate,
    Operand,
    Overload,
    Range,
    exactly,
)
from dra_cel.basics.errors import Walk, walk
from dra_cel.basics.types import Type, is_scalar
from dra_cel.basics.values import UINT_MAX
from dra_cel.environment import Environment, Shape
from dra_cel.syntax.tree import (
    ACCUMULATOR,
    Call,
    Fold,
    Ident,
    ListLiteral,
    Literal,
    MapLiteral,
    Node,
    Select,
    StructLiteral,
)  # fmt: skip

Path = tuple[str, ...]
_EMPTY_YET: Final = Range(UINT_MAX, 0)


class Entries(NamedTuple):
    """Sizes of the keys and values of a container that the expression itself builds."""

    kind: str
    key: Range
    value: Range


@dataclass(slots=True)
class _Local:
    """A name bound in the expression."""

    path: Path
    size: Range | None
    entries: Entries | None


def estimate(root: Node, environment: Environment, *, strict: bool = False) -> Range:
    """Least and greatest cost of evaluating a checked expression."""
    return walk(_Estimator(environment, strict).cost(root))


class _Estimator:
    def __init__(self, environment: Environment, strict: bool) -> None:
        self.environment = environment
        self.strict = strict
        self.paths: dict[int, Path] = {}
        self.sizes: dict[int, Range] = {}
        self.entries: dict[int, Entries] = {}
        self.locals: dict[str, list[_Local]] = {}

    def cost(self, node: Node) -> Walk[Range]:
        total: Range
        match node:
            case Literal():
                return FREE
            case Ident():
                local = self.local(node.name)
                self.paths[id(node)] = (node.name,) if local is None else local.path
                return exactly(SELECT_COST)
            case Select():
                total = yield self.select(node)
            case Call():
                total = yield self.call(node)
            case ListLiteral():
                total = yield self.list_literal(node)
            case MapLiteral():
                total = yield self.map_literal(node)
            case StructLiteral():
                total = exactly(STRUCT_COST)
                for field in node.fields:
                    total = total.plus((yield self.cost(field.value)))
            case Fold():
                total = yield self.bind(node) if node.is_bind else self.loop(node)
        return total

    # --- what is known about sizes ------------------------------------------------------------

    def local(self, name: str) -> _Local | None:
        stack = self.locals.get(name)
        return stack[-1] if stack else None

    def push(self, name: str, path: Path, size: Range | None, entries: Entries | None) -> None:
        self.locals.setdefault(name, []).append(_Local(path, size, entries))

    def pop(self, *names: str | None) -> None:
        for name in names:
            if name is not None:
                self.locals[name].pop()

    def path(self, node: Node) -> Path:
        if isinstance(node, Ident) and (local := self.local(node.name)) is not None:
            return local.path
        return self.paths.get(id(node), ())

    def shape(self, path: Path) -> Shape | None:
        """The declared shape at the end of a path."""
        shape = self.environment.shapes.get(path[0]) if path else None
        for step in path[1:]:
            shape = shape.below(step) if shape is not None else None
        return shape

    def size(self, node: Node) -> Range | None:
        known = self.sizes.get(id(node)) or _own_size(node)
        if known is not None:
            return known
        shape = self.shape(self.path(node))
        if shape is not None:
            most = max(shape.size, len(shape.fields)) if self.strict else shape.size
            self.sizes[id(node)] = Range(0, most)
            return self.sizes[id(node)]
        if is_scalar(node.type):
            return ONE
        if isinstance(node, Ident) and (local := self.local(node.name)) is not None:
            return local.size
        return None

    def size_or_unknown(self, node: Node) -> Range:
        return self.size(node) or UNKNOWN

    def entries_of(self, node: Node) -> Entries | None:
        known = self.entries.get(id(node))
        if known is None and isinstance(node, Ident) and (local := self.local(node.name)) is not None:
            return local.entries
        return known

    def copy_sizes(self, node: Node, source: Node) -> None:
        if (size := self.size(source)) is not None:
            self.sizes[id(node)] = size
        if (entries := self.entries_of(source)) is not None:
            self.entries[id(node)] = entries

    # --- nodes --------------------------------------------------------------------------------

    def select(self, node: Select) -> Walk[Range]:
        if node.constant is not None or node.variable is not None:
            return exactly(SELECT_COST)
        total: Range = yield self.cost(node.operand)
        if node.test:
            return total.plus(exactly(2)) if self.strict else total
        if node.operand.type.kind in ("map", "struct", "param"):
            total = total.plus(exactly(SELECT_COST))
        if self.strict:
            total = total.plus(exactly(2))
        self.paths[id(node)] = (*self.path(node.operand), node.name)
        return total

    def list_literal(self, node: ListLiteral) -> Walk[Range]:
        total = exactly(LIST_COST)
        item = _EMPTY_YET if node.elements else FREE
        for element in node.elements:
            total = total.plus((yield self.cost(element)))
            item = item.union(self.size_or_unknown(element))
        self.entries[id(node)] = Entries("list", ONE, item)
        return total

    def map_literal(self, node: MapLiteral) -> Walk[Range]:
        total = exactly(MAP_COST)
        keys = values = _EMPTY_YET if node.entries else FREE
        for entry in node.entries:
            total = total.plus((yield self.cost(entry.key))).plus((yield self.cost(entry.value)))
            keys = keys.union(self.size_or_unknown(entry.key))
            values = values.union(self.size_or_unknown(entry.value))
        self.entries[id(node)] = Entries("map", keys, values)
        return total

    def bind(self, node: Fold) -> Walk[Range]:
        total = exactly(LIST_COST).plus((yield self.cost(node.init)))
        self.push(node.accu, self.path(node.init), self.size(node.init), self.entries_of(node.init))
        total = total.plus((yield self.cost(node.result)))
        self.pop(node.accu)
        self.copy_sizes(node, node.result)
        return total

    def loop(self, node: Fold) -> Walk[Range]:
        total: Range = yield self.cost(node.over)
        total = total.plus((yield self.cost(node.init)))
        self.push(node.accu, self.path(node.init), self.size(node.init), self.entries_of(node.init))
        self.push_variables(node)
        each: Range = yield self.cost(node.condition)
        each = each.plus((yield self.cost(node.step)))
        self.pop(node.var, node.var2)
        total = total.plus((yield self.cost(node.result)))
        self.pop(node.accu)
        count = self.size_or_unknown(node.over)
        if isinstance(node.init, Literal):
            self.copy_sizes(node, node.init)
        else:
            self.sizes[id(node)] = count
            if (entries := self.entries_of(node.step)) is not None:
                self.entries[id(node)] = entries
        return total.plus(count.times(each))

    def push_variables(self, node: Fold) -> None:
        entries = self.entries_of(node.over)
        path = self.path(node.over)
        is_list = (entries.kind if entries else node.over.type.kind) == "list"
        key = entries.key if entries else None
        value = entries.value if entries else None
        if node.var2 is None:
            self.push(node.var, (*path, "@items" if is_list else "@keys"), value if is_list else key, None)
            return
        second = (*path, "@items" if is_list else "@values")
        first = (*path, "@indices" if is_list else "@keys")
        # In the reference both paths share memory unless the range's path has 1, 2, 4, 8, ... steps: there the first
        # variable is taken to be as large as the second one.
        shared = len(path) & (len(path) - 1) != 0
        self.push(node.var, second if shared else first, key, None)
        self.push(node.var2, second, value, None)

    # --- calls --------------------------------------------------------------------------------

    def call(self, node: Call) -> Walk[Range]:
        if node.function == "dyn":
            inner: Range = yield self.cost(node.args[0])
            self.copy_sizes(node, node.args[0])
            return inner.plus(ONE)
        args: list[Range] = []
        for arg in node.args:
            arg_cost: Range = yield self.cost(arg)
            args.append(arg_cost)
        target: Range = FREE if node.target is None else (yield self.cost(node.target))
        if node.function == "_?._":
            # The reference charges nothing for it beyond the call.
            return self.optional_select(node, args)
        if node.function in ("_&&_", "_||_"):
            total = FREE
            for each in args:
                total = total.plus(each)
            return Range(args[0].min, total.max)
        own = Range(UINT_MAX, 0)
        size: Range | None = None
        for overload in node.overloads:
            cost, result = self.overload(node, overload, args)
            own = own.union(cost)
            if result is not None:
                size = result if size is None else size.union(result)
            size = self.indexed(node, overload, size) or self.size(node)
        if size is not None:
            self.sizes[id(node)] = size
        return target.plus(own)

    def optional_select(self, node: Call, args: list[Range]) -> Range:
        if not self.strict:
            return args[0].plus(ONE)
        field = node.args[1]
        assert isinstance(field, Literal), "the parser puts the field's name there"
        self.paths[id(node)] = (*self.path(node.args[0]), field.value)
        return args[0].plus(exactly(3))

    def indexed(self, node: Call, overload: Overload, size: Range | None) -> Range | None:
        """The size of ``a[b]``, and its path."""
        container = overload.params[0].kind if overload.params else ""
        if node.function != "_[_]" or container not in ("list", "map"):
            return size
        entries = self.entries_of(node.args[0])
        self.paths[id(node)] = (*self.path(node.args[0]), "@items" if container == "list" else "@values")
        return entries.value if entries is not None else None

    def overload(self, node: Call, overload: Overload, args: list[Range]) -> Estimate:
        """Cost of one reading of a call, its arguments included, and the size of the result."""
        if node.function == "_?_:_":
            return self.conditional(node, args)
        operands = [_Node(self, operand) for operand in node.operands()]
        own, size = overload.rule.estimate(operands)
        if self.strict:
            own = own if overload.rule.ceiling is None else overload.rule.ceiling(operands)
            size = size if overload.rule.result_ceiling is None else overload.rule.result_ceiling(operands)
            if node.function in ("or", "orValue", "value"):
                size = reduce(Range.union, (operand.size for operand in operands))
            # The two extra units are what selecting from an unknown type may cost; what is made also takes memory.
            own = own.plus(exactly(2)) if size is None else own.plus(exactly(2)).plus(size.scaled(0.1))
        for arg in args:
            own = own.plus(arg)
        if node.function == "_+_" and size is not None:
            left, right = (self.entries_of(arg) for arg in node.args)
            if left is not None and right is not None:
                self.entries[id(node)] = Entries(left.kind, left.key.union(right.key), left.value.union(right.value))
        return Estimate(own, size)

    def conditional(self, node: Call, args: list[Range]) -> Estimate:
        yes, no = node.args[1:]
        left, right = self.entries_of(yes), self.entries_of(no)
        if left is not None and right is not None:
            self.entries[id(node)] = Entries(left.kind, left.key.union(right.key), left.value.union(right.value))
        size = self.size_or_unknown(yes).union(self.size_or_unknown(no))
        return Estimate(args[0].plus(args[1].union(args[2])), size)


class _Node(Operand):
    """A node as an operand of a charging rule."""

    def __init__(self, estimator: _Estimator, node: Node) -> None:
        self.estimator = estimator
        self.node = node
        self.path = estimator.path(node)

    @property
    def type(self) -> Type:
        return self.node.type

    @property
    def size(self) -> Range:
        return self.estimator.size_or_unknown(self.node)

    @property
    def known_size(self) -> Range | None:
        return self.estimator.size(self.node)

    @property
    def element_size(self) -> Range:
        path = () if self.path[:1] == (ACCUMULATOR,) else self.path
        shape = self.estimator.shape((*path, "@items")) if path else None
        return UNKNOWN if shape is None else Range(0, shape.size)

    @property
    def constant(self) -> Any:
        return self.node.value if isinstance(self.node, Literal) else None


def _own_size(node: Node) -> Range | None:
    """The size that a literal shows."""
    if isinstance(node, Literal):
        return exactly(len(node.value)) if isinstance(node.value, (str, bytes)) else ONE
    if isinstance(node, ListLiteral):
        return exactly(len(node.elements))
    if isinstance(node, MapLiteral):
        return exactly(len(node.entries))
    return None
