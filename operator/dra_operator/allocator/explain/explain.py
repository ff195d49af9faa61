"""Turns a failed problem into a Refusal: which request is the obstacle, which check took its devices, what helps.

The obstacle is the first request that cannot even be served alone. If each can be served alone, the refusal names the
constraint with the largest gap, else the bound that all requests together break, else ``combination``: only the search
knows that nothing fits.
"""

from __future__ import annotations

from itertools import islice

from dra_ledger.basics import each
from dra_ledger.pools import Status

from dra_operator.allocator.problem.domain import Domain
from dra_operator.allocator.problem.problem import Problem
from dra_operator.allocator.refusal import Refusal, RefusedClaim, Rule, Tally

from .hints import hint
from .meant import Meant, meant
from .shortage import Hint, Shortage, losses
from .together import constrained, together

NAMED_DEVICES = 8
"""The most devices in use that a refusal names."""


def refuse(problem: Problem, *, hints: bool = True) -> Refusal:
    """The refusal of a problem without solution. It has a request, because claims without requests always fit.

    Without ``hints`` it says of a request that is short of devices which one, and not more: for comparing nodes.
    """
    for domains in problem.domains:
        if all(domain.short for domain in domains):
            known = [domain for domain in domains if domain.fault is None]
            closest = max(known, key=lambda domain: domain.usable.bit_count() - domain.need)
            return _shortage(problem, closest, len(domains), hints=hints)
    for domains in problem.domains:
        for domain in domains:
            for constraint in domain.comparing:
                found = constrained(problem, domain, constraint)
                if found is not None:
                    needs, why = found
                    return _refusal(problem, domain, meant(problem, domain), Rule.CONSTRAINT, why, needs)
    needs, why = together(problem)
    domain = problem.domains[-1][0]
    return _refusal(problem, domain, meant(problem, domain), Rule.COMBINATION, why, needs)


def _shortage(problem: Problem, domain: Domain, alternatives: int, *, hints: bool) -> Refusal:
    """The first check that left too little is to blame."""
    left = problem.matching(domain)
    lost: list[Tally] = []
    rule, gone = (Rule.SELECTOR, 0) if _is_short(domain, left) else (None, 0)
    for stage, taken in losses(problem, domain):
        left &= ~taken
        lost.append(Tally(stage, taken.bit_count()))
        if rule is None and _is_short(domain, left):
            rule, gone = stage, taken
    offered = meant(problem, domain)
    if not offered.devices:
        is_invalid = any(pool.status is Status.INVALID for pool in offered.troubled)
        rule = Rule.INVALID_POOL if is_invalid else Rule.NO_DEVICES
    assert rule is not None, "a request that is short has lost devices to some check"
    why = hint(Shortage(problem, domain, rule, gone)) if hints else Hint()
    if alternatives > 1:
        why = Hint(f"{why.detail}; the closest of {alternatives} alternatives", why.fix)
    return _refusal(problem, domain, offered, rule, why, lost=tuple(lost))


def _is_short(domain: Domain, left: int) -> bool:
    """Too few devices are left for the request. For a request for all devices: some of them are gone."""
    if domain.collected:
        return bool(domain.collected & ~left)
    return left.bit_count() < max(1, domain.need)


def _refusal(
    problem: Problem,
    domain: Domain,
    offered: Meant,
    rule: Rule,
    why: Hint,
    needs: int = 0,
    lost: tuple[Tally, ...] = (),
) -> Refusal:
    siblings = next(domains for domains in problem.domains if domain in domains)
    faults = "".join(f"; {one.fault}" for one in siblings if one.fault is not None)
    matching = problem.matching(domain)
    busy = matching & problem.view.here & problem.node.in_use if not domain.alternative.admin else 0
    return Refusal(
        node=problem.view.name,
        rule=rule,
        claim=RefusedClaim(problem.program.claims[domain.claim].key),
        request=domain.alternative.request,
        needs=needs or max(1, domain.need),
        devices=offered.devices,
        matching=matching.bit_count(),
        lost=lost,
        detail=why.detail + faults,
        fix=why.fix,
        pools=_pools(offered),
        held=tuple(problem.view.id(device) for device in islice(each(busy), NAMED_DEVICES)),
        names_driver=offered.names_driver,
        mixed=offered.mixed,
    )


def _pools(offered: Meant) -> tuple[str, ...]:
    return (*(pool.complaint for pool in offered.troubled), *map(str, offered.outdated), *map(str, offered.unreadable))
