"""``includes``: whether an attribute is, or lists, a value. Only in device selectors."""

from __future__ import annotations

from typing import Any, Final

from dra_cel.charges import Estimate, Range, Rule
from dra_cel.declarations import Function, method
from dra_cel.equality import equal
from dra_cel.errors import EvaluationError
from dra_cel.types import BOOL, DYN

LIMIT: Final = 48


def _includes(value: Any, wanted: Any) -> bool:
    if not isinstance(value, (list, tuple)):
        return _same(value, wanted)
    for position, item in enumerate(value):
        if position >= LIMIT:
            raise EvaluationError("list-too-long", f"'includes' cannot be applied to lists of more than {LIMIT} values")
        if _same(item, wanted):
            return True
    return False


def _same(value: Any, wanted: Any) -> bool:
    try:
        return equal(value, wanted)
    except EvaluationError as error:
        if error.kind == "cost-limit":
            raise
        return False


LIBRARY: Final = (
    Function(
        "includes",
        (method((DYN, DYN), BOOL, _includes, Rule(lambda operands: Estimate(Range(0, LIMIT)), lambda v, r: 1)),),
    ),
)
