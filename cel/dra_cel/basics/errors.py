"""The errors of expressions, as one tree of exceptions; and the limits on stack and time that stop an evaluation.

::

    CelError                      kind, message
    ├── CompileError              the author's fault: issues with line and column
    └── EvaluationError           the expression met values it cannot handle
        └── EvaluationStopped     evaluation was cut off, so there is no answer: nothing absorbs it
            └── CostLimitExceeded

``kind`` is a stable word for programs (``syntax``, ``no-such-key``, ``cost-limit``, ...); the message is for people.

Expressions may nest deeper than Python's recursion limit allows. Every pass over the tree is therefore written
as a generator that *yields* the recursive calls it wants made and is handed their results::

    def height(node):
        return 1 + max([(yield height(child)) for child in node.children], default=0)

    walk(height(tree))

``walk`` keeps the pending generators on a list. An exception ends the whole walk.

Effort is a limit on work that costs do not cover. The reference charges one unit for comparing two lists of any depth,
and nothing for the output of ``format``. Lists may share their elements, so that work can be exponential in the
length of the expression. Implementations whose work depends on the depth of their operands therefore spend effort here.
Each evaluation by the machine starts afresh, and so does each compilation of an expression with its patterns. An
evaluation that is put aside takes its account along (``suspend_effort``) and brings it back
(``resume_effort``).
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeVar


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


T = TypeVar("T")
Walk = Generator[Any, Any, T]


def walk(generator: Walk[T]) -> T:
    """Run a generator and everything that it yields; the result is what it returns."""
    pending: list[Walk[Any]] = [generator]
    result: Any = None
    while pending:
        try:
            child = pending[-1].send(result)
        except StopIteration as done:
            pending.pop()
            result = done.value
        else:
            pending.append(child)
            result = None
    return result  # type: ignore[no-any-return]  # the last value returned is the outermost generator's


EFFORT_STEPS: Final = 500_000
"""Elementary steps of one evaluation; about a second."""


class Account(NamedTuple):
    """What is left of the effort, and what was paid once."""

    left: int
    paid: set[str]


class _Budget(threading.local):
    def __init__(self) -> None:
        self.left = EFFORT_STEPS
        self.paid: set[str] = set()


_budget: Final = _Budget()


def begin_effort() -> None:
    """A new evaluation or compilation starts in this thread."""
    _budget.left = EFFORT_STEPS
    _budget.paid = set()


def suspend_effort() -> Account:
    """What the evaluation under way has left."""
    return Account(_budget.left, _budget.paid)


def resume_effort(account: Account) -> None:
    """The evaluation with this account goes on in this thread."""
    _budget.left, _budget.paid = account


def spend_once(what: str, steps: int) -> None:
    """Note work that an evaluation does once, such as compiling a pattern, whether or not an earlier one has done it:
    the verdict must not depend on what is remembered. Raises CostLimitExceeded."""
    if what not in _budget.paid:
        spend(steps)
        _budget.paid.add(what)


def spend(steps: int) -> None:
    """Note the work done. Raises CostLimitExceeded when it becomes too much."""
    _budget.left -= steps
    if _budget.left < 0:
        raise CostLimitExceeded("comparing, printing or matching the values takes too long")
