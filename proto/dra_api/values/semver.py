"""Strict semantic versions (semver 2.0.0), as device attributes of type ``version`` hold them."""

from __future__ import annotations

import re
from functools import total_ordering
from typing import Final

from dra_api.cache import remember_short

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


@remember_short(2048)
def parse_version(text: str) -> Version:
    """The version of a text, cached."""
    return Version(text)
