"""How CEL values look in Python, and ``==``, ``<`` and ``in`` over values of any type.

bool, int, double, string, bytes, null and lists are Python's own (lists may be tuples). Values that Python lacks or
treats differently have a class here:

* ``Uint``: an int that knows it is unsigned.
* maps: a dict. Text keys are themselves; other keys are wrapped in ``Key``, because Python takes ``True``, ``1``
  and ``1.0`` for the same key and CEL does not.
* ``Optional``, ``Timestamp``, ``Duration`` and, in the libraries, quantities, versions, addresses, ...

Values of the Kubernetes types are ``Opaque``: comparing one with anything of another class is an *error* in CEL, so
their ``==`` raises, and they have no hash. That lets compiled expressions use Python's ``==`` and still notice.

Numbers compare across types by value. Values of unrelated types are unequal, except that a Kubernetes value (a
quantity, a version, ...) on the left can only be compared with its own type: all else is an error. As in the reference,
such an error counts as "equal" inside lists and maps, and as "not this one" in membership tests.

Structures may share parts, so comparing two small ones can take exponentially long: the effort is limited.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Final

from dra_cel.basics.errors import EvaluationError, EvaluationStopped, spend
from dra_cel.basics.types import DURATION, DYN, RUNTIME, TIMESTAMP, UINT, Type, map_of, optional_of, type_of

INT_MIN: Final = -(2**63)
INT_MAX: Final = 2**63 - 1
UINT_MAX: Final = 2**64 - 1


class Uint(int):
    """An unsigned 64-bit integer."""

    __slots__ = ()


class Key:
    """A map key that is not text. Numbers, booleans and the like differ by type, other values by identity.

    Raises EvaluationStopped for values whose representation in the reference cannot be a key.
    """

    __slots__ = ("identity", "value")

    def __init__(self, value: Any) -> None:
        if isinstance(value, bytes) or (isinstance(value, Opaque) and value.no_key):
            raise EvaluationStopped("other", f"internal error: {type_of(value).name} cannot be a key of a map")
        if isinstance(value, Opaque) and value.compared_as_key:
            self.identity: Any = (type(value), value.identity())
        elif isinstance(value, (bool, int, float, type(None), Type, Duration, Timestamp)):
            self.identity = (type(value), value)
        else:
            self.identity = (object, id(value))
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self.identity == other.identity

    def __hash__(self) -> int:
        return hash(self.identity)


def wrap_key(key: object) -> Any:
    """The dict key for a CEL value."""
    return key if type(key) is str else Key(key)


def unwrap_key(key: Any) -> Any:
    """The CEL value that a dict key stands for."""
    return key.value if type(key) is Key else key


class Made(dict[Any, Any]):
    """A map that an expression has made. All others (attributes, JSON objects) have nothing but text as keys."""

    __slots__ = ()


MISSING: Final = object()


def find(mapping: dict[Any, Any], key: object) -> Any:
    """The entry of a map, or MISSING. Whole numbers are found whatever their type. Raises EvaluationStopped for a key
    that cannot stand in a map that an expression has made; in other maps it is missing.
    """
    if type(key) is str:
        return mapping.get(key, MISSING)
    if not mapping or not isinstance(mapping, Made):
        return MISSING
    found = mapping.get(wrap_key(key), MISSING)
    if found is not MISSING or not isinstance(key, (int, float)) or isinstance(key, bool):
        return found
    if isinstance(key, float):
        if not key.is_integer():
            return MISSING
        found = mapping.get(Key(int(key)), MISSING)
        return mapping.get(Key(Uint(int(key))), MISSING) if found is MISSING else found
    return mapping.get(Key(int(key) if type(key) is Uint else Uint(key)), MISSING)


class Opaque:
    """Base of values that can only be compared with values of their own class, by ``identity``.

    As a map key, a value is compared by ``identity`` (``compared_as_key``), impossible (``no_key``), or equal to itself
    only. ``survives_repacking``: see ``repacked``.
    """

    __slots__ = ()
    cel_type: ClassVar[Type] = DYN
    compared_as_key: ClassVar[bool] = False
    no_key: ClassVar[bool] = False
    survives_repacking: ClassVar[bool] = False
    __hash__ = None  # type: ignore[assignment]  # a set or dict must refuse them, see the module's docstring

    def identity(self) -> Any:
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            raise EvaluationError("no-such-overload", "no such overload")
        return bool(self.identity() == other.identity())


class Optional:
    """A value that may be absent; ``NONE`` is the absent one."""

    __slots__ = ("present", "value")
    cel_type: ClassVar[Type] = optional_of(DYN)

    def __init__(self, value: Any, present: bool = True) -> None:
        self.value = value
        self.present = present


NONE: Final = Optional(None, present=False)


def repacked(value: Any) -> Any:
    """What becomes of an optional's value where a name, a selection or an arm of ``?:`` gave the optional.

    The reference unpacks it to a plain Go value there and packs that again, which not every value survives: values of
    Kubernetes' own types become an EvaluationError, which fails each use of the value.
    """
    while isinstance(value, Optional):
        value = value.value if value.present else None
    if isinstance(value, Opaque) and not value.survives_repacking:
        return EvaluationError("other", f"a {type_of(value).name} in an optional cannot be used by name")
    return value.name if isinstance(value, Type) else value


NANOS: Final = 10**9
TIMESTAMP_MIN_SECONDS: Final = -62135596800
TIMESTAMP_MAX_SECONDS: Final = 253402300799


class Duration:
    """A span of time in nanoseconds (64 bits)."""

    __slots__ = ("nanos",)
    cel_type: ClassVar[Type] = DURATION

    def __init__(self, nanos: int) -> None:
        if not INT_MIN <= nanos <= INT_MAX:
            raise EvaluationError("overflow", "duration overflow")
        self.nanos = nanos

    def __eq__(self, other: object) -> bool:
        return type(other) is Duration and other.nanos == self.nanos

    def __hash__(self) -> int:
        return hash(("duration", self.nanos))


class Timestamp:
    """A moment in nanoseconds since 1970 (UTC), from year 1 to 9999; ``offset`` (seconds) is only for its text."""

    __slots__ = ("nanos", "offset")
    cel_type: ClassVar[Type] = TIMESTAMP

    def __init__(self, nanos: int, offset: int = 0) -> None:
        if not TIMESTAMP_MIN_SECONDS <= nanos // NANOS <= TIMESTAMP_MAX_SECONDS:
            raise EvaluationError("overflow", "timestamp overflow")
        self.nanos = nanos
        self.offset = offset

    def __eq__(self, other: object) -> bool:
        return type(other) is Timestamp and other.nanos == self.nanos

    def __hash__(self) -> int:
        return hash(("timestamp", self.nanos))


RUNTIME[Uint] = UINT
RUNTIME[Made] = map_of(DYN, DYN)


def accepts(type_: Type, value: Any) -> bool:
    """Whether a value may be passed for a parameter of that type; of containers the first entry is looked at."""
    pending = [(type_, value)]
    while pending:
        type_, value = pending.pop()
        if type_.kind in ("dyn", "any", "param"):
            continue
        actual = type_of(value)
        if actual.kind != type_.kind or actual.name != type_.name:
            return False
        if type_.kind == "list" and value:
            pending.append((type_.params[0], value[0]))
        elif type_.kind == "map" and value:
            key, entry = next(iter(value.items()))
            pending += [(type_.params[0], unwrap_key(key)), (type_.params[1], entry)]
    return True


def no_overload(function: str, *values: object) -> EvaluationError:
    """The error for a function that cannot take such values."""
    names = ", ".join(type_of(value).name for value in values)
    return EvaluationError("no-such-overload", f"no such overload: {function}({names})")


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
        spend(len(left))
        pending.extend((*pair, False) for pair in zip(left, right, strict=True))
        return True
    if isinstance(left, dict):
        if not isinstance(right, dict) or len(left) != len(right):
            return False
        spend(len(left))
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
    spend(len(items))
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
