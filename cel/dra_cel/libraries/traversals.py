"""The charge for walking through a list or text once, which several libraries share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from dra_cel.basics.charges import CHARACTER_COST, ONE, UNKNOWN, Estimate, Operand, Range, Rule, exactly
from dra_cel.basics.values import unwrap_key

_ENOUGH_ELEMENTS: Final = 1_000_001


def _estimate(operands: Sequence[Operand]) -> Estimate:
    operand = operands[0]
    if not operand.type.params:
        return Estimate(operand.size.scaled(CHARACTER_COST))
    each = ONE
    if operand.type.params[0].kind in ("string", "bytes"):
        each = each.plus(operand.element_size.scaled(CHARACTER_COST))
    return Estimate(operand.size.times(each))


def _count(values: Sequence[Any], result: Any) -> int:
    """One unit per leaf, a tenth per byte of text. Stops where every limit is exceeded anyway."""
    total = 0
    pending = [values[0]]
    while pending and total < _ENOUGH_ELEMENTS:
        value = pending.pop()
        if isinstance(value, str):
            total += int(len(value.encode("utf-8", "replace")) * CHARACTER_COST)
        elif isinstance(value, bytes):
            total += int(len(value) * CHARACTER_COST)
        elif isinstance(value, (list, tuple)):
            pending.extend(value)
        elif isinstance(value, dict):
            pending.extend(part for key, entry in value.items() for part in (unwrap_key(key), entry))
        else:
            total += 1
    return total


def _ceiling(operands: Sequence[Operand]) -> Range:
    """No bound is known for lists of unknown elements, and a character may take four bytes."""
    if operands[0].type.is_loose:
        return UNKNOWN
    return _estimate(operands).cost.times(exactly(4))


TRAVERSAL: Final = Rule(_estimate, _count, _ceiling)
