"""What API validation asks about a selector: its errors, or what it may cost (api.md section 9)."""

from __future__ import annotations

from dra_api.validation.requests import SelectorCheck, SelectorVerdict

from .basics.errors import CompileError
from .environments.device import device_selectors
from .selector import compile


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
