"""Translates a checked tree into the machine's program. ``machine`` explains its meaning and its cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from dra_cel.analysis.constants import PATTERNS, Constants, MemberSet
from dra_cel.basics.declarations import FIXED, LIST_COST, MAP_COST, SELECT_COST, STRUCT_COST, Function
from dra_cel.basics.errors import Walk, walk
from dra_cel.basics.types import may_be_optional
from dra_cel.basics.values import MISSING, no_overload
from dra_cel.environment import Environment
from dra_cel.syntax.tree import Call, Fold, Ident, ListLiteral, MapLiteral, Node, Select, StructLiteral, walk_chain

from . import instructions
from .machine import Instruction


class MachineProgram(NamedTuple):
    """Instructions, and the number of slots that they use."""

    code: list[Instruction]
    slots: int


def assemble(root: Node, environment: Environment, constants: Constants) -> MachineProgram:
    """The machine's program for a checked expression."""
    assembler = _Assembler(environment, constants)
    walk(assembler.node(root))
    return MachineProgram(assembler.code, assembler.slots)


class _Assembler:
    def __init__(self, environment: Environment, constants: Constants) -> None:
        self.environment = environment
        self.constants = constants
        self.code: list[Instruction] = []
        self.slots = 0
        self.scope: list[tuple[str, int, instructions.Label | None]] = []

    def emit(self, instruction: Instruction) -> None:
        self.code.append(instruction)

    def place(self, label: instructions.Label) -> None:
        label.at = len(self.code)

    def slot(self) -> int:
        self.slots += 1
        return self.slots - 1

    def node(self, node: Node, *, branch: bool = False) -> Walk[None]:
        """Instructions that leave the node's value on the stack. ``branch``: it is an arm of ``?:``."""
        value = self.constants.get(node)
        if value is not MISSING:
            self.emit(instructions.push(value))
            return
        match node:
            case Ident() | Select():
                yield self.chain(node, branch=branch)
            case Call():
                yield self.call(node, branch=branch)
            case ListLiteral():
                yield self.list_literal(node)
            case MapLiteral():
                yield self.map_literal(node)
            case StructLiteral():
                yield self.struct_literal(node)
            case Fold():
                yield self.bind(node) if node.is_bind else self.loop(node)

    # --- names and selections -----------------------------------------------------------------

    def chain(self, node: Node, *, branch: bool) -> Walk[None]:
        """A name, or any other expression, and what is selected from it."""
        root, selections = walk_chain(node)
        conditional = isinstance(root, Call) and root.function == "_?_:_"
        charge = 0 if branch or conditional else SELECT_COST
        name = root.name if isinstance(root, Ident) else root.variable if isinstance(root, Select) else None
        if name is not None and self.constants.get(root) is MISSING:
            self.load(name, charge=0 if selections else charge)
            charge = charge if selections else 0
            if not selections and may_be_optional(root.type):
                self.emit(instructions.repack)
        else:
            yield self.node(root)
        if selections and (yield self.selections(selections)):
            charge = 0
            if conditional and not branch:
                # The reference takes back the charge for a name, which was not made for a conditional.
                self.emit(instructions.refund(SELECT_COST))
        if charge:
            self.emit(instructions.charge(charge))

    def selections(self, selections: list[Select | Call]) -> Walk[bool]:
        """Instructions that select one after the other; the result is whether the last one is a presence test."""
        end = instructions.Label()
        self.emit(instructions.enter_chain(end))
        tested = False
        for selection in selections:
            if isinstance(selection, Select):
                tested = selection.test
                self.emit((instructions.test_presence if tested else instructions.qualify)(selection.name, end))
                continue
            tested = False
            optional = selection.function in ("_?._", "_[?_]")
            key = selection.args[1]
            value = self.constants.get(key)
            if value is not MISSING:
                self.emit(instructions.qualify(value, end, optional=optional))
            else:
                yield self.node(key, branch=True)
                self.emit(instructions.qualify_by_value(end, optional=optional))
        self.place(end)
        self.emit(instructions.settle_presence if tested else instructions.rewrap)
        return tested

    def load(self, name: str, *, charge: int) -> None:
        for known, slot, init in reversed(self.scope):
            if known == name:
                if init is None:
                    self.emit(instructions.load_slot(slot, charge))
                else:
                    self.emit(instructions.load_lazily(slot, charge, init, here=len(self.code)))
                return
        self.emit(instructions.load_variable(name, charge))

    # --- calls --------------------------------------------------------------------------------

    def call(self, node: Call, *, branch: bool) -> Walk[None]:
        match node.function:
            case "_[_]" | "_?._" | "_[?_]":
                yield self.chain(node, branch=branch)
            case "_&&_":
                yield self.logical(node, absorbing=False)
            case "_||_":
                yield self.logical(node, absorbing=True)
            case "_?_:_":
                yield self.conditional(node)
            case "or" | "orValue" if node.target is not None:
                yield self.or_else(node)
            case "@not_strictly_false":
                yield self.node(node.args[0])
                self.emit(instructions.not_strictly_false)
            case _:
                yield self.ordinary(node)

    def logical(self, node: Call, *, absorbing: bool) -> Walk[None]:
        end = instructions.Label()
        self.emit(instructions.push(None))
        for arg in node.args:
            yield self.node(arg)
            self.emit(instructions.term(absorbing, end))
        self.emit(instructions.settle(not absorbing))
        self.place(end)

    def conditional(self, node: Call) -> Walk[None]:
        otherwise, end = instructions.Label(), instructions.Label()
        yield self.node(node.args[0])
        self.emit(instructions.fork(otherwise, end))
        yield self.arm(node.args[1])
        self.emit(instructions.jump(end))
        self.place(otherwise)
        yield self.arm(node.args[2])
        self.place(end)

    def arm(self, node: Node) -> Walk[None]:
        yield self.node(node, branch=True)
        root, selections = walk_chain(node)
        if may_be_optional(node.type) and not selections and not isinstance(root, Ident):
            self.emit(instructions.repack)

    def or_else(self, node: Call) -> Walk[None]:
        end = instructions.Label()
        assert node.target is not None, "the caller has looked"
        yield self.node(node.target)
        self.emit(instructions.keep_present(end, unwrap=node.function == "orValue"))
        yield self.node(node.args[0])
        self.place(end)

    def ordinary(self, node: Call) -> Walk[None]:
        operands = node.operands()
        if node.function == "@in" and (yield self.membership(node)):
            return
        function = self.environment.functions[node.function]
        one = node.overloads[0] if len(node.overloads) == 1 else None
        eager = len(operands) <= 2 and (not function.guarded or one is not None) and not function.variadic
        if node.function in PATTERNS and isinstance(self.constants.get(operands[1]), str):
            eager = False  # the reference replaces such a call by one with a compiled pattern
        failed = instructions.Label()
        for position, operand in enumerate(operands):
            yield self.node(operand)
            if not eager and position < len(operands) - 1:
                self.emit(instructions.give_up(position, failed))
        rule = one.rule if one is not None else function.rule or FIXED
        self.emit(instructions.invoke(implementation(function, node), len(operands), rule))
        self.place(failed)

    def membership(self, node: Call) -> Walk[bool]:
        """``in`` with a constant list: a look-up that is free of charge."""
        items = self.constants.get(node.args[1])
        if not isinstance(items, list) or len(node.overloads) != 1 or not MemberSet.possible(items):
            return False
        yield self.node(node.args[0])
        self.emit(instructions.member(MemberSet(items)))
        return True

    # --- literals -----------------------------------------------------------------------------

    def list_literal(self, node: ListLiteral) -> Walk[None]:
        failed = instructions.Label()
        for position, element in enumerate(node.elements):
            yield self.node(element)
            self.emit(instructions.give_up(position, failed))
        self.emit(instructions.make_list(len(node.elements), node.optional))
        self.place(failed)
        self.emit(instructions.charge(LIST_COST))

    def map_literal(self, node: MapLiteral) -> Walk[None]:
        failed = instructions.Label()
        parts = [part for entry in node.entries for part in (entry.key, entry.value)]
        for position, part in enumerate(parts):
            yield self.node(part)
            self.emit(instructions.give_up(position, failed))
        self.emit(instructions.make_map(node.entries))
        self.place(failed)
        self.emit(instructions.charge(MAP_COST))

    def struct_literal(self, node: StructLiteral) -> Walk[None]:
        failed = instructions.Label()
        for position, field in enumerate(node.fields):
            yield self.node(field.value)
            self.emit(instructions.give_up(position, failed))
        self.emit(instructions.make_struct(node))
        self.place(failed)
        self.emit(instructions.charge(STRUCT_COST))

    # --- loops --------------------------------------------------------------------------------

    def bind(self, node: Fold) -> Walk[None]:
        init = yield self.lazily(node)
        slot = self.slot()
        self.emit(instructions.assign(slot, instructions.UNSET))
        init.slot = slot
        self.scope.append((node.accu, slot, init))
        yield self.node(node.result)
        self.scope.pop()

    def lazily(self, node: Fold) -> Walk[instructions.Init]:
        """Instructions for the initial value, set aside; they run when the name is first used."""
        past = instructions.Label()
        init = instructions.Init()
        self.emit(instructions.jump(past))
        self.place(init)
        yield self.node(node.init)
        self.emit(instructions.give_back(init))
        self.place(past)
        return init

    def loop(self, node: Fold) -> Walk[None]:
        init = yield self.lazily(node)
        init.slot = accu = self.slot()
        init.empty = not node.is_bind
        following, result, end = instructions.Label(), instructions.Label(), instructions.Label()
        yield self.node(node.over)
        self.emit(instructions.begin(accu, pairs=node.var2 is not None, end=end))
        first, second = self.slot(), self.slot()
        self.scope.append((node.accu, accu, init))
        self.scope += [(node.var, first, None), (node.var2 or "", second, None)]
        self.place(following)
        self.emit(instructions.advance(first, second, pairs=node.var2 is not None, result=result))
        yield self.node(node.condition)
        self.emit(instructions.proceed(result))
        yield self.node(node.step)
        self.emit(instructions.store(accu, following))
        del self.scope[-2:]
        self.place(result)
        self.emit(instructions.drop)
        yield self.node(node.result)
        self.emit(instructions.freeze)
        self.scope.pop()
        self.place(end)


def implementation(function: Function, node: Call) -> Callable[..., Any]:
    """What runs a call: the overload's implementation behind a check of its types, or the choice by types."""
    if not function.guarded:
        return node.overloads[0].run
    candidates = node.overloads if len(node.overloads) == 1 else function.overloads

    def dispatch(*values: Any) -> Any:
        for overload in candidates:
            if overload.accepts(values):
                return overload.run(*values)
        raise no_overload(function.name, *values)

    return dispatch
