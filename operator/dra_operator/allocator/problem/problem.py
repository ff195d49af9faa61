"""The claims on one node: for each alternative a domain, which filters leave, and the ledgers that requests share.

A *filter* depends only on the inventory, the allocated state and the request, so its result is a set. Filters that
ignore the allocated state leave an ``Offer``, which a node keeps from one decision to the next. The order of filters
matters for two things. Selectors are evaluated on devices that are not in use and carry no forbidden binding
conditions, capacity is counted on those that the selectors select, and a selector that raises there, or an amount that
is fatal, ends the attempt if the search reaches the device (allocator.md sections 6 and 9). And the refusal blames the
first filter that left too little. For a request for all devices, some filters choose the devices that it has to take,
and others only keep it from taking one of them (section 7).

The order of *ledgers* matters for a request for all devices: the first ledger that refuses a device decides how the
attempt continues. A device that an earlier request shares violates a constraint rather than being used up (section 7).
A node asks once for each request which ledgers it falls under, and keeps the answer with what the filters leave; each
problem then makes its ledgers.

To filter raises AllocationError for faults of the claims, before any search. Faults of pools and selectors make an
alternative that asks for all devices one that the node cannot serve (``Domain.fault``); in the reference they are
raised as well.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from functools import cached_property, partial
from itertools import groupby
from operator import attrgetter
from typing import Final, NamedTuple

from dra_api.releases import Release
from dra_api.resource import MOST_RESULTS
from dra_api.selectors import declares_optional_node_operations
from dra_ledger.basics import each
from dra_ledger.errors import AllocationError, ClaimError, PoolError
from dra_ledger.inventory import Offer
from dra_ledger.pools import PoolView, Status
from dra_ledger.taints import LEFT, blocking

from dra_operator.allocator.claim_program import ClaimProgram
from dra_operator.allocator.outcome import Rule
from dra_operator.allocator.problem.constraints import CHECKS, constraint_maker
from dra_operator.allocator.problem.ledgers import CapacityShares, Ledger
from dra_operator.allocator.problem.node_state import NO_AMOUNTS, Domain, Filtered, NodeState, Wanted


def in_use(node: NodeState, domain: Domain, devices: int) -> int:
    """No claim holds the device. Admin access may take it anyway."""
    return devices if domain.alternative.admin else devices & ~node.in_use


def binding_conditions(node: NodeState, domain: Domain, devices: int) -> int:
    """With the feature off, devices that need binding conditions cannot be used."""
    return devices if node.features.binding_conditions else devices & ~node.view.binding


def selectors(node: NodeState, domain: Domain, devices: int) -> int:
    """All selectors are true."""
    return devices & node.view.selected(domain.alternative.expressions, node.compiled).true


def here(node: NodeState, domain: Domain, devices: int) -> int:
    """The device is for this node."""
    return devices & node.view.here


def capacity(node: NodeState, domain: Domain, devices: int) -> int:
    """The capacity suffices for one share while nothing of it is allocated (section 9)."""
    return (
        devices & node.view.fitting(domain.alternative.capacity).devices
        if _is_capacity_limited(node, domain)
        else devices
    )


def capacity_left(node: NodeState, domain: Domain, devices: int) -> int:
    """What is left of the capacity suffices for one share."""
    # Nothing is consumed of the others: their full capacity was checked before (``capacity``).
    consumed = devices & node.consumed
    for number in each(consumed) if consumed and not node.exempt(domain) else ():
        amounts, left = node.view.consumption(number, domain.alternative.capacity) or {}, node.left(number)
        if any(amount.nanos > left[name] for name, amount in amounts.items()):
            devices &= ~(1 << number)
    return devices


def node_operations(node: NodeState, domain: Domain, devices: int) -> int:
    """The node manages without the calls to the driver that the slice leaves out (K37-ONO-04)."""
    # The field is known from 1.37 on.
    if not node.view.skipping or node.features.release < Release.V1_37:
        return devices
    if node.features.optional_node_operations and declares_optional_node_operations(node.view.node):
        return devices
    return devices & ~node.view.skipping


def compatibility(node: NodeState, domain: Domain, devices: int) -> int:
    """The device has a compatibility group in common with those in use on its counter sets (K37-CG-02)."""
    # Admin access that ignores allocations ignores groups as well (K37-CG-08).
    if node.features.compatibility_groups and not node.exempt(domain):
        for place in node.grouped_places(devices):
            devices = node.compatibility(place).admit(devices, domain)
    return devices


def shared_counters(node: NodeState, domain: Domain, devices: int) -> int:
    """The counters of the pool suffice for the device alone. With the feature off, no device may need any."""
    consuming = devices & node.view.consuming
    if not node.features.partitionable_devices:
        return devices & ~consuming
    # In the reference admin access needs free counters as well (section 10).
    if consuming and not node.exempt(domain):
        for place in node.places(consuming):
            devices = node.counters(place).admit(devices, domain)
    return devices


def taints(node: NodeState, domain: Domain, devices: int) -> int:
    """The request tolerates the taints of the device, and the device is not left to other schedulers."""
    # With the feature off the taints of drivers are ignored (section 11). That a device is left to another scheduler is
    # a setting of this operator, and counts all the same.
    counts = node.features.device_taints
    for number in each(devices & node.view.tainted):
        found = node.view.devices[number].taints or ()
        if LEFT in found or (counts and blocking(found, domain.alternative.tolerations) is not None):
            devices &= ~(1 << number)
    return devices


def attributes(node: NodeState, domain: Domain, devices: int) -> int:
    """The device has the attributes of the constraints. A request for all devices notices only when it takes one."""
    # For a request for all devices a device without the attribute is an error when it is taken (section 7): a filter
    # would make it a refusal.
    if domain.alternative.published and not domain.alternative.everything:
        for comparison in domain.alternative.published:
            devices &= node.column(comparison).present
    return devices


def value(node: NodeState, domain: Domain, devices: int) -> int:
    """The device has the value of an attribute that all devices of its gang have."""
    wanted = domain.alternative.value
    return devices if wanted is None else devices & node.having(wanted)


def _is_capacity_limited(node: NodeState, domain: Domain) -> bool:
    """Some device may have too little for the request, which need not name any capacity."""
    view = node.view
    return node.features.consumable_capacity and bool(
        domain.alternative.capacity or view.shareable | view.has_request_policy
    )


Keeps = Callable[[NodeState, Domain, int], int]


class Filter(NamedTuple):
    """``keeps`` gives the devices that pass; ``rule`` names the filter in a refusal."""

    rule: Rule
    keeps: Keeps
    chooses: bool = False
    """It chooses which devices a request for all devices has to take."""
    fixed: bool = False
    """It depends on nothing but the inventory and ``Alternative.offer``."""


FILTERS: Final = (
    Filter(Rule.VALUE, value),
    Filter(Rule.IN_USE, in_use),
    Filter(Rule.BINDING_CONDITIONS, binding_conditions, chooses=True, fixed=True),
    Filter(Rule.SELECTOR, selectors, chooses=True, fixed=True),
    Filter(Rule.NODE, here, chooses=True, fixed=True),
    # Two filters for one rule: published amounts last as long as the slices, remaining ones change with each claim.
    Filter(Rule.CAPACITY, capacity, chooses=True, fixed=True),
    Filter(Rule.CAPACITY, capacity_left, chooses=True),
    # Asked after capacity (K37-ONO-04).
    Filter(Rule.NODE_OPERATIONS, node_operations, fixed=True),
    # Asked before counters (K37-CG-06).
    Filter(Rule.COMPATIBILITY, compatibility),
    Filter(Rule.COUNTERS, shared_counters),
    Filter(Rule.TAINTS, taints, fixed=True),
    Filter(Rule.CONSTRAINT, attributes),
)


def chooses(filter_: Filter, release: Release) -> bool:
    """Whether it chooses: from 1.37 on the inventory alone does, not what is allocated (K37-BUG-07)."""
    return filter_.chooses and (filter_.fixed or release < Release.V1_37)


def _unfixed(release: Release, *, choose: bool) -> tuple[Keeps, ...]:
    return tuple(each_.keeps for each_ in FILTERS if not each_.fixed and chooses(each_, release) is choose)


CHOOSING: Final = {release: _unfixed(release, choose=True) for release in Release}
"""The filters that choose, and are not in an offer."""
KEEPING: Final = {release: _unfixed(release, choose=False) for release in Release}
"""The others that are not in an offer."""


def offer(node: NodeState, domain: Domain) -> Offer:
    """What the fixed filters leave."""
    # Kept with the view, which lasts as long as the slices that the node sees.
    key = domain.alternative.offer
    known = node.view.offers.get(key)
    return known if known is not None else node.view.offers.put(key, _make_offer(node, domain))


def _make_offer(node: NodeState, domain: Domain) -> Offer:
    view = node.view
    raised = binding_conditions(node, domain, view.selected(domain.alternative.expressions, node.compiled).raised)
    faulty = view.faulty(domain.alternative.capacity)
    # An amount is only looked at on a device that passes what is asked before capacity (section 6): on others it is no
    # fault.
    for filter_ in FILTERS if faulty else ():
        if filter_.rule is Rule.CAPACITY:
            break
        faulty = filter_.keeps(node, domain, faulty) if filter_.fixed else faulty
    chosen = usable = view.everything & ~faulty
    for filter_ in FILTERS:
        if filter_.fixed:
            usable = filter_.keeps(node, domain, usable)
            chosen = usable if filter_.chooses else chosen
    shares = view.fitting(domain.alternative.capacity).shares if _is_capacity_limited(node, domain) else NO_AMOUNTS
    return Offer(chosen, usable, raised | faulty, shares)


def stages(node: NodeState, domain: Domain) -> Iterator[tuple[Rule, int]]:
    """What is left after each rule, in their order: for refusals."""
    devices = node.view.everything
    release = node.features.release
    # A request for all devices has to take what these choose. Only what they have chosen can be taken away by the
    # others.
    order = sorted(FILTERS, key=lambda one: not chooses(one, release)) if domain.alternative.everything else FILTERS
    for rule, filters in groupby(order, attrgetter("rule")):
        for filter_ in filters:
            devices = filter_.keeps(node, domain, devices)
        yield rule, devices


def _filtered(node: NodeState, program: ClaimProgram) -> Filtered:
    """Apply the filters to all alternatives, in the order of the stages; check each claim after its requests.

    All of them, also behind a request that is short: an error of a later claim is met in any case (section 4).
    """
    made: list[tuple[Domain, ...]] = []
    stages, number = program.stages, 0
    # A search only takes devices away, so a request that is short alone is short behind any choice.
    dead, wants_ledgers, is_faulty = -1, False, False
    for claim in range(len(program.claims)):
        least = 0
        while len(made) < len(stages) and stages[len(made)].claim == claim:
            domains = []
            for alternative in stages[len(made)].alternatives:
                domain = Domain(alternative, claim, number)
                number += 1
                _fill(node, program, domain)
                wants_ledgers = wants_ledgers or bool(domain.wanted)
                is_faulty = is_faulty or domain.fault is not None
                domains.append(domain)
            if dead < 0 and all([domain.short for domain in domains]):  # noqa: C419  # a generator is slower
                dead = len(made)
            made.append(tuple(domains))
            least += min([domain.need for domain in domains])
        # After the requests before it: a pool in trouble is met while these collect their devices (section 7).
        if claim + 1 == len(program.requests) and program.fault is not None:
            raise program.fault
        # Each claim has a limit of its own (section 4).
        if least > MOST_RESULTS:
            raise _too_many(program, claim, least)
    return Filtered(made, len(made) if dead < 0 else dead, wants_ledgers, is_faulty)


def _too_many(program: ClaimProgram, number: int, least: int) -> ClaimError:
    """The claim asks for more than it may have: on each node, or because of the devices that this one has."""
    stages = [stage for stage in program.stages if stage.claim == number]
    exact = sum(min(0 if one.everything else one.count for one in stage.alternatives) for stage in stages)
    # Too many without its requests for all devices: so it is on each node, and fatal. Else this node has too many
    # (section 15).
    make = ClaimError if exact > MOST_RESULTS else ClaimError.of_node
    return make(
        f"claim {program.claims[number].key}: number of requested devices {least} exceeds the claim limit of "
        f"{MOST_RESULTS}: divide the requests among several claims"
    )


def _fill(node: NodeState, program: ClaimProgram, domain: Domain) -> None:
    """Find the devices of a domain, and the ledgers that it falls under."""
    alternative, release = domain.alternative, node.features.release
    # A request for a number passes over devices that it cannot take. One for all devices has to take each that is
    # chosen, so there one that cannot be taken is a refusal (section 7).
    if alternative.everything:
        try:
            _collect(node, program, domain)
        except AllocationError as error:
            if not (node.errors_stay and error.is_of_node):
                raise
            domain.fault = error
    else:
        domain.need = alternative.count
        offered = offer(node, domain)
        domain.amounts = offered.shares
        domain.usable = offered.usable
        if offered.raised:
            # Devices in use are passed over before their selectors are evaluated (section 6).
            domain.raised = in_use(node, domain, offered.raised)
        for keeps in (*CHOOSING[release], *KEEPING[release]):
            domain.usable = keeps(node, domain, domain.usable)
    domain.wanted = wanted_ledgers(node, domain)


def _collect(node: NodeState, program: ClaimProgram, domain: Domain) -> None:
    """Finds the devices that a request for all has to take, and those of them that it cannot take (section 7)."""
    # Before any selector: of a pool in trouble it is not known which devices are all of them (section 7).
    for pool in _troubled(node, domain):
        raise PoolError(
            f"claim {program.claims[domain.claim].key}, request {domain.alternative.request}: asks for all "
            f"devices, but {pool.complaint}: have its driver publish the whole pool, or ask for a number of devices"
        )
    offered = offer(node, domain)
    if offered.raised:
        # The first in the order of section 3 is the one that the reference meets.
        raise node.error_at(program.claims[domain.claim].key, domain.alternative, next(each(offered.raised)))
    domain.amounts = offered.shares
    domain.collected = offered.chosen
    for keeps in CHOOSING[node.features.release]:
        domain.collected = keeps(node, domain, domain.collected)
    domain.need = domain.collected.bit_count()
    domain.usable = domain.collected & offered.usable
    for keeps in KEEPING[node.features.release]:
        domain.usable = keeps(node, domain, domain.usable)


def _troubled(node: NodeState, domain: Domain) -> Iterator[PoolView]:
    """The pools in trouble that may have devices for a request; in the reference all pools may.

    An invalid pool is published in full: without devices for this node it keeps none from it.
    """
    troubled = node.view.troubled
    if not (troubled and node.errors_stay):
        yield from troubled
        return
    # Selectors that name another driver keep the trouble of this pool from the request (section 15).
    naming = node.compiled.drivers(domain.alternative.expressions)
    for pool in troubled:
        if pool.status is Status.INVALID and not pool.devices:
            continue
        if not any(one.excludes(pool.pool.driver) for one in naming):
            yield pool


def wanted_ledgers(node: NodeState, domain: Domain) -> tuple[Wanted, ...]:
    """The ledgers that a request falls under. Their order decides which one refuses a device first."""
    found: list[Wanted] = []
    features = node.features
    # Admin access that ignores allocations falls under the constraints of its claim only.
    exempt = node.exempt(domain)
    if features.compatibility_groups and not exempt:
        # Of the pools whose devices the request may take.
        places = node.grouped_places(domain.usable)
        found += [(("compatibility", place), node.compatibility(place).copy) for place in places]
    consuming = domain.usable & node.view.consuming
    if consuming and features.partitionable_devices and not exempt:
        found += [(("counters", place), node.counters(place).copy) for place in node.places(consuming)]
    for comparison in domain.alternative.constraints:
        key = ("constraint", domain.claim, comparison.position)
        found.append((key, constraint_maker(node, comparison)))
    # Consumable capacity, if the request may take a device that has any.
    if domain.usable & node.shareable and not exempt:
        found.append(("shares", partial(CapacityShares, node.shareable, node.left)))
    return tuple(found)


class NodeProblem:
    """The claims on one node: a domain for each alternative of each stage, and the ledgers they share.

    Raises AllocationError from the constructor for everything that is fatal before the search.
    """

    def __init__(self, node: NodeState, program: ClaimProgram) -> None:
        self.node = node
        self.view = node.view
        self.program = program
        known = node.filtered.get(program.stages) if program.fault is None else None
        if known is None:
            known = _filtered(node, program)
            if program.is_short:
                node.keep(program.stages, known)
        self.domains = known.domains
        """By stage, an entry for each alternative. Problems share them until they need some of their own."""
        if known.wants_ledgers:
            # A search changes its ledgers, and may be put aside while others on the same node go on.
            ledgers: dict[Hashable, Ledger] = {}
            self.domains = [
                tuple([domain.in_problem(ledgers) if domain.wanted else domain for domain in domains])
                for domains in self.domains
            ]
        self._dead = known.dead
        """The first stage that cannot be served even alone."""
        self.is_faulty = known.is_faulty
        """It is not known what the node has for some request for all devices."""
        # Before the search computes any derived attribute: by now it is known on how many devices it may have to.
        if program.may_fail_anywhere:
            for check in CHECKS:
                check(node, self.reached)

    def own_domains(self) -> None:
        """Makes domains for this problem alone, with new ledgers, so that more ledgers can be added to them."""
        ledgers: dict[Hashable, Ledger] = {}
        self.domains = [tuple([domain.in_problem(ledgers) for domain in domains]) for domains in self.domains]

    @cached_property
    def ledgers(self) -> dict[Ledger, list[Domain]]:
        """All ledgers, and the alternatives that each concerns."""
        ledgers: dict[Ledger, list[Domain]] = {}
        for domains in self.domains:
            for domain in domains:
                for ledger in domain.ledgers:
                    ledgers.setdefault(ledger, []).append(domain)
        return ledgers

    def outside(self, ledger: Ledger, devices: int) -> frozenset[int]:
        """The numbers of the alternatives that may take some of the devices but are not under the ledger."""
        return frozenset(
            domain.number
            for domains in self.domains
            for domain in domains
            if domain.usable & devices and ledger not in domain.ledgers
        )

    def matching(self, domain: Domain) -> int:
        """The devices that the selectors of a domain select, in use or not."""
        return self.view.selected(domain.alternative.expressions, self.node.compiled).true

    @property
    def fault(self) -> AllocationError | None:
        """Why it is not known what the node has for the first request that cannot be served, if that is the reason."""
        if not self.is_faulty or self._dead == len(self.domains):
            return None
        # If another alternative of the request is merely short, that is the reason.
        faults = [domain.fault for domain in self.domains[self._dead]]
        return faults[0] if all(faults) else None

    @property
    def hopeless(self) -> bool:
        """Some request cannot even be served alone, and no fatal error can be met before it."""
        return self._dead < len(self.domains) and all(
            domain.cannot_raise for domains in self.reached for domain in domains
        )

    @property
    def reached(self) -> list[tuple[Domain, ...]]:
        """The stages that a search can reach: it never passes a stage that cannot be served even alone."""
        return self.domains[: self._dead + 1]

    def error_at(self, domain: Domain, device: int) -> AllocationError:
        """The error of the first selector that raises on a device."""
        return self.node.error_at(self.program.claims[domain.claim].key, domain.alternative, device)
