"""Checked tree to steps of the machine.

Charges (``dra_cel.charges`` has the figures) follow the reference in every step, also for computations that fail:

* a name with everything selected from it is one unit, and each selection one more; ``has()`` only pays selections,
  and the branches of ``?:`` do not pay for the name;
* a call is charged by its rule when all its operands were evaluated. Functions of one or two operands evaluate both
  even if the first one failed; others stop at the first failure and are then free of charge;
* ``&&``, ``||``, ``?:``, ``or`` and ``orValue`` are free.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from .charges import FIXED, LIST_BASE, MAP_BASE, SELECT, STRUCT_BASE, Rule
from .constants import Constants, MemberSet
from .declarations import Function
from .environment import Environment
from .errors import CostLimitExceeded, EvaluationError, no_overload
from .libraries.operators import Accumulator, MapAccumulator, index, lookup
from .machine import Machine, Step
from .messages import build_message
from .tree import Call, Entry, Fold, Ident, ListLiteral, MapLiteral, Node, Select, StructLiteral, walk_chain
from .values import MISSING, NONE, Optional, unwrap_key, wrap_key
from .walk import Walk, walk

UNSET: Final = object()
"""What a slot holds whose value has not been needed yet."""


class Label:
    """An address that is known later."""

    __slots__ = ("at",)

    def __init__(self) -> None:
        self.at = -1


class Program:
    """Steps, and the number of slots that they use."""

    __slots__ = ("slots", "steps")

    def __init__(self, steps: list[Step], slots: int) -> None:
        self.steps = steps
        self.slots = slots


def assemble(root: Node, environment: Environment, constants: Constants) -> Program:
    """The machine's program for a checked expression."""
    assembler = _Assembler(environment, constants)
    walk(assembler.node(root))
    return Program(assembler.steps, assembler.slots)


