"""Optional values: ``optional.of``, ``orValue``, ``[?index]``, and functions of lists that use them.

``or``, ``orValue``, ``.?field`` and ``[?index]`` are built in; here are their types.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from dra_cel.basics.declarations import Function, Overload, built_in, glob, method
from dra_cel.basics.errors import EvaluationError
from dra_cel.basics.types import BOOL, INT, Type, list_of, map_of, optional_of, param
from dra_cel.basics.values import NANOS, NONE, TIMESTAMP_MIN_SECONDS, Duration, Optional, Timestamp

K: Final = param("K")
V: Final = param("V")
_OPTIONAL: Final = optional_of(V)
_LIST: Final = list_of(V)
_MAP: Final = map_of(K, V)


def is_zero(value: Any) -> bool:
    """Whether a value is its type's zero: empty, 0, false, null."""
    if isinstance(value, Duration):
        return value.nanos == 0
    if isinstance(value, Timestamp):
        return value.nanos == TIMESTAMP_MIN_SECONDS * NANOS
    return value is None or (isinstance(value, (bool, int, float, str, bytes, list, tuple, dict)) and not value)


def get(optional: Optional) -> Any:
    if not optional.present:
        raise EvaluationError("optional-none", "optional.none() dereference")
    if isinstance(optional.value, EvaluationError):
        raise optional.value
    return optional.value


def _unwrap(items: Sequence[Any]) -> list[Any]:
    for item in items:
        if not isinstance(item, Optional):
            raise EvaluationError("other", "a value of the list is not optional")
    return [item.value for item in items if item.present]


def _first(items: Sequence[Any]) -> Optional:
    return Optional(items[0]) if items else NONE


def _last(items: Sequence[Any]) -> Optional:
    return Optional(items[-1]) if items else NONE


def _lookups(*, plain: bool) -> tuple[Overload, ...]:
    found: list[tuple[tuple[Type, Type], Type]] = [
        ((optional_of(_LIST), INT), _OPTIONAL),
        ((optional_of(_MAP), K), _OPTIONAL),
    ]
    if plain:
        found = [((_LIST, INT), _OPTIONAL), found[0], ((_MAP, K), _OPTIONAL), found[1]]
    return tuple(glob(params, result, built_in) for params, result in found)


LIBRARY: Final = (
    Function("optional.of", (glob((V,), _OPTIONAL, Optional),)),
    Function(
        "optional.ofNonZeroValue", (glob((V,), _OPTIONAL, lambda value: NONE if is_zero(value) else Optional(value)),)
    ),
    Function("optional.none", (glob((), _OPTIONAL, lambda: NONE),)),
    Function("value", (method((_OPTIONAL,), V, get),)),
    Function("hasValue", (method((_OPTIONAL,), BOOL, lambda optional: optional.present),)),
    Function("or", (method((_OPTIONAL, _OPTIONAL), _OPTIONAL, built_in),)),
    Function("orValue", (method((_OPTIONAL, V), V, built_in),)),
    Function("_[?_]", _lookups(plain=True)),
    Function("_[_]", _lookups(plain=False), guarded=False),
    Function("first", (method((_LIST,), _OPTIONAL, _first),)),
    Function("last", (method((_LIST,), _OPTIONAL, _last),)),
    Function("optional.unwrap", (glob((list_of(_OPTIONAL),), _LIST, _unwrap),)),
    Function("unwrapOpt", (method((list_of(_OPTIONAL),), _LIST, _unwrap),)),
)
