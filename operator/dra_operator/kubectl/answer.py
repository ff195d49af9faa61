"""What a command answers (tables or lines for people, the same as values for programs, and the exit code), and how
people name objects on the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, Generic, TypeVar

from msgspec import Struct

T = TypeVar("T")


class ExitCode(IntEnum):
    """The exit codes of ``kubectl dra``; they are stable."""

    CLEAR = 0
    """Nothing is in the way."""
    FAILED = 1
    """There is no such object, or the server cannot be used."""
    USAGE = 2
    """Wrong words, settings or files."""
    IN_THE_WAY = 3
    """Something keeps what was asked about from running."""


class Problem(Exception):
    """The command cannot answer; the message says why and what to do."""

    def __init__(self, message: str, code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.code = code


class Fact(Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of what tables show and ``-o json`` prints. The names of fields are stable."""


@dataclass(frozen=True)
class Column(Generic[T]):
    """``text`` makes a cell; ``wide``: only with ``-o wide``; ``colour`` names one, or is empty."""

    title: str
    text: Callable[[T], object]
    wide: bool = False
    colour: Callable[[T], str] = lambda _: ""


@dataclass(frozen=True)
class Table(Generic[T]):
    """``items`` in the order of the lines; ``name`` is what ``-o name`` prints of one: ``TYPE/NAME``."""

    columns: Sequence[Column[T]]
    items: Sequence[T]
    name: Callable[[T], str]
    none: str = "No resources found"
    """What a person is told when there are no items."""


@dataclass(frozen=True, slots=True)
class Answer:
    """``value`` is what programs get, by default the items of the table. ``notes`` go to standard error."""

    table: Table[Any] | None = None
    lines: Sequence[str] = ()
    value: Any = None
    names: Sequence[str] = ()
    """What ``-o name`` prints if there is no table."""
    notes: Sequence[str] = field(default=())
    code: ExitCode = ExitCode.CLEAR


_CALLED: Final = {
    **dict.fromkeys(("po", "pod", "pods"), "pod"),
    **dict.fromkeys(("claim", "claims", "resourceclaim", "resourceclaims"), "claim"),
    **dict.fromkeys(("no", "node", "nodes"), "node"),
    **dict.fromkeys(("deploy", "deployment", "deployments"), "deployment"),
    **dict.fromkeys(("job", "jobs"), "job"),
}
"""What kubectl and people call the kinds; kubectl prints ``resourceclaim.resource.k8s.io``."""


def kind_of(word: str) -> str:
    """The kind that a word means; an unknown word stays as it is, for the message."""
    return _CALLED.get(word.lower().partition(".")[0], word)


def target_of(words: Sequence[str], kinds: Collection[str]) -> tuple[str, str]:
    """Kind and name that ``TYPE/NAME`` or ``TYPE NAME`` means. Raises Problem."""
    kind, slash, name = words[0].partition("/")
    if not slash:
        name = words[1] if len(words) == 2 else ""
    if kind_of(kind) not in kinds:
        raise Problem(f"{words[0]!r}: expected TYPE/NAME, where TYPE is one of {', '.join(kinds)}", ExitCode.USAGE)
    if not name or len(words) > 2 - len(slash):
        raise Problem(f"{' '.join(words)!r}: expected one name, as in {kind}/NAME", ExitCode.USAGE)
    if "/" in name:
        raise Problem(f"{name!r}: a name has no slash; give the namespace by -n", ExitCode.USAGE)
    return kind_of(kind), name
