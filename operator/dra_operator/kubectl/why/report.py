"""The report on a pod or claim: lines for people, whether anything is in the way, and the fixes that were proven."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from .fixes.change import Fix


@dataclass(slots=True)
class Report:
    """Lines are added in the order in which they are read."""

    lines: list[str] = field(default_factory=list)
    is_clear: bool = True
    fixes: list[Fix] = field(default_factory=list)

    def say(self, *lines: str, indent: int = 0) -> None:
        """More lines."""
        self.lines += [" " * indent + line for line in lines]

    def add(self, lines: Iterable[str], indent: int = 2) -> None:
        """More lines, below what was said."""
        self.say(*lines, indent=indent)

    def object_to(self, *lines: str, indent: int = 2) -> None:
        """Lines about something that is in the way."""
        self.is_clear = False
        self.say(*lines, indent=indent)

    def take_in(self, other: Report, indent: int = 0) -> None:
        """The report on something that this depends on."""
        self.add(other.lines, indent)
        self.is_clear = self.is_clear and other.is_clear
        self.fixes += other.fixes
