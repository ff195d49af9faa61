"""What makes a history of a seed: its script, which is played, and the outcome."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple, Protocol, Self


class Step(NamedTuple):
    """``what`` happens at a time, to ``subject``; what ``number`` means, depends on that."""

    at: float
    what: str
    subject: str = ""
    number: float = 0

    def __str__(self) -> str:
        return f"{self.at:9.3f}  {self.what} {self.subject} {self.number:g}"


class Steps(Protocol):
    """A script: a named tuple whose text says what is there at the beginning."""

    @property
    def steps(self) -> tuple[Step, ...]:
        """What happens, in order."""

    def _replace(self, *, steps: tuple[Step, ...]) -> Self: ...


class Outcome(NamedTuple):
    """``findings`` is empty if all went well; ``strikes`` are the faults of single requests and events."""

    findings: tuple[str, ...]
    strikes: tuple[str, ...]
    trace: tuple[str, ...] = ()


class Play(Protocol):
    """Plays the history of a seed, or that of another script and of fewer strikes in the same weather."""

    def __call__(
        self, seed: int, script: Any = None, only: Collection[str] | None = None, *, traced: bool = False
    ) -> Outcome: ...


class Game(NamedTuple):
    """``name`` is that of the package; ``script_of`` makes a script, ``play`` plays one."""

    name: str
    script_of: Callable[[int], Any]
    play: Play