class _Assembler:
    def __init__(self, environment: Environment, constants: Constants) -> None:
        self.environment = environment
        self.constants = constants
        self.steps: list[Step] = []
        self.slots = 0
        self.scope: list[tuple[str, int, Label | None]] = []

    def emit(self, step: Step) -> None:
        self.steps.append(step)

    def place(self, label: Label) -> None:
        label.at = len(self.steps)

    def slot(self) -> int:
        self.slots += 1
        return self.slots - 1

    def node(self, node: Node, *, branch: bool = False) -> Walk[None]:
        """Steps that leave the node's value on the stack. ``branch``: it is an arm of ``?:``."""
        value = self.constants.get(node)
        if value is not MISSING:
            self.emit(_push(value))
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
        end = Label()
        charge = 0 if branch else SELECT
        if isinstance(root, Ident) and self.constants.get(root) is MISSING:
            self.load(root.name)
        else:
            yield self.node(root)
            if isinstance(root, Call) and root.function == "_?_:_":
                charge = 0
        if selections:
            self.emit(_unwrap(end))
        for selection in selections:
            optional = isinstance(selection, Call) and selection.function in ("_?._", "_[?_]")
            if isinstance(selection, Select):
                self.emit(_test(selection.name, end) if selection.test else _qualify(selection.name, end, False))
                charge = 0 if selection.test else charge
                continue
            key = selection.args[1]
            value = self.constants.get(key)
            if value is not MISSING:
                self.emit(_qualify(value, end, optional))
            else:
                yield self.node(key, branch=True)
                self.emit(_qualify_by_value(end, optional))
        if selections:
            self.place(end)
            tested = isinstance(selections[-1], Select) and selections[-1].test
            self.emit(_presence if tested else _wrap)
        if charge:
            self.emit(_charge(charge))

    def load(self, name: str) -> None:
        for known, slot, init in reversed(self.scope):
            if known == name:
                self.emit(_load_slot(slot) if init is None else _load_lazily(slot, init, len(self.steps)))
                return
        self.emit(_load_variable(name))

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
                self.emit(_not_strictly_false)
            case _:
                yield self.ordinary(node)

    def logical(self, node: Call, *, absorbing: bool) -> Walk[None]:
        end = Label()
        self.emit(_push(None))
        for arg in node.args:
            yield self.node(arg)
            self.emit(_term(absorbing, end))
        self.emit(_settle(not absorbing))
        self.place(end)

    def conditional(self, node: Call) -> Walk[None]:
        otherwise, end = Label(), Label()
        yield self.node(node.args[0])
        self.emit(_fork(otherwise, end))
        yield self.node(node.args[1], branch=True)
        self.emit(_jump(end))
        self.place(otherwise)
        yield self.node(node.args[2], branch=True)
        self.place(end)

    def or_else(self, node: Call) -> Walk[None]:
        end = Label()
        assert node.target is not None, "the caller has looked"
        yield self.node(node.target)
        self.emit(_present(end, unwrap=node.function == "orValue"))
        yield self.node(node.args[0])
        self.place(end)

    def ordinary(self, node: Call) -> Walk[None]:
        operands = node.operands()
        if node.function == "@in" and (yield self.membership(node)):
            return
        function = self.environment.functions[node.function]
        one = node.overloads[0] if len(node.overloads) == 1 else None
        eager = len(operands) <= 2 and (not function.guarded or one is not None) and not function.variadic
        failed = Label()
        for position, operand in enumerate(operands):
            yield self.node(operand)
            if not eager:
                self.emit(_give_up(position, failed))
        rule = one.rule if one is not None else function.rule or FIXED
        self.emit(_invoke(function.name, implementation(function, node), len(operands), rule))
        self.place(failed)

    def membership(self, node: Call) -> Walk[bool]:
        """``in`` with a constant list: a look-up that is free of charge."""
        items = self.constants.get(node.args[1])
        if not isinstance(items, list) or len(node.overloads) != 1 or not MemberSet.possible(items):
            return False
        if not items:
            self.emit(_push(False))
            return True
        yield self.node(node.args[0])
        self.emit(_member(MemberSet(items)))
        return True

    # --- literals -----------------------------------------------------------------------------

    def list_literal(self, node: ListLiteral) -> Walk[None]:
        failed = Label()
        for position, element in enumerate(node.elements):
            yield self.node(element)
            self.emit(_give_up(position, failed))
        self.emit(_make_list(len(node.elements), node.optional))
        self.place(failed)
        self.emit(_charge(LIST_BASE))

    def map_literal(self, node: MapLiteral) -> Walk[None]:
        failed = Label()
        parts = [part for entry in node.entries for part in (entry.key, entry.value)]
        for position, part in enumerate(parts):
            yield self.node(part)
            self.emit(_give_up(position, failed))
        self.emit(_make_map(node.entries))
        self.place(failed)
        self.emit(_charge(MAP_BASE))

    def struct_literal(self, node: StructLiteral) -> Walk[None]:
        failed = Label()
        for position, field in enumerate(node.fields):
            yield self.node(field.value)
            self.emit(_give_up(position, failed))
        self.emit(_make_struct(node))
        self.place(failed)
        self.emit(_charge(STRUCT_BASE))

    # --- loops --------------------------------------------------------------------------------

    def bind(self, node: Fold) -> Walk[None]:
        init = yield self.lazily(node)
        slot = self.slot()
        self.emit(_set(slot, UNSET))
        init.slot = slot
        self.scope.append((node.accu, slot, init))
        yield self.node(node.result)
        self.scope.pop()

    def lazily(self, node: Fold) -> Walk[Init]:
        """Steps for the initial value, set aside; they are run when the name is first used."""
        past = Label()
        init = Init()
        self.emit(_jump(past))
        self.place(init)
        yield self.node(node.init)
        self.emit(_return(init))
        self.place(past)
        return init

    def loop(self, node: Fold) -> Walk[None]:
        init = yield self.lazily(node)
        init.slot = accu = self.slot()
        init.empty = not node.is_bind
        following, result, end = Label(), Label(), Label()
        yield self.node(node.over)
        self.emit(_begin(accu, pairs=node.var2 is not None, end=end))
        first, second = self.slot(), self.slot()
        self.scope.append((node.accu, accu, init))
        self.scope += [(node.var, first, None), (node.var2 or "", second, None)]
        self.place(following)
        self.emit(_next(first, second, pairs=node.var2 is not None, result=result))
        yield self.node(node.condition)
        self.emit(_proceed(result))
        yield self.node(node.step)
        self.emit(_store(accu, following))
        del self.scope[-2:]
        self.place(result)
        self.emit(_drop)
        yield self.node(node.result)
        self.emit(_freeze)
        self.scope.pop()
        self.place(end)


class Init(Label):
    """Where the steps of a lazy value start; ``empty``: an empty list or map becomes one that loops may extend."""

    __slots__ = ("empty", "slot")

    def __init__(self) -> None:
        super().__init__()
        self.slot = -1
        self.empty = False


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


# --- steps ------------------------------------------------------------------------------------


def _failed(value: Any) -> bool:
    return isinstance(value, EvaluationError)


def _push(value: Any) -> Step:
    def step(machine: Machine) -> None:
        machine.stack.append(value)

    return step


def _charge(units: int) -> Step:
    def step(machine: Machine) -> None:
        machine.charge(units)

    return step


def _jump(label: Label) -> Step:
    return lambda machine: label.at


def _drop(machine: Machine) -> None:
    machine.stack.pop()


