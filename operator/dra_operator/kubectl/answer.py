"""The answer of a command, and how people name objects on the command line.

An answer has tables or lines for people, the same as values for programs, and the exit code.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, Generic, NamedTuple, TypeVar

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
    repeats: Callable[[T], bool] = lambda _: False
    """Whether another cell of the line says the same: if so in all lines, only ``-o wide`` has the column."""
    keeps_end: bool = False
    """A cell that is too long for the terminal loses its beginning: the end of a device's id still names it."""


@dataclass(frozen=True)
class Table(Generic[T]):
    """``items`` in the order of the lines; ``name`` is what ``-o name`` prints of one: ``TYPE/NAME``."""

    columns: Sequence[Column[T]]
    items: Sequence[T]
    name: Callable[[T], str]
    none: str = "No resources found"
    """What a person is told when there are no items."""
    kind: str = "Item"
    """``kind`` of an item in JSON, beside ``apiVersion``."""
    labels: Callable[[T], Mapping[str, str] | None] | None = None
    """What ``--show-labels`` shows, or None if the items have no labels."""


@dataclass(frozen=True, slots=True)
class Answer:
    """``value`` is what programs get, by default the items of the table. ``notes`` go to standard error."""

    table: Table[Any] | None = None
    lines: Iterable[str] = ()
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
    **dict.fromkeys(("rs", "replicaset", "replicasets"), "replicaset"),
    **dict.fromkeys(("rc", "replicationcontroller", "replicationcontrollers"), "replicationcontroller"),
    **dict.fromkeys(("sts", "statefulset", "statefulsets"), "statefulset"),
    **dict.fromkeys(("ds", "daemonset", "daemonsets"), "daemonset"),
    **dict.fromkeys(("job", "jobs"), "job"),
    **dict.fromkeys(("cj", "cronjob", "cronjobs"), "cronjob"),
    **dict.fromkeys(("podgroup", "podgroups"), "podgroup"),
    **dict.fromkeys(("wl", "workload", "workloads"), "workload"),
}
"""What kubectl and people call the kinds; kubectl prints ``resourceclaim.resource.k8s.io``."""


class Target(NamedTuple):
    """What a person names; ``namespace`` is None where the words have none, and ``kind`` is empty where they have none:
    then a pod is meant or, if there is none of that name, a claim."""

    kind: str
    name: str
    namespace: str | None


def kind_of(word: str) -> str:
    """The kind that a word means; an unknown word stays as it is, for the message."""
    return _CALLED.get(word.lower().partition(".")[0], word)


def target_of(words: Sequence[str], kinds: Collection[str]) -> Target:
    """Return what ``TYPE/NAME``, ``TYPE NAME``, ``NAME``, ``NAMESPACE/NAME`` or ``TYPE/NAMESPACE/NAME`` means.

    Answers print pods and claims in these ways, so all of them can be typed. Raises Problem.
    """
    kind, slash, name = words[0].partition("/")
    is_kind = kind_of(kind) in kinds
    if slash and not is_kind and kind_of(kind) in _CALLED:
        raise Problem(f"{words[0]!r}: expected TYPE/NAME, where TYPE is one of {', '.join(kinds)}", ExitCode.USAGE)
    if not is_kind:  # a pod, with its namespace or without
        kind, slash, name = "", "/", words[0]
    elif not slash:
        name = words[1] if len(words) == 2 else ""
    if len(words) > 2 - len(slash) and not is_kind:
        raise Problem(f"{words[0]!r}: expected TYPE NAME, where TYPE is one of {', '.join(kinds)}", ExitCode.USAGE)
    if not name or len(words) > 2 - len(slash):
        raise Problem(f"{' '.join(words)!r}: expected one name, as in {kind}/NAME", ExitCode.USAGE)
    namespace, slash, rest = name.partition("/")
    if slash and (not namespace or not rest or "/" in rest):
        raise Problem(f"{name!r}: expected NAME or NAMESPACE/NAME", ExitCode.USAGE)
    return Target(kind_of(kind), rest or namespace, namespace if slash else None)
