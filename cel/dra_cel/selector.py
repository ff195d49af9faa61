"""Compiled expressions: programs for any environment, selectors for devices.

``selector_check`` serves API validation: it gives the errors of a selector, or its greatest cost (api.md section 9).
The value of a derived attribute is an attribute of a device (kubernetes-1.37.md section 10).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any, Final

from dra_api.cache import Cache
from dra_api.resource import Device, DeviceAttribute
from dra_api.validation.requests import SelectorCheck, SelectorVerdict

from dra_cel.analysis.checker import check
from dra_cel.analysis.constants import Constants, validate
from dra_cel.analysis.cost import estimate
from dra_cel.analysis.references import (
    DecidingValues,
    Reference,
    Values,
    deciding_values,
    driver_terms,
    drivers,
    references,
)
from dra_cel.basics.errors import CompileError, CostLimitExceeded, EvaluationError, begin_effort
from dra_cel.basics.types import Type, type_of
from dra_cel.basics.values import Optional, Uint
from dra_cel.device import DEVICE_SELECTORS, PreparedDevice, device_selectors
from dra_cel.environment import Environment
from dra_cel.evaluation.assembler import MachineProgram, assemble
from dra_cel.evaluation.compiler import compile_selector
from dra_cel.evaluation.machine import Machine, run, run_in_parts
from dra_cel.libraries.scalars import SemverValue
from dra_cel.syntax.parser import parse
from dra_cel.syntax.tree import Macros, Node, Source, nodes

KEPT_SELECTOR_BYTES: Final = 48 << 20
"""What remembered selectors may take in sum: 1,500 usual ones, or nine of the largest that the API server admits."""
MOST_ANSWERS: Final = 16
"""Answers that one selector remembers."""
_VALUE_BYTES: Final = 256
_PROGRAM_BYTES: Final = 4096
_NODE_BYTES: Final = 1280
_DRIVER_TERM_UNITS: Final = 1000
"""The most units that a term about the driver may cost."""


class Program:
    """A checked expression of an environment. Raises CompileError when the expression is not acceptable."""

    def __init__(self, expression: str, environment: Environment) -> None:
        self.expression = expression
        self.environment = environment
        source = Source(expression)
        begin_effort()
        self._root: Node = parse(source, Macros(bindings=environment.bindings))
        self.output_type: Type = check(self._root, source, environment)
        validate(self._root, source)
        if not environment.accepts_result(self.output_type):
            message = f"must evaluate to {environment.result_rule}, not {self.output_type}"
            source.fail(0, message, "wrong-result-type")
        self._constants = Constants(self._root, source)

    @cached_property
    def memory(self) -> int:
        """Bytes that the program takes once it has been used: 600 to 1,100 for each node of its tree, and its texts."""
        return _PROGRAM_BYTES + _NODE_BYTES * len(nodes(self._root)) + 8 * len(self.expression)

    @cached_property
    def _machine_program(self) -> MachineProgram:
        return assemble(self._root, self.environment, self._constants)

    @cached_property
    def max_cost(self) -> int:
        """What evaluation costs in the worst case, as validation estimates it; 2**64-1 stands for unbounded."""
        return estimate(self._root, self.environment).max

    def evaluate(self, bindings: Mapping[str, Any], cost_limit: int | None = None) -> Any:
        """The value for these variables. Raises EvaluationError."""
        value, _ = self.trace(bindings, cost_limit)
        if isinstance(value, EvaluationError):
            raise value
        return value

    def trace(self, bindings: Mapping[str, Any], cost_limit: int | None = None) -> tuple[Any, int]:
        """Value and cost. An EvaluationError is returned as the value, so that its cost is known as well."""
        machine = self._machine(bindings, cost_limit)
        try:
            return run(self._machine_program.code, machine), machine.cost
        except EvaluationError as error:
            return error, machine.cost
        except RecursionError:
            return CostLimitExceeded("the values are nested too deeply"), machine.cost

    def trace_in_parts(self, bindings: Mapping[str, Any]) -> Generator[None, None, Any]:
        """The value, worked out in parts; an EvaluationError is returned as well."""
        try:
            return (yield from run_in_parts(self._machine_program.code, self._machine(bindings, None)))
        except EvaluationError as error:
            return error
        except RecursionError:
            return CostLimitExceeded("the values are nested too deeply")

    def _machine(self, bindings: Mapping[str, Any], cost_limit: int | None) -> Machine:
        limit = self.environment.cost_limit if cost_limit is None else cost_limit
        return Machine(bindings, self._machine_program.slots, limit)


class Selector(Program):
    """A device selector."""

    def __init__(self, expression: str, environment: Environment) -> None:
        super().__init__(expression, environment)
        self.worst: int = min(estimate(self._root, environment, strict=True).max, environment.cost_limit + 1)
        """The most units that a device can cost; one more than the limit stands for all that is beyond it."""
        provable = self.worst <= environment.cost_limit
        self._fast = compile_selector(self._root, environment, self._constants) if provable else None
        self._answers: dict[Values, bool] = {}
        self._excluded: dict[str, bool] = {}

    @cached_property
    def _decides_by(self) -> DecidingValues | None:
        return deciding_values(self._root, self._constants)

    @property
    def answer_bytes(self) -> int:
        """What the remembered answers may take."""
        return MOST_ANSWERS * _VALUE_BYTES * self._decides_by.number if self._decides_by is not None else 0

    @cached_property
    def references(self) -> frozenset[Reference]:
        """The attributes and capacities that the expression names."""
        return references(self._root, self._constants)

    @cached_property
    def drivers(self) -> frozenset[str]:
        """The drivers that the expression names by ``==`` or ``in``."""
        return drivers(self._root, self._constants)

    @cached_property
    def _driver_terms(self) -> list[MachineProgram]:
        return [assemble(term, self.environment, self._constants) for term in driver_terms(self._root)]

    @property
    def names_driver(self) -> bool:
        """Whether the selector has a term that depends on the driver alone."""
        return bool(self._driver_terms)

    def excludes(self, driver: str) -> bool:
        """Whether a term about the driver alone rules its devices out, whatever they publish."""
        known = self._excluded.get(driver)
        if known is None:
            if len(self._excluded) >= MOST_ANSWERS:
                self._excluded.clear()
            known = self._excluded[driver] = self._rules_out(driver)
        return known

    def _rules_out(self, driver: str) -> bool:
        bindings = PreparedDevice(driver, multiple=False).bindings
        for term in self._driver_terms:
            with suppress(EvaluationError, RecursionError):
                if run(term.code, Machine(bindings, term.slots, _DRIVER_TERM_UNITS)) is False:
                    return True
        return False

    def selects(self, driver: str, device: Device, prepare: Callable[[str, Device], PreparedDevice]) -> bool:
        """Whether the device is selected, as for an earlier one that differs in nothing that the expression reads.

        ``prepare`` makes a device ready for ``matches``, and is called only if need be. Raises EvaluationError.
        """
        values = self._decides_by.of(driver, device) if self._decides_by is not None else None
        if values is None:
            return self.matches(prepare(driver, device))
        answer = self._answers.get(values)
        if answer is None:
            answer = self.matches(prepare(driver, device))
            if len(self._answers) >= MOST_ANSWERS:
                self._answers.clear()
            self._answers[values] = answer
        return answer

    def matches(self, device: PreparedDevice) -> bool:
        """Whether the device is selected. Raises EvaluationError."""
        if device.ordinary and self._fast is not None:
            value = _answer(self._fast, device)
            if value is True or value is False:
                return bool(value)
        value, _ = self.explain(device)
        if isinstance(value, EvaluationError):
            raise value
        return value

    def matches_in_parts(self, device: PreparedDevice) -> Generator[None, None, bool]:
        """The same for a selector that may take long, in parts between which other work may run."""
        if device.fault is not None:
            raise device.fault
        value = _verdict((yield from self.trace_in_parts(device.bindings)))
        if isinstance(value, EvaluationError):
            raise value
        return value

    def explain(self, device: PreparedDevice, cost_limit: int | None = None) -> tuple[bool | EvaluationError, int]:
        """The verdict, or the error, and what it cost, by the precise evaluation, which is slower."""
        if device.fault is not None:
            return device.fault, 0
        value, cost = self.trace(device.bindings, cost_limit)
        return _verdict(value), cost


def _verdict(value: Any) -> bool | EvaluationError:
    while isinstance(value, Optional) and value.present:
        value = value.value
    if type(value) is bool or isinstance(value, EvaluationError):
        return value
    return EvaluationError("not-bool", f"the result is of type {type_of(value)}, not bool")


def _answer(function: Callable[[PreparedDevice], Any], device: PreparedDevice) -> Any:
    """The answer of a compiled selector, or None. Whatever it raises, the machine decides whether it is an error."""
    try:
        return function(device)
    except CostLimitExceeded:  # earlier evaluations may have used the effort
        begin_effort()
    except Exception:
        return None
    try:
        return function(device)
    except Exception:
        return None


_Outcome = Selector | CompileError


def _weight(key: tuple[str, Environment], outcome: _Outcome) -> int:
    if isinstance(outcome, Selector):
        return outcome.memory + outcome.answer_bytes
    return 8 * len(key[0]) + 8 * len(outcome.message) + 1024 * len(outcome.issues)


_selectors: Final[Cache[tuple[str, Environment], _Outcome]] = Cache(
    KEPT_SELECTOR_BYTES, _weight, largest=KEPT_SELECTOR_BYTES // 2
)


def compile(expression: str, environment: Environment = DEVICE_SELECTORS) -> Selector:
    """The selector of an expression. It is remembered, and so is its CompileError, which is raised again."""
    key = expression, environment
    outcome = _selectors.get(key)
    if outcome is None:
        try:
            outcome = Selector(expression, environment)
        except CompileError as error:
            _selectors.put(key, CompileError(error.issues, error.expression))
            raise
        _selectors.put(key, outcome)
    if isinstance(outcome, CompileError):
        raise CompileError(outcome.issues, outcome.expression)
    return outcome


def selector_check(*, consumable_capacity: bool = True, list_attributes: bool = False) -> SelectorCheck:
    """A check that returns the compile error of a selector, or its greatest cost, under these feature gates."""

    def check(expression: str, stored: bool) -> SelectorVerdict:
        environment = device_selectors(
            new=not stored, consumable_capacity=consumable_capacity, list_attributes=list_attributes
        )
        try:
            return SelectorVerdict(max_cost=compile(expression, environment).max_cost)
        except CompileError as error:
            return SelectorVerdict(error=error.message)

    return check


class DerivedAttribute(Program):
    """A compiled expression. Raises CompileError when the expression is not acceptable."""

    def of(self, device: PreparedDevice) -> DeviceAttribute:
        """The attribute of a device. Raises EvaluationError, also for a value that no attribute can have."""
        if device.fault is not None:
            raise device.fault
        value = self.evaluate(device.bindings)
        while isinstance(value, Optional) and value.present:
            value = value.value
        if isinstance(value, (list, tuple)):
            return _listed(list(value))
        field, convert = _field(value)
        return DeviceAttribute(**{field: convert(value)})


def _listed(values: list[Any]) -> DeviceAttribute:
    fields = {_field(value)[0] for value in values} or {"string"}
    if len(fields) > 1:
        raise EvaluationError("not-an-attribute", "the result is a list of values of several types")
    found: dict[str, Any] = {_LISTS[fields.pop()]: tuple(_field(value)[1](value) for value in values)}
    return DeviceAttribute(**found)


_LISTS = {"string": "strings", "int_": "ints", "bool_": "bools", "version": "versions"}


def _field(value: Any) -> tuple[str, Callable[[Any], Any]]:
    if isinstance(value, bool):
        return "bool_", bool
    if isinstance(value, int) and not isinstance(value, Uint):
        return "int_", int
    if isinstance(value, str):
        return "string", str
    if isinstance(value, SemverValue):
        return "version", lambda version: version.version.text
    raise EvaluationError("not-an-attribute", f"the result is of type {type_of(value)}, which no attribute can have")
