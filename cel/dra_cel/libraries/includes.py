"""``includes``: whether an attribute is, or lists, a value. Only in device selectors."""

from __future__ import annotations

from typing import Any, Final

from dra_cel.basics.charges import Estimate, Range, Rule
from dra_cel.basics.declarations import Function, method
from dra_cel.basics.equality import unequal
from dra_cel.basics.errors import EvaluationError
from dra_cel.basics.types import BOOL, DYN

MOST_VALUES: Final = 48


def _includes(value: Any, wanted: Any) -> bool:
    if not isinstance(value, (list, tuple)):
        return not unequal(value, wanted)
    for position, item in enumerate(value):
        if position >= MOST_VALUES:
            raise EvaluationError(
                "list-too-long", f"'includes' cannot be applied to lists of more than {MOST_VALUES} values"
            )
        if not unequal(item, wanted):
            return True
    return False


LIBRARY: Final = (
    Function(
        "includes",
        (method((DYN, DYN), BOOL, _includes, Rule(lambda operands: Estimate(Range(0, MOST_VALUES)), lambda v, r: 1)),),
    ),
)
