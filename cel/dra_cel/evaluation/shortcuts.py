"""Functions that compiled selectors call in addition to the libraries' own.

They return what CEL says or raise; anything raised sends the evaluation to the machine, so they may be stricter than
CEL, but never different.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import ge, gt, le, lt
from typing import Any, Final, NoReturn

from dra_cel.basics.declarations import Overload
from dra_cel.basics.errors import EvaluationError
from dra_cel.basics.types import BOOL, BYTES, DOUBLE, INT, QUANTITY, SEMVER, STRING, Type
from dra_cel.basics.values import MISSING, NONE, Made, Opaque, Optional, Uint, repacked, unwrap_key, wrap_key
from dra_cel.libraries.containers import lookup
from dra_cel.libraries.quantity import QuantityValue
from dra_cel.libraries.semver import SemverValue

CLASSES: Final[dict[Type, type]] = {
    BOOL: bool, BYTES: bytes, DOUBLE: float, INT: int, QUANTITY: QuantityValue, SEMVER: SemverValue, STRING: str,
}  # fmt: skip
"""Types whose values are of exactly one Python class."""
_OPERATORS: Final[dict[str, Callable[[Any, Any], bool]]] = {"<": lt, "<=": le, ">": gt, ">=": ge}
_PLAIN: Final = frozenset({int, Uint, float, str})


def give_up() -> NoReturn:
    """Leave the decision to the machine."""
    raise EvaluationError("other", "not decided here")


def truth(value: Any) -> bool:
    """A value that must be a bool."""
    if value is True or value is False:
        return bool(value)
    give_up()


def entries(over: Any) -> Iterable[Any]:
    """What a loop with one variable goes through."""
    if isinstance(over, (list, tuple)):
        return over
    return [unwrap_key(key) for key in over] if isinstance(over, dict) else give_up()


def pairs(over: Any) -> Iterable[tuple[Any, Any]]:
    """What a loop with two variables goes through."""
    if isinstance(over, (list, tuple)):
        return enumerate(over)
    return [(unwrap_key(key), value) for key, value in over.items()] if isinstance(over, dict) else give_up()


def select_optional(container: Any, key: Any) -> Optional:
    """``container[?key]``, also where the container is itself optional."""
    if isinstance(container, Optional):
        if not container.present:
            return NONE
        container = repacked(container.value)
        if isinstance(container, EvaluationError):
            raise container
    found = lookup(container, key)
    return NONE if found is MISSING else Optional(found)


def repack(value: Any) -> Any:
    """The optional that a name or an arm of ``?:`` stands for, if repacking does not change it."""
    if isinstance(value, Optional) and value.present and isinstance(value.value, (Opaque, Optional, Type)):
        give_up()
    return value


def is_present(container: Any, name: str) -> bool:
    """``has(container.name)``."""
    return select_optional(container, name).present


def or_value(optional: Any, other: Any) -> Any:
    if not isinstance(optional, Optional):
        give_up()
    return optional.value if optional.present else other


def or_optional(optional: Any, other: Any) -> Any:
    if not isinstance(optional, Optional):
        give_up()
    return optional if optional.present else other


def compare_with(operator: str, constant: int, otherwise: Callable[[Any, Any], bool]) -> Callable[[Any], bool]:
    """Comparison with a constant, quick for integers."""
    quick = _OPERATORS[operator]
    return lambda value: quick(value, constant) if type(value) is int else otherwise(value, constant)


def member_of(items: frozenset[Any]) -> Callable[[Any], bool]:
    """Membership in a set of texts and numbers that Python compares as CEL does."""
    return lambda value: value in items if type(value) in _PLAIN else give_up()


def make_map(*parts: Any) -> dict[Any, Any]:
    """A map of alternating keys and values."""
    return Made({wrap_key(key): value for key, value in zip(parts[::2], parts[1::2], strict=True)})


def guard(overload: Overload) -> Callable[..., Any]:
    """The overload's implementation behind a quick check of its operands' types."""
    run = overload.run
    if overload.checks:
        return run
    classes = [CLASSES.get(type_) for type_ in overload.params]
    if len(classes) == 1 and (only := classes[0]) is not None:
        return lambda value: run(value) if type(value) is only else give_up()
    if len(classes) == 2 and None not in classes:
        first, second = classes
        return lambda a, b: run(a, b) if type(a) is first and type(b) is second else give_up()
    return lambda *values: run(*values) if overload.accepts(values) else give_up()


def choose(overloads: Sequence[Overload]) -> Callable[..., Any]:
    """The first of several overloads that takes the operands."""

    def run(*values: Any) -> Any:
        for overload in overloads:
            if overload.accepts(values):
                return overload.run(*values)
        give_up()

    return run
