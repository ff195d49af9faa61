"""Quantities and semantic versions: ``quantity("1.5Gi")``, ``semver("1.2.3")``, their order, and sums.

The reference keeps a quantity as a 64-bit integer with a decimal exponent while it can, and as a decimal otherwise.
Expressions can tell: only the former can be whole (``isInteger``), and only the latter is capped. ``value`` and
``exponent`` are that integer and exponent, ``amount`` is the exact number of billionths that comparisons use.
"""

from __future__ import annotations

import math
from typing import Any, Final

from dra_api.cache import remember_short
from dra_api.values import BINARY, DECIMAL, SYNTAX, Quantity, QuantityError, Version, VersionError

from dra_cel.basics.declarations import Function, Implementation, glob, method, succeeds, traversal
from dra_cel.basics.errors import EvaluationError
from dra_cel.basics.types import BOOL, DOUBLE, INT, QUANTITY, SEMVER, STRING, Type
from dra_cel.basics.values import INT_MAX, INT_MIN, Opaque

_QUANTITY_DIGITS: Final = 18


class QuantityValue(Opaque):
    """A quantity. ``value`` is None when it does not fit 64 bits and a decimal exponent.

    ``computed`` marks sums and differences: in the reference ``==`` fails with one on its right side (``compareTo``
    does not), so it must fail here as well.
    """

    __slots__ = ("amount", "computed", "exponent", "value")
    cel_type = QUANTITY

    def __init__(self, amount: int, value: int | None = None, exponent: int = 0) -> None:
        self.amount = amount
        self.value = value
        self.exponent = exponent
        self.computed = False

    def __eq__(self, other: object) -> bool:
        if type(other) is not QuantityValue or other.computed:
            raise EvaluationError("no-such-overload", "no such overload")
        return bool(self.amount == other.amount)

    __hash__ = None


def _compact(text: str) -> tuple[int, int] | None:
    """Value and exponent of the text if the reference keeps it in this form, which depends on the digits as written."""
    parts = SYNTAX.fullmatch(text)
    assert parts is not None, "Quantity has accepted the text"
    sign, whole, fraction, suffix = parts.groups("")
    whole = whole.lstrip("0") or "0"
    if suffix in BINARY:
        shift = BINARY[suffix]
        if fraction or 15 - len(whole) - int(shift * 3 / 10) - 1 < 0:
            return None
        value, exponent = int(whole) << shift, 0
    else:
        exponent = (DECIMAL[suffix] if suffix in DECIMAL else int(suffix[1:])) - len(fraction)
        if len(whole) + len(fraction) > _QUANTITY_DIGITS or exponent < -9:
            return None
        value = int(whole + fraction)
    return (-value if sign == "-" else value), exponent


@remember_short(2048)
def parse_quantity(text: str) -> QuantityValue:
    """The value of a text. Raises EvaluationError."""
    try:
        amount = Quantity(text).nanos
    except QuantityError as error:
        raise EvaluationError("quantity", str(error)) from None
    return QuantityValue(amount, *(_compact(text) or ()))


def _integer(quantity: QuantityValue) -> int | None:
    if quantity.value is None or quantity.exponent < 0:
        return None
    number: int = quantity.value * 10**quantity.exponent
    return number if INT_MIN <= number <= INT_MAX else None


def _as_integer(quantity: QuantityValue) -> int:
    number = _integer(quantity)
    if number is None:
        raise EvaluationError("quantity", "cannot convert value to integer")
    return number


def _as_float(quantity: QuantityValue) -> float:
    if quantity.value is not None:
        exponent = quantity.exponent
        return float(quantity.value) * _power_of_ten(exponent) if exponent else float(quantity.value)
    try:
        return float(quantity.amount) * 1e-9
    except OverflowError:
        return math.inf if quantity.amount > 0 else -math.inf


def _power_of_ten(exponent: int) -> float:
    """A power of ten as the reference has it: the product of two rounded ones, not always the nearest double."""
    steps, rest = divmod(abs(exponent), 32)
    coarse = float(f"1e{32 * steps if exponent > 0 else -32 * steps}")
    return coarse * float(f"1e{rest}") if exponent > 0 else coarse / float(f"1e{rest}")


def _summed(left: QuantityValue, right: QuantityValue, sign: int) -> QuantityValue:
    """Left plus or minus right; the result stays compact while both are and the sum fits."""
    amount = left.amount + sign * right.amount
    if left.value is None or right.value is None:
        return QuantityValue(amount)
    if sign < 0 and right.value == INT_MIN:
        return _summed(left, right, 1)  # negated in 64 bits, the least integer remains what it is
    if right.value == 0:
        return QuantityValue(amount, left.value, left.exponent)
    if left.value == 0:
        return QuantityValue(amount, sign * right.value, right.exponent)
    exponent = min(left.exponent, right.exponent)
    value = left.value * 10 ** (left.exponent - exponent) + sign * right.value * 10 ** (right.exponent - exponent)
    return QuantityValue(amount, value, exponent) if INT_MIN <= value <= INT_MAX else QuantityValue(amount)


