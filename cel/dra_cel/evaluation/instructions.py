"""The instructions of the machine: each function here makes one; ``dra_cel.evaluation.machine`` has their table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from dra_cel.analysis.constants import MemberSet
from dra_cel.basics.declarations import FIXED, SELECT_COST, Rule
from dra_cel.basics.errors import EvaluationError, EvaluationStopped
from dra_cel.basics.values import MISSING, NONE, Made, Optional, repacked, unwrap_key, wrap_key
from dra_cel.environment import build_message
from dra_cel.libraries.containers import Accumulator, MapAccumulator, index, lookup
from dra_cel.syntax.tree import Entry, StructLiteral

from .machine import Instruction, Machine

UNSET: Final = object()
"""In a slot whose value has not been needed yet."""


class Label:
    """An address that is not known yet."""

    __slots__ = ("at",)

    def __init__(self) -> None:
        self.at = -1


class Init(Label):
    """Where the code of a lazy value starts; ``empty``: an empty list or map becomes one that loops may extend."""

    __slots__ = ("empty", "slot")

    def __init__(self) -> None:
        super().__init__()
        self.slot = -1
        self.empty = False


def _failed(value: Any) -> bool:
    return isinstance(value, EvaluationError)


def push(value: Any) -> Instruction:
    def execute(machine: Machine) -> None:
        machine.stack.append(value)

    return execute


def charge(units: int) -> Instruction:
    def execute(machine: Machine) -> None:
        machine.charge(units)

    return execute


def refund(units: int) -> Instruction:
    def execute(machine: Machine) -> None:
        machine.refund(units)

    return execute


def jump(label: Label) -> Instruction:
    return lambda machine: label.at


def drop(machine: Machine) -> None:
    machine.stack.pop()


def assign(slot: int, value: Any) -> Instruction:
    def execute(machine: Machine) -> None:
        machine.slots[slot] = value

    return execute


def load_slot(slot: int, charge: int) -> Instruction:
    def execute(machine: Machine) -> None:
        machine.stack.append(machine.slots[slot])
        if charge:
            machine.charge(charge)

    return execute


def load_lazily(slot: int, charge: int, init: Label, here: int) -> Instruction:
    def execute(machine: Machine) -> int | None:
        value = machine.slots[slot]
        if value is UNSET:
            machine.returns.append(here)
            return init.at
        machine.stack.append(value)
        if charge:
            machine.charge(charge)
        return None

    return execute


def give_back(init: Init) -> Instruction:
    def execute(machine: Machine) -> int:
        value = machine.stack.pop()
        if init.empty and isinstance(value, (list, dict)) and not value:
            value = Accumulator() if isinstance(value, list) else MapAccumulator()
        machine.slots[init.slot] = value
        return machine.returns.pop()

    return execute


def load_variable(name: str, charge: int) -> Instruction:
    def execute(machine: Machine) -> None:
        value = machine.bindings.get(name, MISSING)
        if value is MISSING:
            value = EvaluationError("undeclared-reference", f"no such attribute(s): {name}")
        machine.stack.append(value)
        if charge:
            machine.charge(charge)

    return execute


class _Chained:
    """Marks a value in a chain that started from an optional: further selections are optional as well."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def enter_chain(end: Label) -> Instruction:
    def execute(machine: Machine) -> int | None:
        value = machine.stack[-1]
        if isinstance(value, Optional):
            if not value.present:
                return end.at
            value = repacked(value.value)
            machine.stack[-1] = value if _failed(value) else _Chained(value)
        return end.at if _failed(value) else None

    return execute


def repack(machine: Machine) -> None:
    """An optional that a name or an arm of ``?:`` stands for is unpacked and packed again."""
    value = machine.stack[-1]
    if isinstance(value, Optional) and value.present:
        machine.stack[-1] = Optional(repacked(value.value))


def rewrap(machine: Machine) -> None:
    value = machine.stack[-1]
    if isinstance(value, _Chained):
        machine.stack[-1] = Optional(value.value)


def settle_presence(machine: Machine) -> None:
    """``has()`` of an optional that was absent is false."""
    if isinstance(machine.stack[-1], Optional):
        machine.stack[-1] = False


def _select(machine: Machine, key: Any, end: Label, optional: bool) -> int | None:
    container = machine.stack[-1]
    chained = isinstance(container, _Chained)
    optional = optional or chained
    try:
        if optional:
            found = lookup(container.value if chained else container, key)
            machine.stack[-1] = NONE if found is MISSING else _Chained(found)
            if found is MISSING:
                return end.at
        else:
            machine.stack[-1] = index(container, key)
    except EvaluationError as error:
        machine.stack[-1] = error
        if not optional:
            machine.charge(SELECT_COST)
        return end.at
    machine.charge(SELECT_COST)
    return None


def qualify(key: Any, end: Label, *, optional: bool = False) -> Instruction:
    return lambda machine: _select(machine, key, end, optional)


def qualify_by_value(end: Label, *, optional: bool) -> Instruction:
    def execute(machine: Machine) -> int | None:
        key = machine.stack.pop()
        if not _failed(key):
            return _select(machine, key, end, optional)
        free = optional or isinstance(machine.stack[-1], _Chained)
        machine.stack[-1] = key
        if not free:
            machine.charge(SELECT_COST)
        return end.at

    return execute


def test_presence(name: str, end: Label) -> Instruction:
    """The presence test of ``has()``."""

    def execute(machine: Machine) -> int | None:
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
        machine.charge(SELECT_COST)
        return end.at

    return execute


