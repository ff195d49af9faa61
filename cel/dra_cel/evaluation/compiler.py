"""The fast path: a selector as one Python expression over a prepared device.

CEL has no side effects, so ``device.driver == "x" && device.attributes["x"].memory > 3`` can become
``(d.driver == 'x' and greater(d.attributes['x']['memory'], 3))``. One rule makes this safe. The expression may *raise*
at any time (a missing key, an unexpected type, an error that CEL might absorb): then the machine decides. But a value
that it returns is the value that the machine would return. Python's own operators are therefore only used where they
cannot disagree: texts compare with ``==`` (opaque values raise), ``True == 1`` never reaches it.

Struct literals, maps made in loops and very deep nesting are not worth compiling. The machine evaluates them.

Compiled selectors also call functions of this file, in addition to the libraries' own. These return the value of CEL
or raise, so they may be stricter than CEL, but never different.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import ge, gt, le, lt
from typing import Any, Final, NamedTuple, NoReturn

from dra_cel.analysis.constants import Constants, MemberSet
from dra_cel.basics.declarations import Overload
from dra_cel.basics.errors import EvaluationError, Walk, walk
from dra_cel.basics.types import BOOL, BYTES, DOUBLE, INT, QUANTITY, SEMVER, STRING, Type, is_optional, may_be_optional
from dra_cel.basics.values import (
    MISSING,
    NONE,
    Made,
    Opaque,
    Optional,
    Uint,
    equal,
    repacked,
    unequal,
    unwrap_key,
    wrap_key,
)
from dra_cel.environment import Environment
from dra_cel.libraries.containers import index, lookup, within
from dra_cel.libraries.scalars import QuantityValue, SemverValue
from dra_cel.syntax.tree import Call, Fold, Ident, ListLiteral, MapLiteral, Node, Select, children, nodes

CLASSES: Final[dict[Type, type]] = {
    BOOL: bool, BYTES: bytes, DOUBLE: float, INT: int, QUANTITY: QuantityValue, SEMVER: SemverValue, STRING: str,
}  # fmt: skip
"""Types whose values are of exactly one Python class."""
_OPERATORS: Final[dict[str, Callable[[Any, Any], bool]]] = {"<": lt, "<=": le, ">": gt, ">=": ge}
_PLAIN: Final = frozenset({int, Uint, float, str})


def give_up() -> NoReturn:
    """Leave the decision to the machine."""
    raise EvaluationError("other", "not decided here")


def truth(value: Any) -> bool:
    """A value that must be a bool."""
    if value is True or value is False:
        return bool(value)
    give_up()


def entries(over: Any) -> Iterable[Any]:
    """What a loop with one variable goes through."""
    if isinstance(over, (list, tuple)):
        return over
    return [unwrap_key(key) for key in over] if isinstance(over, dict) else give_up()


def pairs(over: Any) -> Iterable[tuple[Any, Any]]:
    """What a loop with two variables goes through."""
    if isinstance(over, (list, tuple)):
        return enumerate(over)
    return [(unwrap_key(key), value) for key, value in over.items()] if isinstance(over, dict) else give_up()


def select_optional(container: Any, key: Any) -> Optional:
    """``container[?key]``, also where the container is itself optional."""
    if isinstance(container, Optional):
        if not container.present:
            return NONE
        container = repacked(container.value)
        if isinstance(container, EvaluationError):
            raise container
    found = lookup(container, key)
    return NONE if found is MISSING else Optional(found)


def repack(value: Any) -> Any:
    """The optional that a name or an arm of ``?:`` stands for, if repacking does not change it."""
    if isinstance(value, Optional) and value.present and isinstance(value.value, (Opaque, Optional, Type)):
        give_up()
    return value


def is_present(container: Any, name: str) -> bool:
    """``has(container.name)``."""
    return select_optional(container, name).present


def or_value(optional: Any, other: Any) -> Any:
    if not isinstance(optional, Optional):
        give_up()
    return optional.value if optional.present else other


def or_optional(optional: Any, other: Any) -> Any:
    if not isinstance(optional, Optional):
        give_up()
    return optional if optional.present else other


def compare_with(operator: str, constant: int, otherwise: Callable[[Any, Any], bool]) -> Callable[[Any], bool]:
    """Comparison with a constant, quick for integers."""
    quick = _OPERATORS[operator]
    return lambda value: quick(value, constant) if type(value) is int else otherwise(value, constant)


def member_of(items: frozenset[Any]) -> Callable[[Any], bool]:
    """Membership in a set of texts and numbers that Python compares as CEL does."""
    return lambda value: value in items if type(value) in _PLAIN else give_up()


def make_map(*parts: Any) -> dict[Any, Any]:
    """A map of alternating keys and values."""
    return Made({wrap_key(key): value for key, value in zip(parts[::2], parts[1::2], strict=True)})


def guard(overload: Overload) -> Callable[..., Any]:
    """The overload's implementation behind a quick check of its operands' types."""
    run = overload.run
    if overload.checks:
        return run
    classes = [CLASSES.get(type_) for type_ in overload.params]
    if len(classes) == 1 and (only := classes[0]) is not None:
        return lambda value: run(value) if type(value) is only else give_up()
    if len(classes) == 2 and None not in classes:
        first, second = classes
        return lambda a, b: run(a, b) if type(a) is first and type(b) is second else give_up()
    return lambda *values: run(*values) if overload.accepts(values) else give_up()


def choose(overloads: Sequence[Overload]) -> Callable[..., Any]:
    """The first of several overloads that takes the operands."""

    def run(*values: Any) -> Any:
        for overload in overloads:
            if overload.accepts(values):
                return overload.run(*values)
        give_up()

    return run


HEIGHT_LIMIT: Final = 60
COMPILED_CHARACTERS: Final = 40_000
_LARGEST_EXACT_VALUE: Final = 2**53


class Code(NamedTuple):
    """Python source, and what is certain about its value: a kind, or ``any``.

    Kinds: ``string``, ``bool``, ``int``, ``quantity``; and for the parts of a device ``device``, ``attribute domains``,
    ``attributes``, ``attribute`` (of any type that attributes have), ``capacity domains``, ``capacities``.
    """

    source: str
    kind: str = "any"


class Unsupported(Exception):
    """The machine has to evaluate this one."""


_PARTS: Final = {
    "driver": Code("d.driver", "string"),
    "allowMultipleAllocations": Code("d.multiple", "bool"),
    "attributes": Code("d.attributes", "attribute domains"),
    "capacity": Code("d.capacity", "capacity domains"),
}
_BELOW: Final = {
    "attribute domains": "attributes",
    "capacity domains": "capacities",
    "attributes": "attribute",
    "capacities": "quantity",
}
"""Kind of a map of a device -> kind of its entries. Keys of these maps are always texts."""
_RESULTS: Final = {BOOL: "bool", STRING: "string", QUANTITY: "quantity", INT: "int"}
_HELPERS: Final[dict[str, Any]] = {
    "equal": equal, "unequal": unequal, "within": within, "index": index, "truth": truth,
    "entries": entries, "pairs": pairs, "select_optional": select_optional,
    "is_present": is_present, "or_value": or_value, "or_optional": or_optional,
    "repack": repack, "make_map": make_map, "all": all, "any": any, "sum": sum,
}  # fmt: skip


def compile_selector(root: Node, environment: Environment, constants: Constants) -> Callable[[Any], Any] | None:
    """The function of a prepared device, or None when the machine has to evaluate the expression."""
    if _too_high(root):
        return None
    compiler = _Compiler(root, environment, constants)
    try:
        source = walk(compiler.node(root)).source
        if len(source) > COMPILED_CHARACTERS:
            return None
        code = compile(f"lambda d: {source}", "<selector>", "eval")
    except (Unsupported, SyntaxError, RecursionError, MemoryError):
        return None
    function: Callable[[Any], Any] = eval(code, compiler.names)  # the source is made here, of escaped parts only
    return function


def _too_high(root: Node) -> bool:
    level = [root]
    for _ in range(HEIGHT_LIMIT):
        level = [child for node in level for child in children(node)]
        if not level:
            return False
    return True


class _Compiler:
    def __init__(self, root: Node, environment: Environment, constants: Constants) -> None:
        self.environment = environment
        self.constants = constants
        self.names: dict[str, Any] = {"__builtins__": {}, **_HELPERS}
        self.scope: list[tuple[str, Code]] = []
        self.optionals = any(is_optional(node.type) for node in nodes(root))

    def name(self, value: Any) -> str:
        """A global name for a value."""
        name = f"k{len(self.names)}"
        self.names[name] = value
        return name

    def variable(self) -> str:
        self.names[name := f"v{len(self.names)}"] = None
        return name

    def node(self, node: Node) -> Walk[Code]:
        value = self.constants.get(node)
        if value is not MISSING:
            return self.constant(value)
        code: Code
        match node:
            case Ident():
                code = self.repacked(node, self.ident(node.name))
            case Select():
                code = yield self.select(node)
            case Call():
                code = yield self.call(node)
            case ListLiteral() if not node.optional:
                parts: list[Code] = yield self.all(node.elements)
                code = Code(f"[{', '.join(part.source for part in parts)}]")
            case MapLiteral() if not any(entry.optional for entry in node.entries):
                parts = yield self.all(children(node))
                code = Code(f"make_map({', '.join(part.source for part in parts)})")
            case Fold():
                code = yield self.fold(node)
            case _:
                raise Unsupported
        return code

    def all(self, nodes: list[Node]) -> Walk[list[Code]]:
        codes = []
        for node in nodes:
            code: Code = yield self.node(node)
            codes.append(code)
        return codes

    def constant(self, value: Any) -> Code:
        if type(value) is str:
            return Code(repr(value), "string")
        if type(value) is bool:
            return Code(repr(value), "bool")
        return Code(f"({value!r})", "int") if type(value) is int else Code(self.name(value))

    def ident(self, name: str) -> Code:
        for known, code in reversed(self.scope):
            if known == name:
                return code
        if name != "device":
            raise Unsupported
        return Code("d", "device")

    def repacked(self, node: Node, code: Code) -> Code:
        """See ``values.repacked``. Where nothing is optional there is nothing to do."""
        return Code(f"repack({code.source})") if self.optionals and may_be_optional(node.type) else code

    def condition(self, node: Node) -> Walk[str]:
        """Source of a value that is certainly a bool."""
        code: Code = yield self.node(node)
        return code.source if code.kind == "bool" else f"truth({code.source})"

    # --- selections ---------------------------------------------------------------------------

    def select(self, node: Select) -> Walk[Code]:
        base: Code = yield self.node(node.operand)
        if base.kind == "device":
            return Code("True", "bool") if node.test else _PARTS[node.name]
        if base.kind in _BELOW:
            if not node.test:
                return Code(f"{base.source}[{node.name!r}]", _BELOW[base.kind])
            return Code("True" if base.kind.endswith("domains") else f"({node.name!r} in {base.source})", "bool")
        if node.test:
            return Code(f"is_present({base.source}, {node.name!r})", "bool")
        function = "select_optional" if is_optional(node.operand.type) else "index"
        return Code(f"{function}({base.source}, {node.name!r})")

    def lookup(self, node: Call) -> Walk[Code]:
        base: Code
        key: Code
        base, key = yield self.all(node.args)
        if base.kind == "device":
            raise Unsupported
        if node.function == "_[_]" and not is_optional(node.args[0].type):
            if base.kind in _BELOW and key.kind == "string":
                return Code(f"{base.source}[{key.source}]", _BELOW[base.kind])
            return Code(f"index({base.source}, {key.source})")
        return Code(f"select_optional({base.source}, {key.source})")

    # --- calls --------------------------------------------------------------------------------

    def call(self, node: Call) -> Walk[Code]:
        code: Code
        match node.function:
            case "_[_]" | "_?._" | "_[?_]":
                code = yield self.lookup(node)
            case "_&&_" | "_||_":
                word = " and " if node.function == "_&&_" else " or "
                terms: list[str] = []
                for arg in node.args:
                    term: str = yield self.condition(arg)
                    terms.append(term)
                code = Code(f"({word.join(terms)})", "bool")
            case "!_":
                code = Code(f"(not {(yield self.condition(node.args[0]))})", "bool")
            case "_?_:_":
                test: str = yield self.condition(node.args[0])
                yes, no = yield self.all(node.args[1:])
                kind = yes.kind if yes.kind == no.kind else "any"
                code = self.repacked(node, Code(f"({yes.source} if {test} else {no.source})", kind))
            case "_==_" | "_!=_":
                code = yield self.equality(node)
            case "_<_" | "_<=_" | "_>_" | "_>=_":
                code = yield self.comparison(node)
            case "@in":
                code = yield self.membership(node)
            case "or" | "orValue" if node.target is not None:
                code = yield self.or_else(node)
            case _:
                code = yield self.ordinary(node)
        return code

    def against_zero(self, node: Call) -> Walk[Code | None]:
        """``a.compareTo(b) >= 0`` without the detour over the result, where the overload knows how."""
        left, right = node.args
        zero = self.constants.get(right)
        if type(zero) is not int or zero or not isinstance(left, Call) or len(left.overloads) != 1:
            return None
        template = left.overloads[0].against_zero
        if template is None:
            return None
        operands: list[Code] = yield self.all(left.operands())
        return Code(template.format(*(operand.source for operand in operands), node.function[1:-1]), "bool")

    def equality(self, node: Call) -> Walk[Code]:
        left: Code
        right: Code
        left, right = yield self.all(node.args)
        texts = left.kind == right.kind == "string"
        if texts or any(self.plain(arg) for arg in node.args):
            return Code(f"({left.source} {node.function[1:3]} {right.source})", "bool")
        function = "equal" if node.function == "_==_" else "unequal"
        return Code(f"{function}({left.source}, {right.source})", "bool")

    def comparison(self, node: Call) -> Walk[Code]:
        left: Code
        right: Code
        shortcut: Code | None = yield self.against_zero(node)
        if shortcut is not None:
            return shortcut
        left, right = yield self.all(node.args)
        operator = node.function[1:-1]
        if left.kind == right.kind and left.kind in ("int", "string"):
            return Code(f"({left.source} {operator} {right.source})", "bool")
        constant = self.constants.get(node.args[1])
        run = node.overloads[0].run
        if type(constant) is int:
            return Code(f"{self.name(compare_with(operator, constant, run))}({left.source})", "bool")
        return Code(f"{self.name(run)}({left.source}, {right.source})", "bool")

    def plain(self, node: Node) -> bool:
        """A constant that Python compares with anything as CEL does: text, or an integer that no bool equals."""
        value = self.constants.get(node)
        return type(value) is str or (type(value) is int and 1 < abs(value) <= _LARGEST_EXACT_VALUE)

    def membership(self, node: Call) -> Walk[Code]:
        items = self.constants.get(node.args[1])
        wanted: Code = yield self.node(node.args[0])
        if isinstance(items, list) and len(node.overloads) == 1 and MemberSet.possible(items):
            if wanted.kind in ("string", "attribute") and all(type(item) is str for item in items):
                return Code(f"({wanted.source} in {self.name(frozenset(items))})", "bool")
            exact = all(
                type(item) in (int, str) and (type(item) is str or abs(item) <= _LARGEST_EXACT_VALUE) for item in items
            )
            run = member_of(frozenset(items)) if exact else MemberSet(items).__contains__
            return Code(f"{self.name(run)}({wanted.source})", "bool")
        container: Code = yield self.node(node.args[1])
        if container.kind in _BELOW and wanted.kind == "string":
            return Code(f"({wanted.source} in {container.source})", "bool")
        return Code(f"within({wanted.source}, {container.source})", "bool")

    def or_else(self, node: Call) -> Walk[Code]:
        """``a.?b.orValue(c)``, for an attribute without the detour over an optional value."""
        target = node.target
        assert target is not None, "the caller has looked"
        other: Code = yield self.node(node.args[0])
        if node.function == "orValue" and isinstance(target, Call) and target.function in ("_?._", "_[?_]"):
            base: Code = yield self.node(target.args[0])
            key: Code = yield self.node(target.args[1])
            if base.kind in ("attributes", "capacities") and key.kind == "string":
                return Code(f"{base.source}.get({key.source}, {other.source})")
        optional: Code = yield self.node(target)
        function = "or_value" if node.function == "orValue" else "or_optional"
        return Code(f"{function}({optional.source}, {other.source})")

    def ordinary(self, node: Call) -> Walk[Code]:
        values = [self.constants.get(operand) for operand in node.operands()]
        function = self.environment.functions[node.function]
        only = node.overloads[0] if len(node.overloads) == 1 else None
        if only is not None and all(value is not MISSING for value in values):
            known = _try(only.run, values) if only.accepts(values) else MISSING
            if known is not MISSING:
                return self.constant(known)
        operands: list[Code] = yield self.all(node.operands())
        sources = [operand.source for operand in operands]
        if only is not None and only.inline is not None:
            return Code(only.inline.format(*sources), "bool")
        if not function.guarded:
            run = node.overloads[0].run
        else:
            run = guard(only) if only is not None else choose(function.overloads)
        kind = "any"
        if only is not None and (function.guarded or only.result == BOOL or function.name == "size"):
            kind = _RESULTS.get(only.result, "any")
        elif all(overload.result == BOOL for overload in node.overloads):
            kind = "bool"
        return Code(f"{self.name(run)}({', '.join(sources)})", kind)

    # --- loops --------------------------------------------------------------------------------

    def fold(self, node: Fold) -> Walk[Code]:
        code: Code
        if node.is_bind:
            init: Code = yield self.node(node.init)
            name = self.variable()
            self.scope.append((node.accu, Code(name, init.kind)))
            body: Code = yield self.node(node.result)
            code = Code(f"(lambda {name}: {body.source})({init.source})", body.kind)
            self.scope.pop()
            return code
        over: Code = yield self.node(node.over)
        names = [self.variable() for _ in range(1 if node.var2 is None else 2)]
        first = Code(names[0], "string" if over.kind in _BELOW else "any")
        self.scope.append((node.var, first))
        if node.var2 is not None:
            self.scope.append((node.var2, Code(names[1], _BELOW.get(over.kind, "any"))))
        source = f"{'entries' if node.var2 is None else 'pairs'}({over.source})"
        code = yield self.loop(node, f"for {', '.join(names)} in {source}")
        del self.scope[-len(names) :]
        return code

    def loop(self, node: Fold, clause: str) -> Walk[Code]:
        """The comprehension of a macro; the macro's expansion decides what its parts are."""
        step = node.step
        assert isinstance(step, Call), "all macros step with a call"
        if node.macro in ("all", "exists"):
            test: str = yield self.condition(step.args[1])
            return Code(f"{'all' if node.macro == 'all' else 'any'}({test} {clause})", "bool")
        only = ""
        if step.function == "_?_:_":
            only = f" if {(yield self.condition(step.args[0]))}"
            step = step.args[1]
        if node.macro in ("exists_one", "existsOne"):
            return Code(f"(sum(1 {clause}{only}) == 1)", "bool")
        if not isinstance(step, Call) or step.function != "_+_" or not isinstance(step.args[1], ListLiteral):
            raise Unsupported
        element: Code = yield self.node(step.args[1].elements[0])
        return Code(f"[{element.source} {clause}{only}]")


def _try(run: Callable[..., Any], values: list[Any]) -> Any:
    """The result for constants; MISSING when there is none, so that evaluation meets the error."""
    try:
        return run(*values)
    except Exception:
        return MISSING
