"""Constraints of a claim over attributes (allocator.md section 8, AL-13; kubernetes-1.37.md section 10).

A constraint is a ledger whose ``admit`` is an intersection of sets from the column of its attribute, not a
trial. An attribute whose value is of no known type can stand alone, but no second device can join it.

Requests may also compute an attribute for each device. Then each request has a column of its own: the computed values,
or the published ones (K37-DA-08). A device for which the attribute cannot be computed is admitted, and taking it ends
the attempt: nothing is said of devices that the search does not reach (K37-DA-07).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial

from dra_ledger.basics import DeviceId
from dra_ledger.columns import UNKNOWN, Column, DerivedColumn, Values
from dra_ledger.errors import DerivedAttributeError
from dra_ledger.predicates import CompileFailure

from dra_operator.allocator.claim_program import Comparison
from dra_operator.allocator.problem.ledgers import Ledger, Request
from dra_operator.allocator.problem.node_state import Domain, NodeState


class Constraint(Ledger):
    """Looks at nothing but the values of one attribute, and at no request in particular."""

    ends_attempt = True
    lasting = True

    column: Column

    def tells_apart(self, devices: int, requests: Sequence[Request]) -> Iterable[int]:
        return self.column.having.values()

    def alike_now(self, device: int, others: int) -> int:
        return others

    def treats(self, request: Request) -> Hashable:
        return None


class Match(Constraint):
    """``matchAttribute``: all devices have a value in common."""

    def __init__(self, column: Column) -> None:
        self.column = self.agrees_on = column
        self._common: list[Values] = []

    def __str__(self) -> str:
        return f"equal {self.column.attribute}"

    def admit(self, devices: int, request: Request) -> int:
        if not self._common:
            return devices & self.column.present
        common = self._common[-1]
        # A value of unknown type equals nothing for certain, so no second device can join it.
        return 0 if common is UNKNOWN else devices & self.column.with_any(common)

    def take(self, device: int, request: Request) -> None:
        # A stack, so that giving back restores the common values; the reference leaves them narrowed (K37-BUG-08).
        values = self.column.values[device]
        self._common.append(self._common[-1] & values if self._common else values)

    def give_back(self, device: int, request: Request) -> None:
        self._common.pop()

    def state(self) -> Hashable:
        return self._common[-1] if self._common else None


class Distinct(Constraint):
    """``distinctAttribute``: no two devices have a value in common."""

    def __init__(self, column: Column) -> None:
        self.column = self.differs_in = column
        # The values of all devices: the reference compares with the latest device only (K37-BUG-06).
        self._used: list[Values] = []

    def __str__(self) -> str:
        return f"distinct {self.column.attribute}"

    def admit(self, devices: int, request: Request) -> int:
        devices &= self.column.present
        for values in self._used:
            if values is UNKNOWN:
                return 0
            # A value of no known type equals anything: its device can only stand alone.
            devices &= ~self.column.with_any(values | UNKNOWN)
        return devices

    def take(self, device: int, request: Request) -> None:
        self._used.append(self.column.values[device])

    def give_back(self, device: int, request: Request) -> None:
        self._used.pop()

    def state(self) -> Hashable:
        return frozenset(value for values in self._used for value in values)


def constraint_maker(node: NodeState, comparison: Comparison) -> Callable[[], Ledger]:
    """Return a maker of the constraint's ledger: by published values, or by values that requests compute."""
    if comparison.is_derived:
        kind = DerivedDistinct if comparison.distinct else DerivedMatch
        return partial(kind, comparison.attribute, partial(_column_of, node, comparison), node.view.id)
    return partial(Distinct if comparison.distinct else Match, node.column(comparison))


def _column_of(node: NodeState, comparison: Comparison, request: Request) -> Column:
    """The attribute of a constraint, as the request computes it if it does. Raises NotEvaluated."""
    expression = request.alternative.derived.get(comparison.attribute)
    if expression is None:
        return node.column(comparison)
    lists = node.features.list_attributes
    return node.view.derived_column(comparison.attribute, expression, node.compiled, lists=lists)