def term(absorbing: bool, end: Label) -> Instruction:
    """One term of ``&&`` or ``||``: below it on the stack is the first failure so far."""

    def execute(machine: Machine) -> int | None:
        value = machine.stack.pop()
        if value is absorbing:
            machine.stack[-1] = absorbing
            return end.at
        if type(value) is not bool and machine.stack[-1] is None:
            failed = _failed(value)
            machine.stack[-1] = value if failed else EvaluationError("no-such-overload", "no such overload: not a bool")
        return None

    return execute


def settle(value: bool) -> Instruction:
    def execute(machine: Machine) -> None:
        if machine.stack[-1] is None:
            machine.stack[-1] = value

    return execute


def fork(otherwise: Label, end: Label) -> Instruction:
    def execute(machine: Machine) -> int | None:
        value = machine.stack.pop()
        if value is True:
            return None
        if value is False:
            return otherwise.at
        failed = _failed(value)
        machine.stack.append(value if failed else EvaluationError("no-such-overload", "no such overload: not a bool"))
        return end.at

    return execute


def keep_present(end: Label, *, unwrap: bool) -> Instruction:
    """``or``: a value on the left is the result, a failure too."""

    def execute(machine: Machine) -> int | None:
        value = machine.stack[-1]
        if isinstance(value, Optional):
            if value.present:
                machine.stack[-1] = value.value if unwrap else value
                return end.at
            machine.stack.pop()
            return None
        return end.at

    return execute


def not_strictly_false(machine: Machine) -> None:
    value = machine.stack[-1]
    machine.stack[-1] = value if type(value) is bool else True
    machine.charge(1)


def give_up(position: int, failed: Label) -> Instruction:
    """Leave nothing but the failure if the last operand failed."""

    def execute(machine: Machine) -> int | None:
        value = machine.stack[-1]
        if not _failed(value):
            return None
        del machine.stack[len(machine.stack) - 1 - position :]
        machine.stack.append(value)
        return failed.at

    return execute


def invoke(function: Callable[..., Any], count: int, rule: Rule) -> Instruction:
    """Call with the topmost values; a failed one is the result."""
    charge = None if rule is FIXED else rule.count

    def execute(machine: Machine) -> None:
        stack = machine.stack
        values = stack[len(stack) - count :] if count else []
        for result in values:
            if isinstance(result, EvaluationError):
                break
        else:
            try:
                result = function(*values)
            except EvaluationStopped:
                raise
            except EvaluationError as error:
                result = error
        if count == 1:
            stack[-1] = result
        else:
            del stack[len(stack) - count :]
            stack.append(result)
        machine.charge(1 if charge is None else charge(values, result))
        if result.__class__ in _SIZED:
            machine.produced(len(result))

    return execute


_SIZED: Final = frozenset({str, bytes, list})


def member(members: MemberSet) -> Instruction:
    def execute(machine: Machine) -> None:
        value = machine.stack[-1]
        if not _failed(value):
            machine.stack[-1] = value in members

    return execute


def make_list(count: int, optional: frozenset[int]) -> Instruction:
    def execute(machine: Machine) -> None:
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

    return execute


def _not_optional() -> EvaluationError:
    return EvaluationError("other", "cannot initialize an optional entry from a value that is not optional")


def make_map(entries: list[Entry]) -> Instruction:
    def execute(machine: Machine) -> None:
        count = 2 * len(entries)
        values = machine.stack[len(machine.stack) - count :] if count else []
        del machine.stack[len(machine.stack) - count :]
        made = Made()
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

    return execute


def make_struct(node: StructLiteral) -> Instruction:
    def execute(machine: Machine) -> None:
        count = len(node.fields)
        values = machine.stack[len(machine.stack) - count :] if count else []
        del machine.stack[len(machine.stack) - count :]
        try:
            machine.stack.append(build_message(node, values))
        except EvaluationError as error:
            machine.stack.append(error)

    return execute


def begin(accu: int, *, pairs: bool, end: Label) -> Instruction:
    def execute(machine: Machine) -> int | None:
        over = machine.stack[-1]
        machine.slots[accu] = UNSET
        if isinstance(over, dict):
            entries = [(unwrap_key(key), value) for key, value in over.items()] if pairs else map(unwrap_key, [*over])
            machine.stack[-1] = iter(entries)
        elif isinstance(over, (list, tuple)):
            machine.stack[-1] = enumerate(over) if pairs else iter(over)
        else:
            if not _failed(over):
                machine.stack[-1] = EvaluationError(
                    "not-iterable", "cannot iterate over a value that is neither a list nor a map"
                )
            return end.at
        return None

    return execute


def advance(first: int, second: int, *, pairs: bool, result: Label) -> Instruction:
    def execute(machine: Machine) -> int | None:
        entry: Any = next(machine.stack[-1], MISSING)
        if entry is MISSING:
            return result.at
        if pairs:
            machine.slots[first], machine.slots[second] = entry
        else:
            machine.slots[first] = entry
        return None

    return execute


def proceed(result: Label) -> Instruction:
    def execute(machine: Machine) -> int | None:
        value = machine.stack.pop()
        return result.at if value is False else None

    return execute


def store(slot: int, following: Label) -> Instruction:
    def execute(machine: Machine) -> int:
        machine.slots[slot] = machine.stack.pop()
        return following.at

    return execute


def freeze(machine: Machine) -> None:
    value = machine.stack[-1]
    if isinstance(value, Accumulator):
        machine.stack[-1] = list(value)
    elif isinstance(value, MapAccumulator):
        machine.stack[-1] = Made(value)
