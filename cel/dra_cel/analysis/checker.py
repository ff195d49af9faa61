"""Types of all nodes, and which overloads calls may mean.

Checks the whole expression and reports every complaint at once. Names are resolved on the way: ``a.b.c`` may be the
name of a type, ``optional.of`` the name of a function.
"""

from __future__ import annotations

from typing import Final

from dra_cel.basics.declarations import Function
from dra_cel.basics.errors import CompileError, Issue, Walk, in_order, walk
from dra_cel.basics.types import (
    BOOL,
    DYN,
    ERROR,
    INT,
    STRING,
    Bindings,
    Type,
    fresh,
    is_optional,
    list_of,
    map_of,
    more_general,
    optional_of,
    type_of,
)
from dra_cel.environment import NULL_VALUE, Environment
from dra_cel.syntax.tree import (
    Call,
    Fold,
    Ident,
    ListLiteral,
    Literal,
    MapLiteral,
    Node,
    Select,
    Source,
    StructLiteral,
    nodes,
)

_LOGICAL: Final = ("_&&_", "_||_")


def check(root: Node, source: Source, environment: Environment) -> Type:
    """Annotate the tree; the result is the type of the whole. Raises CompileError with all complaints."""
    checker = _Checker(source, environment)
    walk(checker.check(root))
    if checker.issues:
        raise CompileError(in_order(checker.issues), source.text)
    for node in nodes(root):
        node.type = checker.bindings.resolve(node.type, default=DYN)
    return root.type


