"""A request that finds too few devices on a node even alone, and the hint that a look at them gives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from dra_operator.allocator.problem.domain import Domain
from dra_operator.allocator.problem.filters import stages
from dra_operator.allocator.problem.problem import Problem
from dra_operator.allocator.refusal import Rule


class Hint(NamedTuple):
    """``detail`` continues a line that begins with "needs 2"; ``fix`` is the nearest change that would help."""

    detail: str = ""
    fix: str = ""


class Shortage(NamedTuple):
    """``rule`` is the check to blame, ``gone`` the devices that it took away."""

    problem: Problem
    domain: Domain
    rule: Rule
    gone: int

    @property
    def missing(self) -> int:
        """How many more devices are needed."""
        return max(1, self.domain.need - self.domain.usable.bit_count())

    @property
    def request(self) -> str:
        """The request in a sentence."""
        return f"request {self.domain.alternative.request}"


def losses(problem: Problem, domain: Domain) -> Iterator[tuple[Rule, int]]:
    """How many matching devices each check took, in the order of the checks."""
    left = problem.matching(domain)
    for rule, devices in [(Rule.NODE, problem.view.here), *stages(problem.node, domain)]:
        if taken := left & ~devices:
            yield rule, taken
        left &= devices
