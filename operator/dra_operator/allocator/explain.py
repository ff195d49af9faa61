"""Turns a failed problem into a Refusal: which request is the obstacle, which check took its devices, what helps.

The obstacle is the first request that cannot even be served alone. If each can be served alone, the refusal names the
constraint with the largest gap, else the bound that all requests together break, else ``combination``: only the search
knows that nothing fits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, islice

from dra_ledger.basics import each
from dra_ledger.columns import UNKNOWN, Column
from dra_ledger.pools import Status

from dra_operator.allocator.outcome import Refusal, RefusedClaim, Rule, Tally
from dra_operator.allocator.problem.ledgers import Ledger
from dra_operator.allocator.problem.node_state import Domain
from dra_operator.allocator.problem.problem import NodeProblem
from dra_operator.allocator.shortages import Hint, Meant, Shortage, hint, losses, meant, recovery
from dra_operator.wording import amount, counted, listed

Stage = Sequence[Domain]
"""The alternatives of one request."""


def _needs(stages: Iterable[Stage]) -> int:
    """The least that the requests take."""
    return sum(min(domain.need for domain in stage) for stage in stages)


def _union(stages: Iterable[Stage], devices: Callable[[Domain], int]) -> int:
    union = 0
    for stage in stages:
        for domain in stage:
            union |= devices(domain)
    return union


def _usable(stages: Iterable[Stage]) -> int:
    return _union(stages, lambda domain: domain.usable)


# --- one constraint -----------------------------------------------------------------------------


def constrained(problem: NodeProblem, domain: Domain, constraint: Ledger) -> tuple[int, Hint] | None:
    """How many devices the constraint needs but cannot find, over all requests that certainly fall under it."""
    # A request with an alternative outside the constraint may use that, so it proves nothing about this one.
    stages: list[Stage] = [
        stage for stage in problem.domains if all(constraint in other.ledgers for other in stage)
    ] or [(domain,)]
    need, devices = _needs(stages), _usable(stages)
    # A device that can be shared serves several requests: counts prove nothing.
    if devices & problem.node.shareable:
        return None
    hint = None
    if constraint.differs_in is not None:
        hint = _too_few_values(str(constraint), constraint.differs_in, need, devices)
    if constraint.agrees_on is not None and hint is None:
        hint = _too_few_equal(problem, str(constraint), constraint.agrees_on, stages, need, devices)
    return (need, hint) if hint is not None else None


def _too_few_values(constraint: str, column: Column, need: int, devices: int) -> Hint | None:
    values = sum(1 for having in column.having.values() if having & devices)
    if values >= need:
        return None
    found = f" with {constraint}, there {_are(values)} {counted(values, 'value')}"
    return Hint(found, _loosen(values, column.attribute))


def _too_few_equal(
    problem: NodeProblem, constraint: str, column: Column, stages: Sequence[Stage], need: int, devices: int
) -> Hint | None:
    # The value that comes nearest: to have more of it is the smallest change.
    best = max(column.having.items(), key=lambda item: (item[1] & devices).bit_count(), default=(("", ""), 0))
    most = (best[1] & devices).bit_count()
    if most >= need:
        return None
    if lists := (column.with_any(UNKNOWN) & devices).bit_count():
        what = f"{counted(lists, 'device')} {'publishes' if lists == 1 else 'publish'} as a list"
        return Hint(
            f" with {constraint}, which {what}: the feature gate DRAListTypeAttributes is off",
            "enable DRAListTypeAttributes",
        )
    fix = _completed(problem, column, stages, need, devices) or _loosen(most, column.attribute)
    return Hint(f" with {constraint}, best value {_shown(best[0])} has {most}", fix)


def _completed(problem: NodeProblem, column: Column, stages: Sequence[Stage], need: int, devices: int) -> str:
    """How the most frequent value gets enough usable devices, if enough devices match; empty if none can."""
    matching = _union(stages, problem.matching) & problem.view.here
    groups = [(value, having & matching) for value, having in column.having.items()]
    # The value that most usable devices have lacks fewest.
    groups.sort(key=lambda group: -(group[1] & devices).bit_count())
    domains = [domain for stage in stages for domain in stage]
    for value, group in groups:
        if (ready := group.bit_count()) >= need:
            kind = f" of the {ready} matching devices with {column.attribute} {_shown(value)}"
            missing = need - (group & devices).bit_count()
            if fix := recovery(problem, domains, group & ~devices, missing, kind):
                return fix
    return ""


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _loosen(most: int, attribute: str) -> str:
    return f"ask for at most {counted(most, 'device')}, or leave requests out of the constraint on {attribute}"


def _shown(value: tuple[str, object]) -> str:
    return str(value[1]).lower() if isinstance(value[1], bool) else str(value[1])


# --- all requests -------------------------------------------------------------------------------


def together(problem: NodeProblem) -> tuple[int, Hint]:
    """How many devices all requests need, and what is scarce according to sums."""
    # A request for no device is short of none.
    stages = [stage for stage in problem.domains if _needs([stage])]
    need, devices = _needs(stages), _usable(stages)
    others = len(problem.domains) - 1
    detail = f" together with {counted(others, 'other request')}" if others else ""
    found = [*_devices(problem, need, devices), *_counters(problem, stages), *_capacity(problem, stages, devices)]
    fix = _collision(problem, stages) or "ask for fewer devices or smaller amounts, or wait until more are free"
    return need, Hint(detail + (f", {listed(found, 4)}" if found else _ruled_out(problem)), fix)


def _ruled_out(problem: NodeProblem) -> str:
    """The ledgers that the requests fall under: true of any, also where no sum shows what is scarce."""
    rules = listed(dict.fromkeys(map(str, problem.ledgers)))
    return f"; no choice of devices keeps to: {rules}" if rules else ""


def _devices(problem: NodeProblem, need: int, devices: int) -> Iterator[str]:
    count = devices.bit_count()
    # A shared device serves several requests, so a number of devices would prove nothing.
    if not devices & problem.node.shareable and count < need:
        yield f"{count} {_are(count)} suitable"


def _collision(problem: NodeProblem, stages: Sequence[Stage]) -> str:
    """Two requests that want the same devices, too few for both."""
    alone = [(stage, _usable([stage]), _needs([stage])) for stage in stages if _is_exclusive(problem, stage)]
    needs = sorted(need for _, _, need in alone)
    # If the two largest find room in the smallest set, no pair collides: pairs are many where requests are.
    if sum(needs[-2:]) <= min((devices.bit_count() for _, devices, _ in alone), default=0):
        return ""
    for (one, devices, need), (other, others, more) in combinations(alone, 2):
        count = (devices | others).bit_count()
        if need + more > count:
            names = " and ".join(_name(problem, stage[0]) for stage in (one, other))
            return f"{names} want {need + more} of the same {counted(count, 'device')}: ask for fewer, or for others"
    return ""


def _is_exclusive(problem: NodeProblem, stage: Stage) -> bool:
    """No other request can take the devices that this one takes."""
    return not any(domain.alternative.admin or domain.usable & problem.node.shareable for domain in stage)


def _name(problem: NodeProblem, domain: Domain) -> str:
    claim = f" of claim {problem.program.claims[domain.claim].key}" if len(problem.program.claims) > 1 else ""
    return f"request {domain.alternative.request}{claim}"


def _counters(problem: NodeProblem, stages: Sequence[Stage]) -> Iterator[str]:
    left: Counter[str] = Counter()
    by_ledger = {it: it.shared_counters for it in problem.ledgers if it.shared_counters is not None}
    for counters in by_ledger.values():
        left.update(counters.left_by_name())
    if left:
        known: dict[Hashable, Mapping[str, int]] = {}

        def costs(domain: Domain, device: int) -> Mapping[str, int]:
            # Requests mostly draw on the same counters, so the cost of a device is added up once for these.
            drawn = [counters for ledger, counters in by_ledger.items() if ledger in domain.ledgers]
            key = device, *map(id, drawn)
            if key not in known:
                cost = Counter[str]()
                for counters in drawn:
                    cost.update(counters.cost_by_name(device))
                known[key] = cost
            return known[key]

        yield from _scarce("counter", left, stages, costs)


def _capacity(problem: NodeProblem, stages: Sequence[Stage], devices: int) -> Iterator[str]:
    left: Counter[str] = Counter()
    for ledger in problem.ledgers:
        if ledger.consumable_capacity is not None:
            for device in each(devices & problem.node.shareable):
                # An overdrawn device has nothing left; that it lacks more is not the fault of these requests.
                left.update({name: max(0, nanos) for name, nanos in ledger.consumable_capacity.left(device).items()})
    if left:
        yield from _scarce("capacity", left, stages, _share)


def _share(domain: Domain, device: int) -> Mapping[str, int]:
    return {name: quantity.nanos for name, quantity in domain.amounts.get(device, {}).items()}


def _scarce(
    kind: str, left: Mapping[str, int], stages: Iterable[Stage], costs: Callable[[Domain, int], Mapping[str, int]]
) -> Iterator[str]:
    """What the requests together exhaust, even if each takes as little as it can."""
    needed: Counter[str] = Counter()
    known: dict[Hashable, Mapping[str, int]] = {}  # many requests are alike
    for stage in stages:
        alike = tuple((domain.usable, domain.need, domain.alternative.capacity) for domain in stage)
        if alike not in known:
            known[alike] = _least(stage, costs)
        needed.update(known[alike])
    for name, nanos in sorted(needed.items()):
        if nanos > left.get(name, 0):
            yield f"{kind} {name}: at least {amount(nanos)} needed, {amount(left.get(name, 0))} left"


def _least(stage: Stage, costs: Callable[[Domain, int], Mapping[str, int]]) -> Mapping[str, int]:
    """What a request takes of each name at least, whichever devices it gets."""
    found: Mapping[str, int] | None = None
    for domain in stage:
        for device in each(domain.usable):
            own = costs(domain, device)
            # One usable device costs nothing: the request may draw on nothing at all.
            if not own:
                return {}
            # The cheapest device for each name by itself: less than that no choice can take.
            scaled = {name: domain.need * nanos for name, nanos in own.items()}
            found = scaled if found is None else {n: min(nanos, scaled[n]) for n, nanos in found.items() if n in scaled}
    return found or {}


NAMED_DEVICES = 8
"""The most devices in use that a refusal names."""


def refuse(problem: NodeProblem, *, hints: bool = True) -> Refusal:
    """The refusal of a problem without solution. It has a request, because claims without requests always fit.

    Without ``hints`` it says of a request that is short of devices which one, and not more: for comparing nodes.
    """
    for domains in problem.domains:
        if all(domain.short for domain in domains):
            # There is one: if all had a fault, the decision would have ended with that (``NodeProblem.fault``).
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


def _shortage(problem: NodeProblem, domain: Domain, alternatives: int, *, hints: bool) -> Refusal:
    """The first check that left too little is to blame."""
    left = problem.matching(domain)
    lost: list[Tally] = []
    rule, gone = (Rule.SELECTOR, 0) if _is_short(domain, left) else (None, 0)
    for stage, taken in losses(problem, domain):
        left &= ~taken
        lost.append(Tally(stage, taken.bit_count()))
        # The first check after which too little is left is to blame, as the reference asks them in this order.
        if rule is None and _is_short(domain, left):
            rule, gone = stage, taken
    offered = meant(problem, domain)
    # Without any device that the request can mean, no check is to blame.
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
    problem: NodeProblem,
    domain: Domain,
    offered: Meant,
    rule: Rule,
    why: Hint,
    needs: int = 0,
    lost: tuple[Tally, ...] = (),
) -> Refusal:
    siblings = next(domains for domains in problem.domains if domain in domains)
    # An alternative with a fault might have served the request: the refusal says so as well.
    faults = "".join(f"; {one.fault}" for one in siblings if one.fault is not None)
    matching = problem.matching(domain)
    # Admin access may take a device in use, so none of them is in its way.
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
