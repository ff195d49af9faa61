"""How far a search may look ahead: up to the first stage at which a fatal error may be met.

A branch may be cut for what comes before that stage: when this cannot be served, the error is not met either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dra_api.resource import MOST_RESULTS

from dra_operator.allocator.problem.domain import Domain
from dra_operator.allocator.problem.problem import Problem


def find_error_horizons(problem: Problem) -> list[int]:
    """For each stage the first one from there on at which a fatal error may be met; the end when there is none."""
    reached, end = problem.reached, len(problem.domains)
    fallible = {stage for stage, domains in enumerate(reached) if not all(domain.cannot_raise for domain in domains)}
    fallible |= _limited(reached, {reached[stage][0].claim for stage in fallible})
    horizons = [end] * (end + 1)
    for stage in reversed(range(len(reached))):
        horizons[stage] = stage if stage in fallible else horizons[stage + 1]
    return horizons


def _limited(stages: Sequence[tuple[Domain, ...]], claims: set[int]) -> set[int]:
    """The stages of those of the claims that may exceed the limit of results.

    Exceeding it abandons the request before, which may keep the search from a device that raises. A branch that is
    cut does not tell whether it would have ended so.
    """
    most = Counter[int]()
    for domains in stages:
        most[domains[0].claim] += max(domain.need for domain in domains)
    claims = {claim for claim in claims if most[claim] > MOST_RESULTS}
    return {stage for stage, domains in enumerate(stages) if domains[0].claim in claims}
