"""How far a search may look ahead: up to the first step at which a fatal error may be met.

A branch may be cut for what comes before that step: when this cannot be served, the error is not met either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dra_api.resource import RESULTS_LIMIT

from dra_operator.allocator.problem.domain import Domain
from dra_operator.allocator.problem.problem import Problem


def find_error_horizons(problem: Problem) -> list[int]:
    """For each step the first one from there on at which a fatal error may be met; the end when there is none."""
    reached, end = problem.reached, len(problem.domains)
    fallible = {step for step, domains in enumerate(reached) if not all(domain.cannot_raise for domain in domains)}
    fallible |= _limited(reached, {reached[step][0].claim for step in fallible})
    horizons = [end] * (end + 1)
    for step in reversed(range(len(reached))):
        horizons[step] = step if step in fallible else horizons[step + 1]
    return horizons


def _limited(steps: Sequence[tuple[Domain, ...]], claims: set[int]) -> set[int]:
    """The steps of those of the claims that may exceed the limit of results.

    Exceeding it abandons the request before, which may keep the search from a device that raises. A branch that is
    cut does not tell whether it would have ended so.
    """
    most = Counter[int]()
    for domains in steps:
        most[domains[0].claim] += max(domain.need for domain in domains)
    claims = {claim for claim in claims if most[claim] > RESULTS_LIMIT}
    return {step for step, domains in enumerate(steps) if domains[0].claim in claims}
