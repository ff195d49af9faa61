"""What can go wrong with an expression, as one tree of exceptions.

::

    CelError                      kind, message
    ├── CompileError              the author's fault: issues with line and column
    └── EvaluationError           the expression met values it cannot handle
        └── EvaluationStopped     evaluation was cut off, so there is no answer: nothing absorbs it
            └── CostLimitExceeded

``kind`` is a stable word for programs (``syntax``, ``no-such-key``, ``cost-limit``, ...); the message is for people.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter


@dataclass(frozen=True, slots=True)
class Issue:
    """One complaint of the compiler. ``line`` counts from 1, ``column`` (in code points) from 1."""

    line: int
    column: int
    kind: str
    message: str

    @property
    def place(self) -> tuple[int, int]:
        return self.line, self.column

    def __str__(self) -> str:
        return f"{self.line}:{self.column}: {self.message}"


def in_order(issues: Iterable[Issue]) -> tuple[Issue, ...]:
    """Issues in the order of the text; those about the same place in the order in which they were found."""
    return tuple(sorted(issues, key=attrgetter("place")))


class CelError(Exception):
    """Base of everything this package raises on purpose."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


class CompileError(CelError):
    """The expression is not acceptable; ``issues`` lists every complaint in the order of the text."""

    def __init__(self, issues: tuple[Issue, ...], expression: str = "") -> None:
        super().__init__(issues[0].kind, "; ".join(str(issue) for issue in issues))
        self.issues = issues
        self.expression = expression

    @property
    def position(self) -> tuple[int, int]:
        """Line and column of the first complaint, both counted from 1."""
        return self.issues[0].place

    def excerpt(self) -> str:
        """The first complaint under the line of the expression that it is about, with a caret."""
        issue = self.issues[0]
        lines = self.expression.split("\n")
        line = lines[issue.line - 1] if issue.line <= len(lines) else ""
        start = max(0, issue.column - 60)
        return f"{issue.message}\n | {line[start : start + 100]}\n | {' ' * (issue.column - 1 - start)}^"


class EvaluationError(CelError):
    """Evaluation failed: a missing key, a value of the wrong type, a number out of range, ..."""


class EvaluationStopped(EvaluationError):
    """Evaluation was stopped for good. ``&&``, ``||`` and loops absorb other errors, but not this one.

    It stands for a limit that was exceeded, and for what makes the reference panic ("internal error").
    """


class CostLimitExceeded(EvaluationStopped):
    """Evaluation was stopped because it became too expensive (in cost units, or in memory)."""

    def __init__(self, message: str) -> None:
        super().__init__("cost-limit", message)