def check_derived(node: NodeState, reached: Iterable[tuple[Domain, ...]]) -> None:
    """Raise an AllocationError if the derived attributes cost too much on the devices that the search can reach."""
    node.compiled.check_derived(
        (it.usable.bit_count(), it.alternative.derived.values()) for domains in reached for it in domains
    )


CHECKS: tuple[Callable[[NodeState, Iterable[tuple[Domain, ...]]], None], ...] = (check_derived,)
"""What must hold before a search in which requests compute something (``ClaimProgram.may_fail_anywhere``)."""


class DerivedConstraint(Ledger):
    """``column_of`` gives the column of a request."""

    ends_attempt = True
    lasting = True

    def __init__(
        self, attribute: str, column_of: Callable[[Request], Column], device_id: Callable[[int], DeviceId]
    ) -> None:
        self._compared = attribute
        self._make_column = column_of
        self._columns: dict[int, Column] = {}
        """By request: what the search has found, however much else the node remembers meanwhile."""
        self._device_id = device_id
        self._taken: list[Values] = []

    def admit(self, devices: int, request: Request) -> int:
        column = self._column_of(request)
        failed = 0
        if isinstance(column, DerivedColumn):
            column.cover(devices)
            failed = devices & column.failed
        # Those on which it failed are admitted: the search meets the error if it takes one, and not before (K37-DA-07).
        return self._admitted(devices & column.present, column) | failed

    def _column_of(self, request: Request) -> Column:
        known = self._columns.get(request.number)
        if known is None:
            known = self._columns[request.number] = self._make_column(request)
        return known

    @abstractmethod
    def _admitted(self, devices: int, column: Column) -> int:
        """Return those of the devices that agree with the ones taken so far."""

    def take(self, device: int, request: Request) -> None:
        column = self._column_of(request)
        if isinstance(column, DerivedColumn) and device in column.failures:
            raise self._error(device, request, column.failures[device])
        self._taken.append(self._with(column.values[device]))

    @abstractmethod
    def _with(self, values: Values) -> Values:
        """Return what is kept of a device with these values."""

    def give_back(self, device: int, request: Request) -> None:
        self._taken.pop()

    def may_fail(self, request: Request) -> bool:
        column = self._column_of(request)
        if not isinstance(column, DerivedColumn):
            return False
        # Here all of them have to be computed: pruning looks no further than to where an error may be met.
        column.cover(request.usable)
        return bool(request.usable & column.failed)

    def _error(self, device: int, request: Request, cause: Exception) -> DerivedAttributeError:
        what = f"derived attribute {self._compared}"
        if isinstance(cause, CompileFailure):
            return DerivedAttributeError(f"compile {what} of request {request.name}: {cause}: correct the expression")
        return DerivedAttributeError.of_node(
            f"evaluate {what} of request {request.name} on device {self._device_id(device)}: {cause}: correct the "
            f"expression, or leave the device out by a selector"
        )


class DerivedMatch(DerivedConstraint):
    """``matchAttribute``: all devices have a value in common."""

    def __str__(self) -> str:
        return f"equal {self._compared}"

    def _admitted(self, devices: int, column: Column) -> int:
        if not self._taken:
            return devices
        common = self._taken[-1]
        return 0 if common is UNKNOWN else devices & column.with_any(common)

    def _with(self, values: Values) -> Values:
        # What all of them have in common so far; a stack, so that giving back restores it.
        return self._taken[-1] & values if self._taken else values

    def state(self) -> Hashable:
        return self._taken[-1] if self._taken else None


class DerivedDistinct(DerivedConstraint):
    """``distinctAttribute``: no two devices have a value in common."""

    def __str__(self) -> str:
        return f"distinct {self._compared}"

    def _admitted(self, devices: int, column: Column) -> int:
        for values in self._taken:
            if values is UNKNOWN:
                return 0
            devices &= ~column.with_any(values | UNKNOWN)
        return devices

    def _with(self, values: Values) -> Values:
        return values

    def state(self) -> Hashable:
        return frozenset(value for values in self._taken for value in values)
