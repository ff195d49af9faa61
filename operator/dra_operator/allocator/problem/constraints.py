"""Constraints of a claim over attributes (allocator.md section 8, AL-13).

A constraint is a ledger whose ``admit`` is an intersection of sets from the column of its attribute, not a
trial. An attribute whose value is of no known type can stand alone, but no second device can join it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from dra_ledger.columns import UNKNOWN, Column, Values

from .ledger import Ledger, Request


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
        return 0 if common is UNKNOWN else devices & self.column.with_any(common)

    def take(self, device: int, request: Request) -> None:
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
        self._used: list[Values] = []

    def __str__(self) -> str:
        return f"distinct {self.column.attribute}"

    def admit(self, devices: int, request: Request) -> int:
        devices &= self.column.present
        for values in self._used:
            if values is UNKNOWN:
                return 0
            devices &= ~self.column.with_any(values | UNKNOWN)
        return devices

    def take(self, device: int, request: Request) -> None:
        self._used.append(self.column.values[device])

    def give_back(self, device: int, request: Request) -> None:
        self._used.pop()

    def state(self) -> Hashable:
        return frozenset(value for values in self._used for value in values)
