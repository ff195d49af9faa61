"""``==``, ``<`` and ``in`` of CEL, over values of any type.

Numbers compare across types by value. Values of unrelated types are unequal, except that a Kubernetes value (a
quantity, a version, ...) on the left can only be compared with its own type: all else is an error. As in the reference,
such an error counts as "equal" inside lists and maps, and as "not this one" in membership tests.

Structures may share parts, so comparing two small ones can take exponentially long: the effort is limited.
"""

from __future__ import annotations

import math
from typing import Any, Final

from . import effort
from .errors import EvaluationError, EvaluationStopped, no_overload
from .types import Type
from .values import MISSING, Duration, Opaque, Optional, Timestamp, Uint, find, unwrap_key

_NUMBERS: Final = (int, Uint, float)
_Pair = tuple[Any, Any, bool]


def equal(left: Any, right: Any) -> bool:
    """Whether two values are equal. Raises EvaluationError for an opaque left side and a right one of another type."""
    kind = type(left)
    if kind is str or kind is bool or kind is bytes:
        return type(right) is kind and bool(left == right)
    pending: list[_Pair] = [(left, right, True)]
    while pending:
        left, right, outermost = pending.pop()
        try:
            if not _alike(left, right, pending, outermost):
                return False
        except EvaluationStopped:
            raise
        except EvaluationError:
            if outermost:
                raise
    return True


def _alike(left: Any, right: Any, pending: list[_Pair], outermost: bool) -> bool:
    """Whether two values are equal without their entries, which are added to ``pending``."""
    if left is None or right is None:
        return left is right
    kind = type(left)
    if kind in _NUMBERS:
        return type(right) in _NUMBERS and _numeric_order(left, right) == 0
    if isinstance(left, (list, tuple)):
        if not isinstance(right, (list, tuple)) or len(left) != len(right):
            return False
        effort.spend(len(left))
        pending.extend((*pair, False) for pair in zip(left, right, strict=True))
        return True
    if isinstance(left, dict):
        if not isinstance(right, dict) or len(left) != len(right):
            return False
        effort.spend(len(left))
        pairs = [(value, find(right, unwrap_key(key)), False) for key, value in left.items()]
        pending.extend(pairs)
        return all(other is not MISSING for _, other, _ in pairs)
    if isinstance(left, Optional):
        return isinstance(right, Optional) and _optionals_alike(left, right, pending, outermost)
    if isinstance(left, Type):
        return isinstance(right, Type) and left.name == right.name
    return bool(left == right) if isinstance(left, Opaque) or type(right) is kind else False


def _optionals_alike(left: Optional, right: Optional, pending: list[_Pair], outermost: bool) -> bool:
    if left.present != right.present:
        return False
    if left.present:
        for value in (left.value, right.value):
            if isinstance(value, EvaluationError):
                raise value
        if isinstance(left.value, Opaque) and right.value is None:
            raise no_overload("_==_", left.value, right.value)
        pending.append((left.value, right.value, outermost))
    return True


def unequal(left: Any, right: Any) -> bool:
    """``!=``: values that cannot be compared are different, although ``==`` would refuse them."""
    try:
        return not equal(left, right)
    except EvaluationStopped:
        raise
    except EvaluationError:
        return True


def contains(items: Any, wanted: Any) -> bool:
    """Whether a list holds the wanted value."""
    effort.spend(len(items))
    return not all(unequal(wanted, item) for item in items)


def _numeric_order(left: Any, right: Any) -> int | None:
    """-1, 0 or 1; None when a NaN is involved. An integer and a double are compared as doubles."""
    if isinstance(left, float) or isinstance(right, float):
        left, right = float(left), float(right)
        if math.isnan(left) or math.isnan(right):
            return None
    return int(left > right) - int(left < right)


def order(left: Any, right: Any) -> int:
    """-1, 0 or 1 as left is below, equal to or above right. Raises EvaluationError for what has no order."""
    kind = type(left)
    if kind in _NUMBERS and type(right) in _NUMBERS:
        found = _numeric_order(left, right)
        if found is None:
            raise EvaluationError("other", "NaN values cannot be ordered")
        return found
    if kind is type(right):
        if kind is str or kind is bool or kind is bytes:
            return int(left > right) - int(left < right)
        if kind is Duration or kind is Timestamp:
            return int(left.nanos > right.nanos) - int(left.nanos < right.nanos)
    raise no_overload("compare", left, right)
