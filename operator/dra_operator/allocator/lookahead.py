"""Forward checking: may the rest of the claims still be served after a choice?

For every alternative that is still ahead a set of devices is kept (``Ahead``), narrowed after each choice:

1. by what is taken, and by the ledgers that the choice changed;
2. along ``matchAttribute`` constraints: a value stays possible only if every request in its scope finds
   enough devices with it, and all of them together enough different ones; this is repeated until nothing
   changes, so that chains of constraints are followed to their end;
3. by bounds over everything ahead: a flow from requests to devices and partitions, one from requests to
   the values of ``distinctAttribute``, and the least sum that each kind of counter must yield.

Only branches without any solution are cut. A branch in which a fatal error may be met is never cut, since
the reference would meet it: callers ask only where the rest of the search is ``quiet``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from .constraints import Constraint, Distinct, Match
from .domain import Domain, Problem
from .flow import Demand, Supply, feasible
from .ledgers import Counters
from .node_view import each
from .state import State
from .symmetry import split

Ahead = dict[int, int]
"""Number of an alternative -> devices it may still use; alternatives that are ruled out are missing."""


class Open(NamedTuple):
    """One request ahead: any of its alternatives must find its need."""

    alternatives: tuple[tuple[Domain, int], ...]
    bound: frozenset[Constraint]
    """Constraints that at least one device falls under, whichever alternative is used."""
    touching: frozenset[Constraint]
    """Constraints of any alternative."""

    @classmethod
    def of(cls, *alternatives: tuple[Domain, int]) -> Open:
        """A request with these alternatives and needs."""
        scopes = [frozenset(domain.constraints if need else ()) for domain, need in alternatives]
        return cls(alternatives, scopes[0].intersection(*scopes), frozenset().union(*scopes))


class Lookahead:
    """Narrows what is ahead. Stateless apart from what can be computed once per problem."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self.quiet_from = self._quiet_from()
        self._least_amounts: dict[int, dict[str, int]] = {}
        self._steps = [Open.of(*((domain, domain.need) for domain in domains)) for domains in problem.domains]

    def _quiet_from(self) -> int:
        """The first step from which on no fatal error can be met."""
        for step in range(len(self._problem.domains) - 1, -1, -1):
            if not all(domain.quiet for domain in self._problem.domains[step]):
                return step + 1
        return 0

    def everything(self) -> Ahead:
        """What is ahead before anything is known."""
        return {
            domain.number: domain.collected if domain.alternative.everything else domain.usable
            for domains in self._problem.domains
            for domain in domains
            if not domain.collected & ~domain.usable
        }

    def start(self) -> Ahead | None:
        """What is ahead before the first choice; None when there is no solution."""
        ahead = self.everything()
        return self._narrowed(
            ahead, self._steps, {constraint for request in self._steps for constraint in request.touching}
        )

    def after(self, before: Ahead, state: State, step: int, chosen: Domain, missing: int, rest: int) -> Ahead | None:
        """What is ahead after ``chosen`` took a device and still misses some from ``rest``."""
        ahead: Ahead = {}
        touched: set[Constraint] = set(chosen.constraints)
        opened = self._steps[step + 1 :]
        if missing:
            opened = [Open.of((chosen, missing)), *opened]
        for request in opened:
            for domain, _ in request.alternatives:
                if domain.number not in before:
                    continue
                old = before[domain.number]
                new = (rest & old if domain is chosen else old) & ~state.blocked(domain)
                for ledger in chosen.ledgers:
                    if new and ledger in domain.ledgers:
                        new = ledger.admit(new, domain)
                if new != old:
                    touched.update(domain.constraints)
                    if domain.alternative.everything:
                        continue
                ahead[domain.number] = new
        return self._narrowed(ahead, opened, touched)

    def _narrowed(self, ahead: Ahead, opened: list[Open], touched: set[Constraint]) -> Ahead | None:
        if not all(_alive(request, ahead) for request in opened):
            return None
        queue = [constraint for constraint in touched if isinstance(constraint, Match)]
        while queue:
            constraint = queue.pop()
            changed = self._match(constraint, ahead, opened)
            if changed is None:
                return None
            queue.extend(other for other in changed if other is not constraint and other not in queue)
        if not self._devices_suffice(ahead, opened) or not self._counters_suffice(ahead, opened):
            return None
        distinct = {c for request in opened for c in request.bound if isinstance(c, Distinct)}
        return ahead if all(self._values_suffice(constraint, ahead, opened) for constraint in distinct) else None

    def _match(self, constraint: Match, ahead: Ahead, opened: list[Open]) -> set[Match] | None:
        """Keeps devices with values that can still be common; the other constraints that this concerns."""
        forced = [request for request in opened if constraint in request.bound]
        if not forced:
            return set()
        together = 0
        for request in forced:
            together |= _union(request, ahead)
        allowed = 0
        for devices in _columns(constraint, together):
            if self._common(devices, forced, ahead):
                allowed |= devices
        changed: set[Match] = set()
        for request in opened:
            if constraint not in request.touching:
                continue
            for domain, need in request.alternatives:
                old = ahead.get(domain.number)
                if old is None or constraint not in domain.constraints or not old & ~allowed:
                    continue
                changed.update(c for c in domain.constraints if isinstance(c, Match))
                if domain.alternative.everything or (old & allowed).bit_count() < need:
                    del ahead[domain.number]
                else:
                    ahead[domain.number] = old & allowed
            if not _alive(request, ahead):
                return None
        return changed

    def _common(self, devices: int, forced: list[Open], ahead: Ahead) -> bool:
        """All requests find enough of these devices, and enough different ones together."""
        together = total = 0
        for request in forced:
            least = 0
            found = False
            for domain, need in request.alternatives:
                mine = ahead.get(domain.number, 0) & devices
                if domain.number in ahead and mine.bit_count() >= need:
                    together |= mine
                    least = min(least, need) if found else need
                    found = True
            if not found:
                return False
            total += least
        return bool(together & self._problem.view.shareable) or together.bit_count() >= total

    def _devices_suffice(self, ahead: Ahead, opened: list[Open]) -> bool:
        """The matching bound over ordinary requests."""
        demands = []
        together = 0
        for request in opened:
            if not any(domain.alternative.admin for domain, _ in request.alternatives):
                devices = _union(request, ahead)
                need = min(need for domain, need in request.alternatives if domain.number in ahead)
                if need:
                    demands.append(Demand(devices, need))
                    together |= devices
        if not demands or (
            sum(demand.need for demand in demands) <= min(d.devices.bit_count() for d in demands)
            and (not together & self._problem.view.consuming)
        ):
            return True
        return feasible(demands, self._supplies(together, {demand.devices for demand in demands}))

    def _supplies(self, together: int, wanted: set[int]) -> list[Supply]:
        """What the devices can yield; plain devices that the same requests want count together."""
        shareable = self._problem.view.shareable if self._problem.sharing else 0
        supplies = [Supply(1 << device, self._shares(device)) for device in each(together & shareable)]
        single = together & ~shareable
        for counters in self._problem.counters:
            for devices, limit in counters.bottlenecks(single):
                supplies.append(Supply(devices, limit))
                single &= ~devices
        supplies.extend(Supply(devices, devices.bit_count()) for devices in split([single], wanted))
        return supplies

    def _shares(self, device: int) -> int:
        """At most so many further shares of a device."""
        least = self._least_amounts.get(device)
        if least is None:
            least = self._least_amounts[device] = self._least_share(device)
        left = self._problem.shares.left.get(device, {})
        return min((left[name] // amount for name, amount in least.items() if amount > 0), default=len(self._steps))

    def _least_share(self, device: int) -> dict[str, int]:
        """The least that any request would consume of each capacity."""
        least: dict[str, int] = {}
        for domains in self._problem.domains:
            for domain in domains:
                for name, amount in domain.amounts.get(device, {}).items():
                    least[name] = min(amount.nanos, least.get(name, amount.nanos))
        return least

    def _counters_suffice(self, ahead: Ahead, opened: list[Open]) -> bool:
        """Summed over all sets, no kind of counter may be asked for more than is left of it."""
        tables: list[Counters] = self._problem.counters
        if not tables:
            return True
        left: dict[str, int] = {}
        for table in tables:
            for kind, amount in table.left_by_kind().items():
                left[kind] = left.get(kind, 0) + amount
        for request in opened:
            if any(domain.alternative.admin for domain, _ in request.alternatives):
                continue
            for kind, amount in self._least(request, ahead).items():
                left[kind] -= amount
        return all(amount >= 0 for amount in left.values())

    def _least(self, request: Open, ahead: Ahead) -> dict[str, int]:
        """The least that a request takes of each kind of counter, whatever it chooses."""
        least: dict[str, int] | None = None
        for domain, need in request.alternatives:
            devices = ahead.get(domain.number)
            if devices is None:
                continue
            if devices & (self._problem.view.shareable | ~self._problem.view.consuming):
                return {}
            found: dict[str, int] | None = None
            for table in self._problem.counters:
                for costs, group in table.costs_by_kind():
                    if devices & group:
                        found = dict(costs) if found is None else _smaller(found, costs)
            scaled = {kind: need * amount for kind, amount in (found or {}).items()}
            least = scaled if least is None else _smaller(least, scaled)
        return least or {}

    def _values_suffice(self, constraint: Distinct, ahead: Ahead, opened: list[Open]) -> bool:
        """Each device of the requests in scope needs a value of its own."""
        demands = []
        for request in opened:
            if constraint in request.bound:
                devices = _union(request, ahead)
                need = min(need for domain, need in request.alternatives if domain.number in ahead)
                values = 0
                for position, having in enumerate(constraint.column.having.values()):
                    if having & devices:
                        values |= 1 << position
                demands.append(Demand(values, need))
        if not demands:
            return True
        return feasible(demands, [Supply(1 << position, 1) for position in range(len(constraint.column.having))])


def _smaller(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {kind: min(amount, other[kind]) for kind, amount in one.items() if kind in other}


def _alive(request: Open, ahead: Ahead) -> bool:
    """Some alternative finds enough devices."""
    for domain, need in request.alternatives:
        devices = ahead.get(domain.number)
        if devices is None:
            continue
        if domain.alternative.everything:
            if devices:
                return True
        elif devices.bit_count() >= need:
            return True
    return False


def _union(request: Open, ahead: Ahead) -> int:
    devices = 0
    for domain, _ in request.alternatives:
        devices |= ahead.get(domain.number, 0)
    return devices


def _columns(constraint: Match, devices: int) -> Iterable[int]:
    """The devices of each value that any of the devices has."""
    column = constraint.column
    while devices:
        lowest = devices & -devices
        devices ^= lowest
        values = column.values.get(lowest.bit_length() - 1, ())
        for value in values:
            having = column.having[value]
            if len(values) == 1:
                devices &= ~having
            yield having