class _Checker:
    def __init__(self, source: Source, environment: Environment) -> None:
        self.source = source
        self.environment = environment
        self.bindings = Bindings()
        self.issues: list[Issue] = []
        self.scopes: list[dict[str, Type]] = [dict(environment.variables)]
        self.variables = 0

    def complain(self, at: int, kind: str, message: str) -> None:
        self.issues.append(self.source.issue(at, kind, message))

    def number(self) -> int:
        self.variables += 1
        return self.variables

    def free(self) -> Type:
        return Type("param", f"_{self.number()}")

    def check(self, node: Node) -> Walk[None]:
        match node:
            case Literal():
                node.type = type_of(node.value)
            case Ident():
                self.ident(node)
            case Select():
                yield self.select(node)
            case Call():
                yield self.call(node)
            case ListLiteral():
                yield self.list_literal(node)
            case MapLiteral():
                yield self.map_literal(node)
            case StructLiteral():
                yield self.struct_literal(node)
            case Fold():
                yield self.fold(node)

    # --- names ------------------------------------------------------------------------------

    def ident(self, node: Ident) -> None:
        if not self.resolve(node, node.name):
            node.type = ERROR
            self.undeclared(node.at, node.name)

    def undeclared(self, at: int, name: str) -> None:
        self.complain(at, "undeclared-reference", f"undeclared reference to '{name}'")

    def resolve(self, node: Ident, name: str) -> bool:
        """Whether the name is a variable or type; the node then says which."""
        name = name.removeprefix(".")  # a leading dot names the same: nothing else has a container
        for scope in reversed(self.scopes):
            if name in scope:
                node.name, node.type = name, scope[name]
                return True
        if not self.environment.knows_type(name):
            return False
        node.name = name
        node.constant, node.type = self.environment.type_names.get(name), self.environment.type_of_name(name)
        return True

    def select(self, node: Select) -> Walk[None]:
        name = (_qualified(node) or "").removeprefix(".")
        if self.environment.knows_type(name):
            node.variable, node.constant = name, self.environment.type_names.get(name)
            node.type = self.environment.type_of_name(name)
            return
        if "." in name and name in self.environment.variables:
            node.variable, node.type = name, self.environment.variables[name]
            return
        if name == NULL_VALUE:
            node.constant, node.type = 0, INT
            return
        yield self.check(node.operand)
        found = self.field(node, node.operand, node.name, optional=False)
        node.type = BOOL if node.test else self.bindings.resolve(found)

    def field(self, node: Node, operand: Node, name: str, *, optional: bool) -> Type:
        """The type of ``operand.name``."""
        type_ = self.bindings.resolve(operand.type)
        inner = type_.params[0] if is_optional(type_) else type_
        result = ERROR
        if inner.kind == "map":
            result = inner.params[1]
        elif inner.kind == "struct" and inner.name in self.environment.structs:
            known = self.environment.structs[inner.name].get(name)
            if known is None:
                self.complain(node.at, "undefined-field", f"undefined field '{name}'")
            else:
                result = known
        elif inner.kind == "param":
            self.bindings.assign((DYN,), (inner,))
            result = DYN
        else:
            if not (inner.is_dynamic or inner.kind == "error"):
                message = f"type '{inner.label}' does not support field selection"
                self.complain(node.at, "undefined-field", message)
            result = DYN
        return optional_of(result) if optional or is_optional(type_) else result

    # --- calls ------------------------------------------------------------------------------

    def call(self, node: Call) -> Walk[None]:
        if node.function == "_?._":
            yield self.check(node.args[0])
            node.args[1].type = STRING
            field = node.args[1]
            assert isinstance(field, Literal), "the parser puts the field's name there"
            node.type = self.bindings.resolve(self.field(node, node.args[0], field.value, optional=True))
            return
        for arg in node.args:
            yield self.check(arg)
        if node.target is not None:
            qualified = _qualified(node.target)
            name = f"{qualified}.{node.function}".removeprefix(".")
            if qualified is not None and name in self.environment.functions:
                node.target, node.function = None, name
            else:
                yield self.check(node.target)
        function = self.environment.functions.get(node.function.removeprefix("."))
        if function is None:
            node.type = ERROR
            self.undeclared(node.at, node.function)
            return
        node.function = function.name
        node.type = self.overload(node, function)

    def overload(self, node: Call, function: Function) -> Type:
        """The type of a call; notes the overloads that fit."""
        given = tuple(operand.type for operand in node.operands())
        if function.name in _LOGICAL:
            return self.logical(node, function)
        result: Type | None = None
        fitting = []
        for overload in function.overloads:
            if overload.method != (node.target is not None) or len(overload.params) != len(given):
                continue
            *wanted, output = fresh((*overload.params, overload.result), self.number())
            if not self.bindings.assign(given, tuple(wanted)):
                continue
            fitting.append(overload)
            output = self.bindings.resolve(output)
            if result is None:
                result = output
            elif not result.is_dynamic and output != result:
                result = DYN
        if result is None:
            types = [self.bindings.resolve(type_, default=DYN).label for type_ in given]
            applied = f"({', '.join(types)})" if node.target is None else f"{types[0]}.({', '.join(types[1:])})"
            message = f"found no matching overload for '{function.name}' applied to '{applied}'"
            self.complain(node.at, "no-matching-overload", message)
            return ERROR
        node.overloads = tuple(fitting)
        return result

    def logical(self, node: Call, function: Function) -> Type:
        fine = True
        for arg in node.args:
            fine = self.expect(arg, BOOL) and fine
        node.overloads = function.overloads
        return BOOL if fine else ERROR

    def expect(self, node: Node, wanted: Type) -> bool:
        if self.bindings.assign((node.type,), (wanted,)):
            return True
        self.mismatch(node, wanted, node.type)
        return False

    def mismatch(self, node: Node, wanted: Type, found: Type) -> None:
        wanted, found = (self.bindings.resolve(type_, default=DYN) for type_ in (wanted, found))
        self.complain(node.at, "type-mismatch", f"expected type '{wanted.label}' but found '{found.label}'")

    # --- literals and loops -----------------------------------------------------------------

    def join(self, before: Type | None, type_: Type) -> Type:
        """The common type of the entries of a literal: dyn if they are mixed, which the validators mostly refuse."""
        if before is None:
            return type_
        return more_general(before, type_) if self.bindings.assign((before,), (type_,)) else DYN

    def present(self, node: Node) -> Type:
        """The type inside an optional entry."""
        type_ = self.bindings.resolve(node.type)
        if is_optional(type_):
            return type_.params[0]
        if not type_.is_dynamic:
            self.mismatch(node, optional_of(type_), type_)
        return type_

    def list_literal(self, node: ListLiteral) -> Walk[None]:
        element: Type | None = None
        for position, item in enumerate(node.elements):
            yield self.check(item)
            type_ = self.present(item) if position in node.optional else item.type
            element = self.join(element, type_)
        node.type = list_of(self.free() if element is None else element)

    def map_literal(self, node: MapLiteral) -> Walk[None]:
        key: Type | None = None
        value: Type | None = None
        for entry in node.entries:
            yield self.check(entry.key)
            key = self.join(key, entry.key.type)
            yield self.check(entry.value)
            type_ = self.present(entry.value) if entry.optional else entry.value.type
            value = self.join(value, type_)
        node.type = map_of(self.free() if key is None else key, self.free() if value is None else value)

    def struct_literal(self, node: StructLiteral) -> Walk[None]:
        name = node.name.removeprefix(".")
        fields = self.environment.structs.get(name)
        if fields is None or not self.environment.knows_type(name):
            node.type = ERROR
            self.undeclared(node.at, node.name)
            fields = None
        else:
            node.name, node.type = name, self.environment.type_of_name(name).params[0]
        for item in node.fields:
            yield self.check(item.value)
            if fields is None:
                continue
            wanted = fields.get(item.name)
            if wanted is None:
                self.complain(item.at, "undefined-field", f"undefined field '{item.name}'")
                continue
            type_ = self.present(item.value) if item.optional else item.value.type
            if not self.bindings.assign((wanted,), (type_,)):
                self.mismatch(item.value, wanted, type_)

    def fold(self, node: Fold) -> Walk[None]:
        yield self.check(node.over)
        yield self.check(node.init)
        accumulated = node.init.type
        names = self.entries(node)
        self.scopes += [{node.accu: accumulated}, names]
        yield self.check(node.condition)
        self.expect(node.condition, BOOL)
        yield self.check(node.step)
        self.reaches(node.step, accumulated)
        self.scopes.pop()
        yield self.check(node.result)
        self.scopes.pop()
        node.type = self.bindings.resolve(node.result.type)

    def reaches(self, step: Node, accumulated: Type) -> None:
        if not self.bindings.assign((accumulated,), (step.type,)):
            self.mismatch(step, accumulated, step.type)

    def entries(self, node: Fold) -> dict[str, Type]:
        """The types of the loop variables."""
        over = self.bindings.resolve(node.over.type)
        first = second = DYN
        if over.kind == "list":
            first, second = (INT, over.params[0]) if node.var2 else (over.params[0], DYN)
        elif over.kind == "map":
            first, second = over.params
        elif over.kind in ("dyn", "error", "param"):
            self.bindings.assign((DYN,), (over,))
        else:
            message = f"expression of type '{over.label}' cannot be the range of a loop (must be list, map, or dynamic)"
            self.complain(node.over.at, "not-iterable", message)
            first = second = ERROR
        return {node.var: first} if node.var2 is None else {node.var: first, node.var2: second}


def _qualified(node: Node) -> str | None:
    """``a.b.c`` as a name, if the node is nothing but names and dots."""
    names: list[str] = []
    while isinstance(node, Select) and not node.test:
        names.append(node.name)
        node = node.operand
    if not isinstance(node, Ident):
        return None
    return ".".join([node.name, *reversed(names)])