def _set(slot: int, value: Any) -> Step:
    def step(machine: Machine) -> None:
        machine.slots[slot] = value

    return step


def _load_slot(slot: int) -> Step:
    def step(machine: Machine) -> None:
        machine.stack.append(machine.slots[slot])

    return step


def _load_lazily(slot: int, init: Label, here: int) -> Step:
    def step(machine: Machine) -> int | None:
        value = machine.slots[slot]
        if value is UNSET:
            machine.returns.append(here)
            return init.at
        machine.stack.append(value)
        return None

    return step


def _return(init: Init) -> Step:
    def step(machine: Machine) -> int:
        value = machine.stack.pop()
        if init.empty and isinstance(value, (list, dict)) and not value:
            value = Accumulator() if isinstance(value, list) else MapAccumulator()
        machine.slots[init.slot] = value
        return machine.returns.pop()

    return step


def _load_variable(name: str) -> Step:
    def step(machine: Machine) -> None:
        value = machine.bindings.get(name, MISSING)
        if value is MISSING:
            value = EvaluationError("undeclared-reference", f"no such attribute(s): {name}")
        machine.stack.append(value)

    return step


class _Chained:
    """Marks a value in a chain that started from an optional: further selections are optional, too."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def _unwrap(end: Label) -> Step:
    def step(machine: Machine) -> int | None:
        value = machine.stack[-1]
        if isinstance(value, Optional):
            if not value.present:
                return end.at
            machine.stack[-1] = _Chained(value.value)
        return end.at if _failed(value) else None

    return step


def _wrap(machine: Machine) -> None:
    value = machine.stack[-1]
    if isinstance(value, _Chained):
        machine.stack[-1] = Optional(value.value)


def _presence(machine: Machine) -> None:
    """``has()`` of an optional that was absent is false."""
    if isinstance(machine.stack[-1], Optional):
        machine.stack[-1] = False


def _select(machine: Machine, key: Any, end: Label, optional: bool) -> int | None:
    container = machine.stack[-1]
    chained = isinstance(container, _Chained)
    try:
        if optional or chained:
            found = lookup(container.value if chained else container, key)
            machine.stack[-1] = NONE if found is MISSING else _Chained(found)
            if found is MISSING:
                return end.at
        else:
            machine.stack[-1] = index(container, key)
    except EvaluationError as error:
        machine.stack[-1] = error
    machine.charge(SELECT)
    return end.at if _failed(machine.stack[-1]) else None


def _qualify(key: Any, end: Label, optional: bool) -> Step:
    return lambda machine: _select(machine, key, end, optional)


def _qualify_by_value(end: Label, optional: bool) -> Step:
    def step(machine: Machine) -> int | None:
        key = machine.stack.pop()
        if not _failed(key):
            return _select(machine, key, end, optional)
        machine.stack[-1] = key
        machine.charge(SELECT)
        return end.at

    return step


def _test(name: str, end: Label) -> Step:
    """The presence test of ``has()``."""

    def step(machine: Machine) -> int | None:
        container = machine.stack[-1]
        chained = isinstance(container, _Chained)
        try:
            present = lookup(container.value if chained else container, name) is not MISSING
        except EvaluationError as error:
            machine.stack[-1] = error
        else:
            machine.stack[-1] = present
            if chained and not present:
                return end.at
        machine.charge(SELECT)
        return end.at

    return step


def _term(absorbing: bool, end: Label) -> Step:
    """One term of ``&&`` or ``||``: below it on the stack is the first failure so far."""

    def step(machine: Machine) -> int | None:
        value = machine.stack.pop()
        if value is absorbing:
            machine.stack[-1] = absorbing
            return end.at
        if type(value) is not bool and machine.stack[-1] is None:
            failed = _failed(value)
            machine.stack[-1] = value if failed else EvaluationError("no-such-overload", "no such overload: not a bool")
        return None

    return step


def _settle(value: bool) -> Step:
    def step(machine: Machine) -> None:
        if machine.stack[-1] is None:
            machine.stack[-1] = value

    return step


def _fork(otherwise: Label, end: Label) -> Step:
    def step(machine: Machine) -> int | None:
        value = machine.stack.pop()
        if value is True:
            return None
        if value is False:
            return otherwise.at
        failed = _failed(value)
        machine.stack.append(value if failed else EvaluationError("no-such-overload", "no such overload: not a bool"))
        return end.at

    return step


def _present(end: Label, *, unwrap: bool) -> Step:
    """``or``: a value on the left is the result, a failure too."""

    def step(machine: Machine) -> int | None:
        value = machine.stack[-1]
        if isinstance(value, Optional):
            if value.present:
                machine.stack[-1] = value.value if unwrap else value
                return end.at
            machine.stack.pop()
            return None
        return end.at

    return step


def _not_strictly_false(machine: Machine) -> None:
    value = machine.stack[-1]
    machine.stack[-1] = value if type(value) is bool else True
    machine.charge(1)


def _give_up(position: int, failed: Label) -> Step:
    """Leave nothing but the failure if the last operand failed."""

    def step(machine: Machine) -> int | None:
        value = machine.stack[-1]
        if not _failed(value):
            return None
        del machine.stack[len(machine.stack) - 1 - position :]
        machine.stack.append(value)
        return failed.at

    return step


def _invoke(name: str, function: Callable[..., Any], count: int, rule: Rule) -> Step:
    def step(machine: Machine) -> None:
        stack = machine.stack
        values = stack[len(stack) - count :]
        del stack[len(stack) - count :]
        result: Any = next((value for value in values if _failed(value)), None)
        if result is None:
            try:
                result = function(*values)
            except CostLimitExceeded:
                raise
            except EvaluationError as error:
                result = error
        stack.append(result)
        machine.charge(rule.count(values, result))
        machine.produced(result)

    return step


def _member(members: MemberSet) -> Step:
    def step(machine: Machine) -> None:
        value = machine.stack[-1]
        if not _failed(value):
            machine.stack[-1] = value in members

    return step


def _make_list(count: int, optional: frozenset[int]) -> Step:
    def step(machine: Machine) -> None:
        values = machine.stack[len(machine.stack) - count :] if count else []
        del machine.stack[len(machine.stack) - count :]
        if not optional:
            machine.stack.append(values)
            return
        kept: list[Any] = []
        for position, value in enumerate(values):
            if position not in optional:
                kept.append(value)
            elif not isinstance(value, Optional):
                machine.stack.append(_not_optional())
                return
            elif value.present:
                kept.append(value.value)
        machine.stack.append(kept)

    return step


def _not_optional() -> EvaluationError:
    return EvaluationError("other", "cannot initialize an optional entry from a value that is not optional")


def _make_map(entries: list[Entry]) -> Step:
    def step(machine: Machine) -> None:
        count = 2 * len(entries)
        values = machine.stack[len(machine.stack) - count :] if count else []
        del machine.stack[len(machine.stack) - count :]
        made: dict[Any, Any] = {}
        for entry, key, value in zip(entries, values[::2], values[1::2], strict=True):
            if not entry.optional:
                made[wrap_key(key)] = value
            elif not isinstance(value, Optional):
                machine.stack.append(_not_optional())
                return
            elif value.present:
                made[wrap_key(key)] = value.value
            else:
                made.pop(wrap_key(key), None)
        machine.stack.append(made)

    return step


def _make_struct(node: StructLiteral) -> Step:
    def step(machine: Machine) -> None:
        count = len(node.fields)
        values = machine.stack[len(machine.stack) - count :] if count else []
        del machine.stack[len(machine.stack) - count :]
        try:
            machine.stack.append(build_message(node, values))
        except EvaluationError as error:
            machine.stack.append(error)

    return step


def _begin(accu: int, *, pairs: bool, end: Label) -> Step:
    def step(machine: Machine) -> int | None:
        over = machine.stack[-1]
        machine.slots[accu] = UNSET
        if isinstance(over, dict):
            entries = [(unwrap_key(key), value) for key, value in over.items()] if pairs else map(unwrap_key, [*over])
            machine.stack[-1] = iter(entries)
        elif isinstance(over, (list, tuple)):
            machine.stack[-1] = enumerate(over) if pairs else iter(over)
        else:
            if not _failed(over):
                machine.stack[-1] = EvaluationError("not-iterable", "only lists and maps have entries to go through")
            return end.at
        return None

    return step


def _next(first: int, second: int, *, pairs: bool, result: Label) -> Step:
    def step(machine: Machine) -> int | None:
        entry = next(machine.stack[-1], MISSING)
        if entry is MISSING:
            return result.at
        if pairs:
            machine.slots[first], machine.slots[second] = entry
        else:
            machine.slots[first] = entry
        return None

    return step


def _proceed(result: Label) -> Step:
    def step(machine: Machine) -> int | None:
        value = machine.stack.pop()
        return result.at if value is False else None

    return step


def _store(slot: int, following: Label) -> Step:
    def step(machine: Machine) -> int:
        machine.slots[slot] = machine.stack.pop()
        return following.at

    return step


def _freeze(machine: Machine) -> None:
    value = machine.stack[-1]
    if isinstance(value, Accumulator):
        machine.stack[-1] = list(value)
    elif isinstance(value, MapAccumulator):
        machine.stack[-1] = dict(value)
