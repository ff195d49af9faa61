"""The text at the head of the machine: its table of instructions and its example are what the machine does."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any, Final

import pytest
from dra_cel import EvaluationError, Program, admission_policies
from dra_cel.analysis.constants import Constants
from dra_cel.evaluation import instructions, machine
from dra_cel.evaluation.assembler import assemble
from dra_cel.evaluation.instructions import Label
from dra_cel.evaluation.machine import Instruction, Machine
from dra_cel.syntax.tree import Source

ENVIRONMENT: Final = replace(admission_policies(result=None), bindings=True)
VARIABLES: Final[Mapping[str, Any]] = {"object": {"a": 1, "list": [1, 2], "yes": True, "no": {}}, "params": {}}

EXPRESSIONS: Final = {
    "an operator on a selected field": "object.a + 1",
    "the same selection twice": "object.list[object.a]",
    "a variable without a value": "oldObject",
    "a field that is missing": "object.missing",
    "a selection from a failure": "object.missing.more",
    "an optional field that is there": "object.?a",
    "an optional field that is missing": "object.?missing",
    "an optional index of a wrong type": "object.list[?object]",
    "an optional field of an optional": "optional.of(object).?a",
    "a selection from an absent optional": "optional.ofNonZeroValue(object.no).a",
    "an index that fails": "object.list[object.missing]",
    "an index that fails, of an optional": "optional.of(object.list)[object.missing]",
    "an index out of bounds": "object.list[object.a + 5]",
    "presence of a field": "has(object.a)",
    "absence of a field of an optional": "has(optional.of(object).b)",
    "presence in an absent optional": "has(optional.ofNonZeroValue(object.no).b)",
    "presence in a conditional, which takes a unit back": "has((object.yes ? object : params).a)",
    "the first term decides": "object.yes || object.missing",
    "a later term decides": "object.missing || object.yes",
    "no term decides": "object.yes && object.yes",
    "a term fails": "object.yes && object.missing",
    "a condition that holds": "object.yes ? object.a : 1",
    "a condition that does not hold": "object.a == 2 ? object.a : 1",
    "a condition that fails": "object.missing ? object.a : 1",
    "the value of an optional": "object.?a.orValue(2)",
    "a value in place of an absent one": "object.?missing.orValue(2)",
    "a name for an optional value": "cel.bind(x, object.?a, x)",
    "an optional version cannot be used by name": "cel.bind(x, optional.of(semver('1.0.0')), x)",
    "a name that is used twice": "cel.bind(x, object.a, x + x)",
    "membership in constants": "object.a in [1, 2]",
    "membership of a failure in constants": "object.missing in [1, 2]",
    "a call of three operands": "'abc'.substring(object.a, 2)",
    "a call of three operands, one of which fails": "'abc'.substring(object.missing, 2)",
    "a list": "[object.a, ?object.?missing, object.a]",
    "a list whose second element fails": "[object.a, object.missing]",
    "a map": "{'x': object.a, 'y': object.a}",
    "a map whose second value fails": "{'x': object.a, 'y': object.missing}",
    "a message": "google.protobuf.Int64Value{value: object.a}",
    "a message that overflows": "google.protobuf.Int32Value{value: 3000000000 + object.a}",
    "a loop to its end": "object.list.all(x, x < 3)",
    "a loop that stops early": "object.list.exists(x, x == 1)",
    "a loop over pairs": "object.list.all(i, x, i < x)",
    "a loop over a map": "object.all(k, k != '')",
    "a loop that builds a list": "object.list.map(x, x + 1)",
    "a loop that builds a map": "object.list.transformMap(i, x, x + i)",
    "a loop over what has no entries": "object.a.all(x, x < 3)",
    "a loop over a failure": "object.missing.all(x, x < 3)",
    "a loop past a failure": "object.list.exists(x, x == 2 || object.missing)",
}


@dataclass(frozen=True)
class Exit:
    """One way out of an instruction: the values that it leaves, and the label that it jumps to."""

    leaves: str
    target: str = ""


@dataclass(frozen=True)
class Row:
    """One row of the table."""

    name: str
    operands: tuple[str, ...]
    takes: str
    exits: tuple[Exit, ...]
    charge: str


@dataclass(frozen=True)
class Execution:
    """One execution of an instruction, seen from outside."""

    at: int
    name: str
    operands: Mapping[str, Any]
    before: list[Any]
    after: list[Any]
    waiting: list[int]
    target: int | None
    charged: int
    cost: int


def rows() -> Iterator[Row]:
    """The table at the head of the machine."""
    assert machine.__doc__ is not None
    lines = machine.__doc__.splitlines()
    first, second, last = (number for number, line in enumerate(lines) if line.startswith("====") and "  " in line)
    assert second == first + 2
    for line in lines[second + 1 : last]:
        head, takes, following, jumps, charge = re.split(r"\s{2,}", line.strip())
        name, _, operands = head.rstrip(")").partition("(")
        exits = [Exit(following)] if following != "-" else []
        if jumps != "-":
            exits += [Exit(*jump.split(" -> ")) for jump in jumps.split(" or ")]
        yield Row(name, tuple(operands.split(", ")) if operands else (), takes, tuple(exits), charge)


ROWS: Final = {row.name: row for row in rows()}


def execute(expression: str, variables: Mapping[str, Any] = VARIABLES) -> list[Execution]:
    """What each instruction did that the expression made run."""
    program = Program(expression, ENVIRONMENT)
    code, slots = assemble(program._root, ENVIRONMENT, Constants(program._root, Source(expression)))
    state, at = Machine(variables, slots, 1_000), 0
    found = []
    while at < len(code):
        before, waiting, cost = [*state.stack], [*state.returns], state.cost
        target = code[at](state)
        name, operands = parts(code[at])
        after = [*state.stack]
        found.append(Execution(at, name, operands, before, after, waiting, target, state.cost - cost, state.cost))
        at = at + 1 if target is None else target
    assert (len(state.stack), state.returns) == (1, [])
    return found


def parts(instruction: Instruction) -> tuple[str, Mapping[str, Any]]:
    """Name and operands of an instruction."""
    assert isinstance(instruction, FunctionType)
    return instruction.__qualname__.partition(".")[0], inspect.getclosurevars(instruction).nonlocals


@pytest.fixture(scope="module")
def executions() -> list[Execution]:
    return [execution for expression in EXPRESSIONS.values() for execution in execute(expression)]


def height(values: str, execution: Execution) -> int:
    """The number of values that a cell of the table means."""
    operands = execution.operands
    if values == ".":
        return 0
    if ".." not in values:
        return len(values.split())
    match execution.name:
        case "give_up":
            return int(operands["position"]) + 1
        case "make_map":
            return 2 * len(operands["entries"])
        case "make_struct":
            return len(operands["node"].fields)
    return int(operands["count"])


def way_out(row: Row, execution: Execution) -> Exit:
    """The way out that was taken."""
    if execution.target is None:
        (found,) = (way for way in row.exits if not way.target)
        return found
    for way in row.exits:
        label = execution.operands.get(way.target)
        address = label.at if isinstance(label, Label) else execution.waiting[-1] if way.target == "returns" else None
        if way.target and address == execution.target and fits(way, execution):
            return way
    raise AssertionError(f"{execution.name} jumped to {execution.target}")


def fits(way: Exit, execution: Execution) -> bool:
    taken = height(ROWS[execution.name].takes, execution)
    return len(execution.after) == len(execution.before) - taken + height(way.leaves, execution)


def test_the_table_has_every_instruction_with_its_operands() -> None:
    known = {}
    for name, function in inspect.getmembers(instructions, inspect.isfunction):
        if function.__module__ == instructions.__name__ and not name.startswith("_"):
            parameters = tuple(inspect.signature(function).parameters)
            known[name] = () if parameters == ("machine",) else parameters
    assert {row.name: row.operands for row in ROWS.values()} == known


@pytest.mark.parametrize("name", ROWS)
def test_an_instruction_takes_and_leaves_what_the_table_says(name: str, executions: list[Execution]) -> None:
    row = ROWS[name]
    ways, replaced = set(), False
    for execution in executions:
        if execution.name == name:
            way = way_out(row, execution)
            rest = len(execution.before) - height(row.takes, execution)
            assert rest >= 0
            assert all(a is b for a, b in zip(execution.before[:rest], execution.after[:rest], strict=True))
            assert fits(way, execution)
            ways.add(way)
            replaced |= [*map(id, execution.before[rest:])][:1] != [*map(id, execution.after[rest:])][:1]
    assert ways == set(row.exits), "every way out is stated and was taken"
    assert replaced or {row.takes} == {way.leaves for way in ways}, "it takes no more than it replaces"


@pytest.mark.parametrize("name", ROWS)
def test_an_instruction_charges_what_the_table_says(name: str, executions: list[Execution]) -> None:
    charges = {
        (execution.charged, execution.operands.get("units"), execution.operands.get("charge"))
        for execution in executions
        if execution.name == name
    }
    charged = {charge for charge, _, _ in charges}
    match ROWS[name].charge:
        case "units":
            assert all(charge == units for charge, units, _ in charges)
        case "-units":
            assert all(charge == -units for charge, units, _ in charges if units is not None)
        case "charge":
            assert all(charge == operand for charge, _, operand in charges if charge)
            assert any(charged)
        case "rule":
            assert len(charged) > 1
        case "0 or 1":
            assert charged == {0, 1}
        case number:
            assert charged == {int(number)}


@pytest.mark.parametrize("expression", EXPRESSIONS.values(), ids=EXPRESSIONS)
def test_a_label_is_reached_with_one_height_only(expression: str) -> None:
    heights: dict[int, int] = {}
    for execution in execute(expression):
        # The code of a lazy value runs above whatever its first user has on the stack.
        if not execution.waiting:
            assert heights.setdefault(execution.at, len(execution.before)) == len(execution.before)


def rendered(value: object) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return "error" if isinstance(value, EvaluationError) else repr(value)


def test_the_worked_example_is_what_the_machine_does() -> None:
    assert machine.__doc__ is not None
    example = machine.__doc__.partition("A worked example")[2].partition("Instruction 17")[0]
    lines = re.findall(r"^ +(\d+) (\w+) +(\S.*?) {2,}(\d+)(?:  .*)?$", example, re.MULTILINE)
    executions = execute("object.size > 3 || params.any == true", {"object": {}, "params": {"any": True}})
    assert lines == [
        (str(execution.at), execution.name, " ".join(map(rendered, execution.after)), str(execution.cost))
        for execution in executions
    ]