def _operand(value: Any) -> QuantityValue:
    if isinstance(value, QuantityValue):
        return value
    return QuantityValue(int(value) * 10**9, int(value), 0)


def _sum(sign: int) -> Implementation:
    def run(left: QuantityValue, right: Any) -> QuantityValue:
        result = _summed(left, _operand(right), sign)
        result.computed = True
        return result

    return run


def _compare(left: QuantityValue, right: QuantityValue) -> int:
    return (left.amount > right.amount) - (left.amount < right.amount)


_AMOUNTS: Final[tuple[Type, Type]] = (QUANTITY, QUANTITY)
_PARSING: Final = traversal()
QUANTITIES: Final = (
    Function("quantity", (glob((STRING,), QUANTITY, parse_quantity, _PARSING),)),
    Function("isQuantity", (glob((STRING,), BOOL, succeeds(parse_quantity), _PARSING),)),
    Function("sign", (glob((QUANTITY,), INT, lambda q: (q.amount > 0) - (q.amount < 0)),)),
    Function(
        "isGreaterThan",
        (method(_AMOUNTS, BOOL, lambda a, b: a.amount > b.amount, inline="({0}.amount > {1}.amount)"),),
    ),
    Function(
        "isLessThan",
        (method(_AMOUNTS, BOOL, lambda a, b: a.amount < b.amount, inline="({0}.amount < {1}.amount)"),),
    ),
    Function("compareTo", (method(_AMOUNTS, INT, _compare, against_zero="({0}.amount {2} {1}.amount)"),)),
    Function("asApproximateFloat", (method((QUANTITY,), DOUBLE, _as_float),)),
    Function("asInteger", (method((QUANTITY,), INT, _as_integer),)),
    Function("isInteger", (method((QUANTITY,), BOOL, lambda q: _integer(q) is not None),)),
    Function("add", tuple(method((QUANTITY, other), QUANTITY, _sum(1)) for other in (QUANTITY, INT))),
    Function("sub", tuple(method((QUANTITY, other), QUANTITY, _sum(-1)) for other in (QUANTITY, INT))),
)


class SemverValue(Opaque):
    """A version; ``precedence`` orders it (build metadata does not count)."""

    __slots__ = ("precedence", "version")
    cel_type = SEMVER
    no_key = True

    def __init__(self, version: Version) -> None:
        self.version = version
        self.precedence = version.precedence

    def identity(self) -> Any:
        return self.precedence


@remember_short(2048)
def parse_version(text: str, normalize: bool = False) -> SemverValue:
    """The version of a text; with ``normalize``, a leading v, leading zeros and missing parts are allowed.

    Raises EvaluationError.
    """
    try:
        return SemverValue(Version(_normalized(text) if normalize else text))
    except VersionError as error:
        raise EvaluationError("semver", str(error)) from None


def _normalized(text: str) -> str:
    parts = text.removeprefix("v").split(".", 2)
    for at, part in enumerate(parts):
        if len(part) > 1:
            stripped = part.lstrip("0")
            parts[at] = stripped if stripped[:1].isdigit() else "0" + stripped
    if len(parts) < 3:
        if any(sign in parts[-1] for sign in "+-"):
            raise VersionError(f"{text!r}: a short version cannot have pre-release or build parts")
        parts += ["0"] * (3 - len(parts))
    return ".".join(parts)


def _compare_precedence(left: SemverValue, right: SemverValue) -> int:
    return (left.precedence > right.precedence) - (left.precedence < right.precedence)


_PAIR: Final = (SEMVER, SEMVER)
_FORMS: Final = ((STRING,), (STRING, BOOL))
VERSIONS: Final = (
    Function("semver", tuple(glob(params, SEMVER, parse_version, _PARSING) for params in _FORMS)),
    Function(
        "isSemver",
        tuple(glob(params, BOOL, succeeds(parse_version), _PARSING) for params in _FORMS),
    ),
    Function(
        "isGreaterThan",
        (
            method(
                _PAIR,
                BOOL,
                lambda a, b: a.precedence > b.precedence,
                inline="({0}.precedence > {1}.precedence)",
            ),
        ),
    ),
    Function(
        "isLessThan",
        (
            method(
                _PAIR,
                BOOL,
                lambda a, b: a.precedence < b.precedence,
                inline="({0}.precedence < {1}.precedence)",
            ),
        ),
    ),
    Function(
        "compareTo",
        (method(_PAIR, INT, _compare_precedence, against_zero="({0}.precedence {2} {1}.precedence)"),),
    ),
    Function("major", (method((SEMVER,), INT, lambda v: v.version.major),)),
    Function("minor", (method((SEMVER,), INT, lambda v: v.version.minor),)),
    Function("patch", (method((SEMVER,), INT, lambda v: v.version.patch),)),
)
