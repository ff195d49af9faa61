"""Values of fields: quantities, strict semantic versions, times, and equality as the API server defines it.

**Quantities** (``100m``, ``4Gi``, ``1e3``) are exact. A quantity is a fixed-point number with nine decimal places, held
as a whole number of billionths, together with its text: comparisons are numeric (``1`` equals ``1000m``), but a copy of
an object must have the text that its author wrote.

Rules of the reference (apimachinery ``resource.Quantity``): more than nine decimals round away from zero, so that the
smallest request does not become zero; only amounts with a binary suffix are capped, at 2**63-1; digits may be missing
altogether (``Gi`` is zero); ``1E`` is 10**18 but ``1E3`` is 1000. Exponents above 1000 and texts of more than 1000
characters are refused here: nothing needs them, and their digits would cost memory and time.

**Equality** is for rules about immutable fields: an empty list or map equals an absent one, ``1000m`` equals ``1``, so
that a client may write ``[]`` for an absent list. Times are RFC 3339 in UTC, with whole seconds, or microseconds in a
Lease.
"""

from __future__ import annotations

import re
from datetime import MAXYEAR, MINYEAR, UTC, datetime
from enum import StrEnum
from functools import total_ordering
from typing import Any, Final

from msgspec import Raw, Struct

from dra_api.cache import remember_short

NANO: Final = 10**9
_MAX: Final = (2**63 - 1) * NANO
SYNTAX: Final = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:\.(?P<fraction>[0-9]*))?(?P<suffix>(?:[eE][+-]?[0-9]+)|[A-Za-z]*)",
    re.ASCII,
)
"""The form of a quantity; not every suffix that matches exists."""
BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
"""Suffix -> power of two."""
DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
"""Suffix -> power of ten."""
_DECIMAL_SUFFIX: Final = {exponent: suffix for suffix, exponent in DECIMAL.items()}
_LARGEST_EXPONENT: Final = 1000
_LONGEST_CHARACTERS: Final = 1000


class QuantityError(ValueError):
    """The text is not a Kubernetes quantity."""


class Format(StrEnum):
    """The family of suffixes in which a quantity is written."""

    DECIMAL = "DecimalSI"
    BINARY = "BinarySI"
    EXPONENT = "DecimalExponent"


def _parse(text: str) -> tuple[int, Format]:
    match = SYNTAX.fullmatch(text)
    if not text or match is None or len(text) > _LONGEST_CHARACTERS:
        raise QuantityError(f"{text[:80]!r} is not a quantity: expected a number such as 2, 0.5, 100m, 4Gi or 1e3")
    whole, fraction, suffix = match["whole"], match["fraction"] or "", match["suffix"]
    digits = int((whole + fraction) or "0")
    shift = 9 - len(fraction)
    if suffix in BINARY:
        written, digits = Format.BINARY, digits << BINARY[suffix]
    elif suffix in DECIMAL:
        written, shift = Format.DECIMAL, shift + DECIMAL[suffix]
    elif suffix[0] in "eE" and suffix[-1].isdigit():
        written, shift = Format.EXPONENT, shift + _power(suffix[1:], text)
    else:
        raise QuantityError(f"{text!r} is not a quantity: unknown suffix {suffix!r}")
    if not whole and not fraction and (shift < 0 or suffix in ("Pi", "Ei")):
        raise QuantityError(f"{text!r} is not a quantity: it has no digits")  # as the reference does
    nanos: int = digits * 10**shift if shift >= 0 else -(-digits // 10**-shift)
    if written is Format.BINARY:
        nanos = min(nanos, _MAX)
        written = Format.DECIMAL if 0 < nanos < NANO else written
    return (-nanos if match["sign"] == "-" else nanos), written


def _power(exponent: str, text: str) -> int:
    power = int(exponent)
    if power > _LARGEST_EXPONENT:
        raise QuantityError(f"{text!r} is not a quantity: the exponent is above {_LARGEST_EXPONENT}")
    return max(power, -_LARGEST_EXPONENT)  # any smaller amount is a billionth


@total_ordering
class Quantity:
    """An immutable quantity; ``Quantity("1Gi")`` parses, ``Quantity.of(n)`` wraps an integer.

    Equality, order and hash are numeric. ``str()`` gives the text as written.
    Raises QuantityError when the text cannot be parsed.
    """

    __slots__ = ("format", "nanos", "text")
    format: Format
    nanos: int
    text: str

    def __init__(self, text: str) -> None:
        nanos, written = _parse(text)
        self._set(nanos, written, text)

    def _set(self, nanos: int, written: Format, text: str) -> None:
        object.__setattr__(self, "format", written)
        object.__setattr__(self, "nanos", nanos)
        object.__setattr__(self, "text", text)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("quantities are immutable")

    def __reduce__(self) -> tuple[type[Quantity], tuple[str]]:
        return Quantity, (self.text,)

    @classmethod
    def _written(cls, nanos: int, written: Format) -> Quantity:
        self = cls.__new__(cls)
        self._set(nanos, written, _canonical(nanos, written))
        return self

    @classmethod
    def from_nanos(cls, nanos: int, *, binary: bool = False) -> Quantity:
        """The quantity of so many billionths, written canonically, with Ki, Mi, ... if ``binary``."""
        return cls._written(nanos, Format.BINARY if binary else Format.DECIMAL)

    @classmethod
    def of(cls, number: int, *, binary: bool = False) -> Quantity:
        """The quantity of a whole number."""
        return cls.from_nanos(number * NANO, binary=binary)

    @classmethod
    def of_format(cls, nanos: int, written: Format) -> Quantity:
        """The quantity of so many billionths, in that family of suffixes."""
        return cls._written(nanos, written)

    def rounded_up(self, unit: int = NANO) -> int:
        """The whole number of units at or next above the magnitude (of ones: the reference's ``Value()``)."""
        return -(-self.nanos // unit) if self.nanos >= 0 else self.nanos // unit

    def canonical(self) -> str:
        """The shortest text of the same value, in the same family of suffixes."""
        return _canonical(self.nanos, self.format)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Quantity) and self.nanos == other.nanos

    def __lt__(self, other: Quantity) -> bool:
        return self.nanos < other.nanos

    def __hash__(self) -> int:
        return hash(self.nanos)

    def __add__(self, other: Quantity) -> Quantity:
        return self._written(self.nanos + other.nanos, self._format_with(other))

    def __sub__(self, other: Quantity) -> Quantity:
        return self._written(self.nanos - other.nanos, self._format_with(other))

    def _format_with(self, other: Quantity) -> Format:
        """The format of a sum: that of its first part, unless it is zero."""
        return self.format if self.nanos else other.format

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Quantity({self.text!r})"


def _canonical(nanos: int, written: Format) -> str:
    if nanos == 0:
        return "0"
    if written is Format.BINARY and nanos % NANO == 0 and abs(nanos) >= 1024 * NANO:
        number = nanos // NANO
        suffix = ""
        for name in BINARY:
            if number % 1024:
                break
            number, suffix = number // 1024, name
        return f"{number}{suffix}"
    exponent = -9
    while nanos % 1000 == 0:
        nanos, exponent = nanos // 1000, exponent + 3
    if written is Format.EXPONENT or exponent not in _DECIMAL_SUFFIX:
        return f"{nanos}e{exponent}" if exponent else str(nanos)
    return f"{nanos}{_DECIMAL_SUFFIX[exponent]}"


@remember_short(4096)
def parse_quantity(text: str) -> Quantity:
    """The quantity of a text, cached: clusters repeat a few hundred texts millions of times."""
    return Quantity(text)


_SYNTAX: Final = re.compile(
    r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)"
    r"(?:-((?:0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)(?:\.(?:0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*))*))?"
    r"(?:\+([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?",
    re.ASCII,
)
_MAX_NUMBER: Final = 2**64 - 1
_MAX_DIGITS: Final = 20  # digits of the largest number; longer texts need no conversion


