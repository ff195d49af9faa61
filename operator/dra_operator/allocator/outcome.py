"""What a decision can end with (allocator.md section 1, scheduling.md 4.2).

| Outcome | Meaning for the caller |
|---|---|
| ``Allocated`` | one result per claim, in the order of the claims |
| ``Refused`` | these claims do not fit this node |
| ``NodeFailure`` | the same, and invalid pools were met on the way; other nodes may still fit |
| ``Failed`` | bad input (claim, class, selector, slice): the attempt ends for all nodes, or for this one only |
| ``GaveUp`` | the budget of steps is spent: whether it fits is not known |
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from dra_api.resource import AllocationResult
from dra_ledger.errors import AllocationError

from dra_operator.wording import counted

from .refusal import Refusal


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which subrequest of a ``firstAvailable`` request was used; ``index`` 0 is the most preferred."""

    claim: int
    request: str
    index: int


@dataclass(frozen=True, slots=True)
class Allocated:
    """Success. ``chosen`` lists the requests with alternatives, for the score of the node (scheduling.md 4.4)."""

    node: str
    results: tuple[AllocationResult, ...]
    chosen: tuple[Chosen, ...] = ()
    steps: int = 0

    @property
    def score(self) -> int:
        """Raw score of the node: 8 minus the index of each chosen subrequest, summed (scheduling.md 4.4)."""
        return sum(8 - choice.index for choice in self.chosen)


class Explain(Protocol):
    """Works out why a problem has no solution."""

    def __call__(self, *, hints: bool = True) -> Refusal:
        """``hints``: also what would help."""


@dataclass(frozen=True, eq=False)
class Unfit:
    """The claims do not fit the node. Why is worked out when it is asked for: mostly another node fits.

    ``explain`` looks at what the decision was made from, which never changes, so the answer is always the same.
    """

    node: str
    explain: Explain
    steps: int = 0

    @cached_property
    def refusal(self) -> Refusal:
        """Which request could not be served, and what was in the way."""
        return self.explain()

    @cached_property
    def outline(self) -> Refusal:
        """The refusal without its hints, which take as long as all the rest: for comparing many nodes."""
        return self.explain(hints=False)


class Refused(Unfit):
    """The claims do not fit the node; the refusal says why."""


class NodeFailure(Unfit):
    """The claims do not fit, and pools of the node are invalid: repairing them may help."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The claims cannot be decided; ``error`` names claim, class, selector or slice."""

    node: str
    error: AllocationError
    steps: int = 0
    is_of_node: bool = False
    """The fault is in what this node sees: another node may do. Otherwise no node is tried any more."""


@dataclass(frozen=True, slots=True)
class GaveUp:
    """The search was stopped by its budget after so many steps, without an answer."""

    node: str
    steps: int = 0

    @property
    def text(self) -> str:
        """What happened and what helps, without the node."""
        return (
            f"gave up after {counted(self.steps, 'step')} without an answer: the requests can be combined in too many "
            "ways; ask for fewer devices in one claim, or loosen its constraints"
        )

    def __str__(self) -> str:
        return f"node {self.node}: {self.text}"


Outcome = Allocated | Refused | NodeFailure | Failed | GaveUp
