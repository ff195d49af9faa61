"""One node as the allocated state leaves it, and the ledgers that start from there."""

from __future__ import annotations

from collections.abc import Sequence

from dra_api.resource import ResourceClaim

from dra_operator.allocator.basics.features import Features
from dra_operator.allocator.published.node_view import NodeView
from dra_operator.allocator.published.predicates import Compiled
from dra_operator.allocator.request.claim_program import attribute_of
from dra_operator.allocator.usage import Usage

from .constraints import Constraint, Distinct, Match
from .counters import Counters
from .domain import Domain
from .shares import Shares


class NodeState:
    """What filters and ledgers look at."""

    def __init__(
        self,
        view: NodeView,
        claims: Sequence[ResourceClaim],
        usage: Usage,
        features: Features,
        compiled: Compiled,
        *,
        admin_exempt: bool,
    ) -> None:
        self.view = view
        self.features = features
        self.compiled = compiled
        self.admin_exempt = admin_exempt
        """Ordinary allocations do not concern admin access, nor does it concern them."""
        self.usages = [usage.pool(pool.pool) for pool in view.pools]
        """What is taken of each pool, by its place in the view."""
        self.in_use = 0
        """Devices that are held."""
        self.consumed = 0
        """Devices that give less than they have."""
        for pool, usage_, offset in zip(view.pools, self.usages, view.offsets, strict=True):
            if usage_.exclusive:
                self.in_use |= pool.bits(usage_.exclusive) << offset
            if usage_.consumed and features.consumable_capacity:
                self.consumed |= pool.bits(usage_.consumed) << offset
        self.shareable = view.shareable if features.consumable_capacity else 0
        """Devices that several requests may take."""
        self._shares: Shares | None = None
        self._claims = claims
        self._counters: dict[int, Counters] = {}
        self._constraints: dict[tuple[int, int], Constraint] = {}

    @property
    def shares(self) -> Shares:
        """The shares of all devices."""
        if self._shares is None:
            self._shares = Shares(self.shareable, self.left)
        return self._shares

    def exempt(self, domain: Domain) -> bool:
        """Ordinary allocations do not concern the domain, nor does it concern others."""
        return self.admin_exempt and domain.alternative.admin

    def left(self, number: int) -> dict[str, int]:
        """What the allocated state leaves of each capacity of a device, in billionths; may be negative."""
        device = self.view.devices[number]
        left = {name: capacity.value.nanos for name, capacity in (device.capacity or {}).items()}
        for name, nanos in self.usages[self.view.pool_of[number]].consumed.get(device.name, {}).items():
            if name in left:
                left[name] -= nanos
        return left

    def counters(self, devices: int) -> list[Counters]:
        """The counters of the pools that have any of the devices."""
        view = self.view
        return [
            self._counter(place)
            for place, pool in enumerate(view.pools)
            if devices >> view.offsets[place] & pool.everywhere
        ]

    def constraints(self, domain: Domain) -> list[Constraint]:
        """The constraints of its claim that a domain falls under."""
        return [self._constraint(domain.claim, number) for number in domain.alternative.constraints]

    def _counter(self, place: int) -> Counters:
        known = self._counters.get(place)
        if known is None:
            pool, offset = self.view.pools[place], self.view.offsets[place]
            charged = self.usages[place].charged
            left = pool.counters.available(charged)
            shareable = pool.shareable if self.features.consumable_capacity else 0
            already_charged = pool.bits(charged) & shareable
            known = self._counters[place] = Counters(pool.counter_groups, offset, left, shareable, already_charged)
        return known

    def _constraint(self, claim: int, number: int) -> Constraint:
        known = self._constraints.get((claim, number))
        if known is None:
            source = (self._claims[claim].spec.devices.constraints or ())[number]
            attribute, distinct = attribute_of(source, self.features) or ("", False)
            column = self.view.column(attribute, lists=self.features.list_attributes)
            known = self._constraints[claim, number] = Distinct(column) if distinct else Match(column)
        return known