class VersionError(ValueError):
    """The text is not a strict semantic version."""


@total_ordering
class Version:
    """A semantic version; order follows the standard's precedence, which ignores build metadata.

    Raises VersionError when the text is not ``MAJOR.MINOR.PATCH[-pre][+build]`` or a number exceeds 64 bits.
    """

    __slots__ = ("build", "major", "minor", "patch", "pre", "precedence", "text")

    def __init__(self, text: str) -> None:
        match = _SYNTAX.fullmatch(text)
        if match is None:
            raise VersionError(f"{text!r} is not a semantic version: expected MAJOR.MINOR.PATCH[-pre][+build]")
        self.text = text
        self.pre: tuple[str, ...] = tuple(match[4].split(".")) if match[4] else ()
        self.build: tuple[str, ...] = tuple(match[5].split(".")) if match[5] else ()
        numbers = (*match.group(1, 2, 3), *filter(str.isdigit, self.pre))
        if any(len(number) > _MAX_DIGITS or int(number) > _MAX_NUMBER for number in numbers):
            raise VersionError(f"{text!r} is not a semantic version: a number exceeds 64 bits")
        self.major, self.minor, self.patch = int(match[1]), int(match[2]), int(match[3])
        release = 0 if self.pre else 1
        ordered = tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in self.pre)
        self.precedence = (self.major, self.minor, self.patch, release, ordered)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and self.precedence == other.precedence

    def __lt__(self, other: Version) -> bool:
        return self.precedence < other.precedence

    def __hash__(self) -> int:
        return hash(self.precedence)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Version({self.text!r})"


def is_version(text: str) -> bool:
    """Whether the text has the form of a semantic version, with numbers of any size."""
    return _SYNTAX.fullmatch(text) is not None


def parse_time(text: object) -> datetime | None:
    """The moment; None if the text is missing, malformed, names no zone, or means a year that is none in UTC."""
    try:
        moment = datetime.fromisoformat(text) if isinstance(text, str) else None
        if moment is not None and moment.year in (MINYEAR, MAXYEAR):
            moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return moment if moment is not None and moment.tzinfo is not None else None


def format_time(moment: datetime) -> str:
    """The text for a moment with a zone."""
    return _text(moment, "seconds")


def now() -> str:
    """Return the present time as the API writes it: RFC 3339, whole seconds, UTC."""
    return format_time(datetime.now(UTC))


def format_micro_time(moment: datetime) -> str:
    """The same with microseconds."""
    return _text(moment, "microseconds")


def _text(moment: datetime, timespec: str) -> str:
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec=timespec) + "Z"  # four digits for any year


def same(one: Any, other: Any) -> bool:
    """Whether two structs (or parts of structs) mean the same."""
    if one is other:
        return True
    if isinstance(one, Struct) and type(one) is type(other):
        return all(same(getattr(one, name), getattr(other, name)) for name in one.__struct_fields__)
    if isinstance(one, tuple | None) and isinstance(other, tuple | None):
        one, other = one or (), other or ()
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict | None) and isinstance(other, dict | None):
        one, other = one or {}, other or {}
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, Raw) and isinstance(other, Raw):
        return bytes(one) == bytes(other)
    return bool(one == other)
