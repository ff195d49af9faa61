"""From a failed problem to a Refusal: which request was the obstacle, and what took its devices away."""

from __future__ import annotations

from .domain import Domain, Problem
from .refusal import Refusal, Rule, Tally


def refuse(problem: Problem) -> Refusal:
    """The refusal of a problem without solution."""
    view = problem.view
    pools = tuple(f"{pool.pool} is {pool.status.value}" for pool in view.troubled)
    for domains in problem.domains:
        shortages = [domain for domain in domains if _short(domain)]
        if len(shortages) == len(domains) and domains:
            return _of_domain(problem, shortages[0], pools)
    last = problem.domains[-1][0] if problem.domains else None
    if last is None:
        return Refusal(view.name, Rule.INVALID_POOL if view.invalid else Rule.NO_DEVICES, pools=pools)
    return _of_domain(problem, last, pools)


def _short(domain: Domain) -> bool:
    """The domain alone has too few devices."""
    if domain.alternative.everything:
        return not domain.collected or bool(domain.collected & ~domain.usable)
    return domain.usable.bit_count() < domain.need


def _of_domain(problem: Problem, domain: Domain, pools: tuple[str, ...]) -> Refusal:
    lost: list[Tally] = []
    before = problem.view.everything
    rule = Rule.COMBINATION
    matching = 0
    for stage, left in domain.stages:
        gone = (before & ~left).bit_count()
        if gone and stage is not Rule.NO_DEVICES:
            lost.append(Tally(stage, gone))
        if before.bit_count() >= max(1, domain.need) > left.bit_count() and rule is Rule.COMBINATION:
            rule = stage
        if stage is Rule.SELECTOR:
            matching = left.bit_count()
        before = left
    return Refusal(
        node=problem.view.name,
        rule=rule,
        claim=problem.plan.claims[domain.claim].key,
        request=domain.alternative.request,
        needs=max(1, domain.need),
        devices=len(problem.view.devices),
        matching=matching,
        lost=tuple(lost),
        pools=pools,
    )
