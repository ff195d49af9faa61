"""Values of fields beside quantities: strict semantic versions, times, and equality as the API server defines it.

Rules about immutable fields use that equality: an empty list or map equals an absent one, ``1000m`` equals ``1``, so
that a client may write ``[]`` for an absent list. Times are RFC 3339 in UTC, with whole seconds, or microseconds in a
Lease.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import total_ordering
from typing import Any, Final

from msgspec import Raw, Struct

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
    """The moment; None if the text is missing, malformed, or names no zone."""
    try:
        moment = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return moment if moment is not None and moment.tzinfo is not None else None


def format_time(moment: datetime) -> str:
    """The text for a moment with a zone."""
    return _text(moment, "seconds")


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
