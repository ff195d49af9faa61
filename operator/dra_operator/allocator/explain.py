"""From a failed problem to a Refusal: which request was the obstacle, what took its devices away, what helps.

The first request that cannot even be served alone is the obstacle. When each could be served alone, the
constraint with the largest gap is named, then the bound that all requests together break; what is left is
``combination``: only the search knows that nothing fits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from dra_api.quantity import Quantity

from .bits import each
from .constraints import Constraint, Distinct
from .domain import Domain
from .problem import Problem
from .refusal import Refusal, Rule, Tally
from .taints import blocking


def refuse(problem: Problem) -> Refusal:
    """The refusal of a problem without solution."""
    for domains in problem.domains:
        if domains and all(domain.short for domain in domains):
            return _shortage(problem, max(domains, key=lambda domain: domain.usable.bit_count() - domain.need))
    for domains in problem.domains:
        for domain in domains:
            for constraint in domain.constraints:
                found = _constrained(problem, domain, constraint)
                if found is not None:
                    return found
    if not problem.domains:
        return Refusal(problem.view.name, Rule.NO_DEVICES, pools=_pools(problem))
    return _together(problem)


def _shortage(problem: Problem, domain: Domain) -> Refusal:
    everything = problem.view.everything
    before = everything if domain.alternative.everything else _matching(problem, domain)
    lost: list[Tally] = []
    rule = Rule.SELECTOR if before.bit_count() < max(1, domain.need) else Rule.COMBINATION
    for stage, left in domain.stages:
        gone = (before & ~left).bit_count()
        before &= left
        if gone:
            lost.append(Tally(stage, gone))
            if rule is Rule.COMBINATION and (before.bit_count() < domain.need or domain.alternative.everything):
                rule = stage
    if not everything:
        rule = Rule.INVALID_POOL if problem.view.invalid else Rule.NO_DEVICES
    return _refusal(problem, domain, rule, tuple(lost), fix=_fix(problem, domain, rule))


def _constrained(problem: Problem, domain: Domain, constraint: Constraint) -> Refusal | None:
    """The constraint alone, over all requests that certainly fall under it, has too few devices or values."""
    bound = [
        domains for domains in problem.domains if domains and all(constraint in other.constraints for other in domains)
    ]
    need = sum(min(other.need for other in domains) for domains in bound) or domain.need
    devices = domain.usable if not bound else _union(other for domains in bound for other in domains)
    attribute = constraint.column.attribute
    sizes = {value: (devices & having).bit_count() for value, having in constraint.column.having.items()}
    if devices & problem.view.shareable:
        return None
    if isinstance(constraint, Distinct):
        values = sum(1 for size in sizes.values() if size)
        if values >= need:
            return None
        detail = f"with distinct {attribute}, there are {values} values"
    else:
        best = max(sizes.values(), default=0)
        if best >= need:
            return None
        detail = f"with equal {attribute}, best value has {best}"
    return _refusal(problem, domain, Rule.CONSTRAINT, (), needs=need, detail=detail)


def _together(problem: Problem) -> Refusal:
    last = problem.domains[-1][0]
    need = sum(min(domain.need for domain in domains) for domains in problem.domains)
    devices = _union(domain for domains in problem.domains for domain in domains)
    detail = f"for all {len(problem.domains)} requests together" if len(problem.domains) > 1 else "together"
    if not devices & problem.view.shareable and devices.bit_count() < need:
        detail += f", {devices.bit_count()} are suitable"
    left = Counter[str]()
    for table in problem.counters:
        left.update(table.left_by_name())
    if left:
        amounts = ", ".join(f"{kind} {_number(amount)}" for kind, amount in sorted(left.items()))
        detail += f"; shared counters left: {amounts}"
    return _refusal(problem, last, Rule.COMBINATION, (), needs=need, detail=detail)


def _refusal(
    problem: Problem,
    domain: Domain,
    rule: Rule,
    lost: tuple[Tally, ...],
    *,
    needs: int = 0,
    detail: str = "",
    fix: str = "",
) -> Refusal:
    return Refusal(
        node=problem.view.name,
        rule=rule,
        claim=f"claim {problem.plan.claims[domain.claim].key}",
        request=domain.alternative.request,
        needs=needs or max(1, domain.need),
        devices=len(problem.view.devices),
        matching=_matching(problem, domain).bit_count(),
        lost=lost,
        detail=detail,
        fix=fix,
        pools=_pools(problem),
    )


def _fix(problem: Problem, domain: Domain, rule: Rule) -> str:
    """The nearest change that would make the request fit, as far as one look tells."""
    missing = max(1, domain.need) - domain.usable.bit_count()
    if rule is Rule.IN_USE:
        return f"wait until {max(1, missing)} more of the matching devices are free"
    if rule is Rule.TAINTS:
        return f"tolerate the taint {_taint(problem, domain)}, or have it removed"
    if rule is Rule.SELECTOR:
        return f"{max(1, missing)} more devices must match the selectors"
    if rule is Rule.BINDING_CONDITIONS:
        return "enable DRADeviceBindingConditions and DRAResourceClaimDeviceStatus"
    if rule in (Rule.NO_DEVICES, Rule.INVALID_POOL) and problem.view.troubled:
        return "have the driver publish complete and valid pools"
    return ""


def _taint(problem: Problem, domain: Domain) -> str:
    counts: Counter[str] = Counter()
    for device in each(_matching(problem, domain) & problem.view.tainted & ~domain.usable):
        taint = blocking(problem.view.devices[device].taints, domain.alternative.tolerations)
        if taint is not None:
            counts[f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"] += 1
    return counts.most_common(1)[0][0] if counts else "of the device"


def _matching(problem: Problem, domain: Domain) -> int:
    return problem.matching(domain) & problem.view.here


def _union(domains: Iterable[Domain]) -> int:
    devices = 0
    for domain in domains:
        devices |= domain.usable
    return devices


def _pools(problem: Problem) -> tuple[str, ...]:
    return tuple(f"pool {view.pool} is {view.status.value}" for view in problem.view.troubled)


def _number(nanos: int) -> str:
    return str(Quantity.from_nanos(nanos, binary=nanos >= 1024 * 10**9))
