"""What a check is, and the list of all checks.

A check is a function with a docstring; the decorator enters it under the name of its file and its own::

    @check("KM-14", "PH-08")
    async def answers_each_claim(bench: Bench) -> None:
        \"\"\"What a user reads in the report: the rule, and what happens to pods otherwise.\"\"\"

It returns if the driver is fine and raises Finding if not, NotJudged if the driver has too few devices for it, and
Skipped if it does not apply.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase

from .errors import BenchError
from .harness.bench import Bench

Function = Callable[[Bench], Awaitable[None]]


class Level(StrEnum):
    """How bad a finding is."""

    MUST = "must"  # pods fail, get a wrong device, or leave something behind
    SHOULD = "should"  # nothing breaks at once; good drivers do it


@dataclass(frozen=True, slots=True)
class Check:
    """One check."""

    name: str
    explanation: str
    references: tuple[str, ...]
    level: Level
    registered: bool
    restarts: bool
    overlaps: bool
    spoils: bool
    waits: bool
    run: Function

    @property
    def summary(self) -> str:
        """The first sentence of the explanation."""
        return self.explanation.partition("\n")[0]


_CHECKS: dict[str, Check] = {}


def check(
    *references: str,
    level: Level = Level.MUST,
    registered: bool = True,
    restarts: bool = False,
    overlaps: bool = False,
    spoils: bool = False,
    waits: bool = False,
) -> Callable[[Function], Function]:
    """Enter a check.

    ``registered``: the driver is registered when the check begins. ``restarts``: it is skipped for a driver that the
    bench did not start. ``overlaps``: it needs two instances side by side. ``spoils``: it damages the driver's
    records, and the next check needs a fresh node. ``waits``: it takes long, and a quick run leaves it out.
    """

    def enter(function: Function) -> Function:
        noun = function.__module__.rpartition(".")[2]
        name = f"{noun}.{function.__name__}".replace("_", "-")
        explanation = inspect.cleandoc(function.__doc__ or "")
        _CHECKS[name] = Check(
            name,
            explanation,
            references,
            level,
            registered,
            restarts or overlaps or spoils,
            overlaps,
            spoils,
            waits,
            function,
        )
        return function

    return enter


def entered() -> list[Check]:
    """The checks that were entered by now, in that order."""
    return list(_CHECKS.values())


def chosen(checks: list[Check], patterns: list[str]) -> list[Check]:
    """The checks whose name a pattern such as ``prepare.*`` fits; all without patterns. Raises BenchError."""
    for pattern in patterns:
        if not any(fnmatchcase(one.name, pattern) for one in checks):
            raise BenchError(f"no check fits {pattern!r}; --list shows the names")
    return [one for one in checks if not patterns or any(fnmatchcase(one.name, pattern) for pattern in patterns)]
