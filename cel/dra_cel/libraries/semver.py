"""Semantic versions: ``semver("1.2.3")``, ``semver("v1.2", true)`` and their order."""

from __future__ import annotations

from typing import Any, Final

from dra_api.cache import remember_short
from dra_api.values import Version, VersionError

from dra_cel.basics.declarations import Function, glob, method, succeeds, traversal
from dra_cel.basics.errors import EvaluationError
from dra_cel.basics.types import BOOL, INT, SEMVER, STRING
from dra_cel.basics.values import Opaque


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
def parse(text: str, normalize: bool = False) -> SemverValue:
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


def _compare(left: SemverValue, right: SemverValue) -> int:
    return (left.precedence > right.precedence) - (left.precedence < right.precedence)


_PAIR: Final = (SEMVER, SEMVER)
_PARSING: Final = traversal()
_FORMS: Final = ((STRING,), (STRING, BOOL))
LIBRARY: Final = (
    Function("semver", tuple(glob(params, SEMVER, parse, _PARSING) for params in _FORMS)),
    Function(
        "isSemver", tuple(glob(params, BOOL, succeeds(parse), _PARSING) for params in ((STRING,), (STRING, BOOL)))
    ),
    Function(
        "isGreaterThan",
        (method(_PAIR, BOOL, lambda a, b: a.precedence > b.precedence, inline="({0}.precedence > {1}.precedence)"),),
    ),
    Function(
        "isLessThan",
        (method(_PAIR, BOOL, lambda a, b: a.precedence < b.precedence, inline="({0}.precedence < {1}.precedence)"),),
    ),
    Function("compareTo", (method(_PAIR, INT, _compare, against_zero="({0}.precedence {2} {1}.precedence)"),)),
    Function("major", (method((SEMVER,), INT, lambda v: v.version.major),)),
    Function("minor", (method((SEMVER,), INT, lambda v: v.version.minor),)),
    Function("patch", (method((SEMVER,), INT, lambda v: v.version.patch),)),
)
