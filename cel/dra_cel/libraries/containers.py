"""Lists, maps and optional values: look-ups, sizes, membership, and the largest that an expression may build.

``or``, ``orValue``, ``.?field`` and ``[?index]`` are built in; here are their types, ``optional.of`` and the functions
of lists that give optional values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from dra_cel.basics.declarations import Function, Overload, built_in, glob, method
from dra_cel.basics.errors import CostLimitExceeded, EvaluationError
from dra_cel.basics.types import BOOL, DYN, INT, RUNTIME, Type, list_of, map_of, optional_of, param, type_of
from dra_cel.basics.values import (
    MISSING,
    NANOS,
    NONE,
    TIMESTAMP_MIN_SECONDS,
    Duration,
    Made,
    Optional,
    Timestamp,
    Uint,
    contains,
    find,
    no_overload,
)

TEXT_CHARACTERS: Final = 2_000_000
"""Longest text or bytes that an expression may build."""
LIST_ELEMENTS: Final = 1_000_000
"""Most elements of a list that an expression may build."""


class Accumulator(list[Any]):
    """The list that a fold builds. Adding to it extends it in place, because nothing else refers to it."""

    __slots__ = ()


class MapAccumulator(Made):
    """The map that a fold builds, extended in place."""

    __slots__ = ()


class DefaultMap(dict[Any, Any]):
    """A map that answers a look-up with an empty map when it does not contain the key."""

    __slots__ = ()
    default: Final[dict[Any, Any]] = {}

    def __missing__(self, key: Any) -> dict[Any, Any]:
        return self.default


def bounded(size: int, limit: int) -> None:
    """Raises CostLimitExceeded before something is built that is too large for memory."""
    if size > limit:
        raise CostLimitExceeded(f"a value of size {size} is larger than the {limit} that an expression may build")


def within(wanted: Any, container: Any) -> bool:
    if isinstance(container, (list, tuple)):
        return contains(container, wanted)
    if isinstance(container, dict):
        return find(container, wanted) is not MISSING
    raise EvaluationError("no-such-overload", "no such overload: @in: the right side is neither a list nor a map")


def size(value: Any) -> int:
    if isinstance(value, (str, bytes, list, tuple, dict)):
        return len(value)
    raise no_overload("size", value)


def is_key(value: Any) -> bool:
    """Whether a value may stand in ``container[...]``, whatever the container is."""
    return type(value) in _KEY_CLASSES


_KEY_CLASSES: Final = frozenset({str, int, Uint, bool, float})


def lookup(container: Any, key: Any) -> Any:
    """The entry of a map or list, or MISSING. Raises EvaluationError for a value that cannot be a key."""
    if not is_key(key):
        raise EvaluationError("other", f"a {type_of(key).name} cannot be an index")
    if isinstance(container, dict):
        found = find(container, key)
        if found is MISSING and isinstance(container, DefaultMap):
            return container.default
        return found
    if isinstance(container, (list, tuple)):
        position = _position(key)
        return container[position] if 0 <= position < len(container) else MISSING
    return MISSING


def index(container: Any, key: Any) -> Any:
    """``container[key]``. Raises EvaluationError when there is no such entry."""
    found = lookup(container, key)
    if found is not MISSING:
        return found
    if isinstance(container, (list, tuple)):
        raise EvaluationError("index", f"index out of bounds: {key}")
    raise EvaluationError(
        "no-such-key", f"no such key: {str(key).lower() if isinstance(key, bool) else str(key)[:100]}"
    )


def _position(key: Any) -> int:
    if type(key) in (int, Uint):
        return int(key)
    if type(key) is float:
        if key.is_integer():
            return int(key)
        raise EvaluationError("index", f"unsupported index value {key} in list")
    raise EvaluationError("index", f"unsupported index type {type_of(key).name!r} in list")


RUNTIME.update({Accumulator: list_of(DYN), MapAccumulator: map_of(DYN, DYN), DefaultMap: map_of(DYN, DYN)})


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
