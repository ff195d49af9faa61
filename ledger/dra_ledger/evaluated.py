"""What the selectors evaluated on one slice have said so far.

A class of its own, and never compiled: ``KeptVerdicts`` refers to it weakly, which mypyc's classes do not allow.
"""

from __future__ import annotations

from .basics import Expressions
from .evaluation import Evaluation
from .predicates import Verdicts


class Evaluated:
    """``begun``: evaluations that are not at their end yet. ``failures``: costly selectors, by the device's index."""

    __slots__ = ("__weakref__", "begun", "failures", "verdicts")

    def __init__(self) -> None:
        self.verdicts: dict[Expressions, Verdicts] = {}
        self.begun: dict[Expressions, Evaluation] = {}
        self.failures: dict[Expressions, dict[int, tuple[str, Exception]]] = {}

    def drop(self, expressions: Expressions) -> None:
        """Forget what these selectors say: others need the room."""
        for known in (self.verdicts, self.begun, self.failures):
            known.pop(expressions, None)
