"""The claims on one node: the filters, applied once before the search.

A filter depends only on the inventory, the allocated state and the request, so its result is a set. The
order matters for one thing only: selectors are evaluated on devices that are not in use and carry no
forbidden binding conditions, and a selector that raises there is fatal if the search reaches the device
(allocator.md section 6).
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from dra_api.resource import RESULTS_LIMIT

from dra_operator.allocator.basics.bits import each
from dra_operator.allocator.basics.errors import AllocationError, ClaimError, PoolError, SelectorError
from dra_operator.allocator.basics.features import Features
from dra_operator.allocator.published.node_view import NodeView
from dra_operator.allocator.published.predicates import Compiled
from dra_operator.allocator.published.taints import blocking
from dra_operator.allocator.refusal import Rule
from dra_operator.allocator.request.plan import Alternative, Plan, Step, attribute_of
from dra_operator.allocator.usage import PoolUsage, Usage

from .constraints import Constraint, Distinct, Match
from .domain import Domain
from .ledgers import Counters, Ledger, Shares


class Problem:
    """The claims on one node: a domain for each alternative of each step, and the ledgers they share.

    Raises AllocationError from the constructor for everything that is fatal before the search.
    """

    def __init__(
        self,
        view: NodeView,
        plan: Plan,
        usage: Usage,
        features: Features,
        compiled: Compiled,
        *,
        admin_exempt: bool = False,
    ) -> None:
        self.admin_exempt = admin_exempt
        self.view = view
        self.plan = plan
        self.shares = Shares(self.left)
        self.sharing = features.consumable_capacity
        self._features = features
        self.compiled = compiled
        self.usages = [usage.pool(pool.pool) for pool in view.pools]
        """What is taken of each pool, by its place in the view."""
        self._counters: dict[int, Counters] = {}
        self._constraints: dict[tuple[int, int], Constraint] = {}
        self.in_use = self._gather(lambda usage: usage.exclusive)
        self._consumed = self._metered = 0
        """Devices that give less than they have; and those on which a request that names no capacity may find too
        little for it (section 9)."""
        if self.sharing:
            self._consumed = self._gather(lambda usage: usage.consumed)
            self._metered = view.shareable | view.rationed | self._consumed
        self.domains: list[tuple[Domain, ...]] = []
        self._count = 0
        self._prepare()

    @property
    def counters(self) -> list[Counters]:
        """The counters that requests may draw on."""
        return list(self._counters.values())

    def matching(self, domain: Domain) -> int:
        """The devices that the selectors of a domain select, in use or not."""
        return self.view.selected(domain.alternative.expressions, self.compiled).true

    @property
    def hopeless(self) -> bool:
        """Some request cannot even be served alone, and no fatal error can be met before that is noticed."""
        reached = self.reached
        return any(map(_dead, reached)) and all(domain.quiet for domains in reached for domain in domains)

    @property
    def reached(self) -> list[tuple[Domain, ...]]:
        """The steps that a search can reach: it never gets past one that cannot even be served alone."""
        dead = next((step for step, domains in enumerate(self.domains) if _dead(domains)), len(self.domains))
        return self.domains[: dead + 1]

    def exempt(self, domain: Domain) -> bool:
        """Ordinary allocations do not concern the domain, nor does it concern others."""
        return self.admin_exempt and domain.alternative.admin

    def error_at(self, domain: Domain, device: int) -> AllocationError:
        """The error of the first selector that raises on a device, evaluated once more for its text."""
        published, id_ = self.view.devices[device], self.view.id(device)
        for selector in domain.alternative.selectors:
            try:
                self.compiled.predicate(selector.expression)(id_.driver, published)
            except Exception as error:
                return selector.error(id_, published, error)
        return SelectorError(
            f"claim {self.plan.claims[domain.claim].key}, request {domain.alternative.request}: a selector failed on "
            f"device {id_}, but not when it was evaluated once more: its language is not deterministic"
        )

    def _prepare(self) -> None:
        """Domains in the order of the steps; per claim the checks of section 4 behind its requests."""
        steps = iter(self.plan.steps)
        pending = next(steps, None)
        for number, claim in enumerate(self.plan.claims):
            least = 0
            while pending is not None and pending.claim == number:
                domains = tuple(self._domain(pending, alternative) for alternative in pending.alternatives)
                self.domains.append(domains)
                least += min(domain.need for domain in domains)
                pending = next(steps, None)
            if self.plan.fault is not None and pending is None and number == self.plan.fault_claim:
                raise self.plan.fault
            if least > RESULTS_LIMIT:
                raise ClaimError(
                    f"claim {claim.key}: number of requested devices {least} exceeds the claim limit of "
                    f"{RESULTS_LIMIT}: divide the requests among several claims"
                )

    def _domain(self, step: Step, alternative: Alternative) -> Domain:
        domain = Domain(alternative, step.claim, self._count)
        self._count += 1
        if alternative.everything:
            self._collect(domain)
        else:
            self._offer(domain)
        domain.constraints = tuple(self._constraint(step.claim, number) for number in alternative.constraints)
        if not alternative.everything:
            for constraint in domain.constraints:
                domain.narrow(Rule.CONSTRAINT, domain.usable & constraint.column.present)
        domain.ledgers = self._ledgers(domain)
        return domain

    def _offer(self, domain: Domain) -> None:
        """ExactCount: devices that could be taken."""
        view, alternative = self.view, domain.alternative
        domain.need = alternative.count
        domain.narrow(Rule.NO_DEVICES, view.everything)
        if not alternative.admin:
            domain.narrow(Rule.IN_USE, domain.usable & ~self.in_use)
        self._select(domain)
        self._fit(domain)
        self._withstand(domain)

    def _collect(self, domain: Domain) -> None:
        """All: which devices have to be taken, and which of them cannot be (section 7)."""
        view, alternative = self.view, domain.alternative
        for pool in view.troubled:
            raise PoolError(
                f"claim {self.plan.claims[domain.claim].key}, request {alternative.request}: asks for all devices, "
                f"but {pool.complaint}: have its driver publish the whole pool, or ask for a number of devices"
            )
        domain.narrow(Rule.NO_DEVICES, view.everything)
        self._select(domain)
        if domain.raised:
            raise self.error_at(domain, next(each(domain.raised)))
        self._fit(domain)
        domain.collected = domain.usable
        domain.need = domain.collected.bit_count()
        if not alternative.admin:
            domain.narrow(Rule.IN_USE, domain.usable & ~self.in_use)
        self._withstand(domain)

    def _select(self, domain: Domain) -> None:
        view = self.view
        if view.binding and not self._features.binding_conditions:
            domain.narrow(Rule.BINDING_CONDITIONS, domain.usable & ~view.binding)
        verdicts = view.selected(domain.alternative.expressions, self.compiled)
        domain.raised = domain.usable & verdicts.raised
        domain.narrow(Rule.SELECTOR, domain.usable & verdicts.true)
        if view.here != view.everything:
            domain.narrow(Rule.NODE, domain.usable & view.here)

    def _fit(self, domain: Domain) -> None:
        """Capacity against the allocated state (section 9); remembers what each device would give."""
        requests = domain.alternative.capacity
        relevant = domain.usable if requests else domain.usable & self._metered
        if not relevant:
            return
        fitting = self.view.fitting(requests)
        kept = domain.usable & fitting.devices
        for number in each(kept & self._consumed) if not self.exempt(domain) else ():
            amounts, left = self.view.consumption(number, requests) or {}, self.left(number)
            if any(amount.nanos > left[name] for name, amount in amounts.items()):
                kept &= ~(1 << number)
        domain.amounts = fitting.shares
        domain.narrow(Rule.CAPACITY, kept)

    def left(self, number: int) -> dict[str, int]:
        """What the allocated state leaves of each capacity of a device, in billionths; may be negative."""
        device = self.view.devices[number]
        left = {name: capacity.value.nanos for name, capacity in (device.capacity or {}).items()}
        for name, nanos in self.usages[self.view.pool_of[number]].consumed.get(device.name, {}).items():
            if name in left:
                left[name] -= nanos
        return left

    def _withstand(self, domain: Domain) -> None:
        """Counters as the allocated state leaves them, and taints."""
        view = self.view
        consuming = domain.usable & view.consuming
        if consuming and not self._features.partitionable_devices:
            domain.narrow(Rule.COUNTERS, domain.usable & ~consuming)
        elif consuming and not self.exempt(domain):
            usable = domain.usable
            for place in self._places(consuming):
                usable = self._counter(place).admit(usable, domain)
            domain.narrow(Rule.COUNTERS, usable)
        if self._features.device_taints:
            tolerations = domain.alternative.tolerations
            tainted = 0
            for number in each(domain.usable & view.tainted):
                if blocking(view.devices[number].taints, tolerations) is not None:
                    tainted |= 1 << number
            if tainted:
                domain.narrow(Rule.TAINTS, domain.usable & ~tainted)

    def _ledgers(self, domain: Domain) -> tuple[Ledger, ...]:
        """The ledgers that taking devices of this domain concerns."""
        if self.exempt(domain):
            return domain.constraints
        ledgers: list[Ledger] = []
        if self.sharing and domain.usable & self.view.shareable:
            ledgers.append(self.shares)
        consuming = domain.usable & self.view.consuming
        if consuming and self._features.partitionable_devices:
            ledgers += [self._counter(place) for place in self._places(consuming)]
        return (*ledgers, *domain.constraints)

    def _places(self, devices: int) -> list[int]:
        """The pools that have any of the devices."""
        view = self.view
        return [place for place, pool in enumerate(view.pools) if devices >> view.offsets[place] & pool.everywhere]

    def _counter(self, place: int) -> Counters:
        known = self._counters.get(place)
        if known is None:
            pool, offset = self.view.pools[place], self.view.offsets[place]
            charged = self.usages[place].charged
            left = pool.counters.available(charged)
            paid = pool.bits(charged) & pool.shareable if self._features.consumable_capacity else 0
            shareable = pool.shareable if self._features.consumable_capacity else 0
            known = self._counters[place] = Counters(pool.counter_groups, offset, left, shareable, paid)
        return known

    def _constraint(self, claim: int, number: int) -> Constraint:
        known = self._constraints.get((claim, number))
        if known is None:
            source = (self.plan.claims[claim].spec.devices.constraints or ())[number]
            attribute, distinct = attribute_of(source, self._features) or ("", False)
            column = self.view.column(attribute, lists=self._features.list_attributes)
            known = self._constraints[claim, number] = Distinct(column) if distinct else Match(column)
        return known

    def _gather(self, names: Callable[[PoolUsage], Collection[str]]) -> int:
        """The devices that are named by what is allocated in their pool."""
        together = 0
        for view, usage, offset in zip(self.view.pools, self.usages, self.view.offsets, strict=True):
            if named := names(usage):
                together |= view.bits(named) << offset
        return together


def _dead(domains: tuple[Domain, ...]) -> bool:
    """No alternative of the request can be served, even if nothing else was asked for."""
    return all(domain.short for domain in domains)
