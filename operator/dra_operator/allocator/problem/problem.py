"""The claims on one node: for each alternative a domain, which filters leave, and the ledgers that requests share.

Filters (``filters``) and ledgers come from two ordered lists. The order of ledgers matters for a request for all
devices: the first ledger that refuses a device decides how the attempt continues. A device that an earlier request
shares violates a constraint rather than being used up (section 7). A node asks once for each request which ledgers it
falls under, and keeps the answer with what the filters leave; each problem then makes its ledgers.

To filter raises AllocationError for faults of the claims, before any search. Faults of pools and selectors make an
alternative that asks for all devices one that the node cannot serve (``Domain.fault``); in the reference they are
raised as well.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import cached_property, partial

from dra_api.resource import MOST_RESULTS
from dra_ledger.basics import each
from dra_ledger.errors import AllocationError, ClaimError, PoolError
from dra_ledger.pools import PoolView, Status

from dra_operator.allocator.claim_program import Alternative, ClaimProgram
from dra_operator.allocator.problem.constraints import CHECKS, constraint_maker
from dra_operator.allocator.problem.filters import CHOOSING, KEEPING, in_use, offer
from dra_operator.allocator.problem.ledgers import CapacityShares, Ledger
from dra_operator.allocator.problem.node_state import Domain, Filtered, NodeState, Wanted


def compatibility(node: NodeState, domain: Domain) -> Iterable[Wanted]:
    """The compatibility groups of the pools whose devices the request may take."""
    if not node.features.compatibility_groups or node.exempt(domain):
        return ()
    return [(("compatibility", it), node.compatibility(it).copy) for it in node.grouped_places(domain.usable)]


def counters(node: NodeState, domain: Domain) -> Iterable[Wanted]:
    """The counters of the pools whose devices the request may take."""
    consuming = domain.usable & node.view.consuming
    if not consuming or node.exempt(domain) or not node.features.partitionable_devices:
        return ()
    return [(("counters", place), node.counters(place).copy) for place in node.places(consuming)]


def constraints(node: NodeState, domain: Domain) -> Iterable[Wanted]:
    """The constraints of its claim, also for admin access."""
    return [
        (("constraint", domain.claim, comparison.position), constraint_maker(node, comparison))
        for comparison in domain.alternative.constraints
    ]


def shares(node: NodeState, domain: Domain) -> Iterable[Wanted]:
    """Consumable capacity, if the request may take a device that has any."""
    if not domain.usable & node.shareable or node.exempt(domain):
        return ()
    return (("shares", partial(CapacityShares, node.shareable, node.left)),)


MAKERS: tuple[Callable[[NodeState, Domain], Iterable[Wanted]], ...] = (
    compatibility,
    counters,
    constraints,
    shares,
)


class _Filtering:
    def __init__(self, node: NodeState, program: ClaimProgram) -> None:
        self._node = node
        self._program = program
        self._count = 0
        self.is_faulty = False

    def filtered(self) -> Filtered:
        """Apply the filters to all alternatives, in the order of the stages; check each claim after its requests.

        All of them, also behind a request that is short: an error of a later claim is met in any case (section 4).
        """
        program, stages, made = self._program, self._program.stages, list[tuple[Domain, ...]]()
        for number in range(len(program.claims)):
            least = 0
            while len(made) < len(stages) and stages[len(made)].claim == number:
                domains = tuple([self._domain(number, alternative) for alternative in stages[len(made)].alternatives])
                made.append(domains)
                least += min([domain.need for domain in domains])
            # After the requests before it: a pool in trouble is met while these collect their devices (section 7).
            if number + 1 == len(program.requests) and program.fault is not None:
                raise program.fault
            # Each claim has a limit of its own (section 4).
            if least > MOST_RESULTS:
                raise self._too_many(number, least)
        # A search only takes devices away, so a request that is short alone is short behind any choice.
        dead = (stage for stage, domains in enumerate(made) if all(domain.short for domain in domains))
        wants_ledgers = any(domain.wanted for domains in made for domain in domains)
        return Filtered(made, next(dead, len(made)), wants_ledgers, self.is_faulty)

    def _too_many(self, number: int, least: int) -> ClaimError:
        """The claim asks for more than it may have: on each node, or because of the devices that this one has."""
        stages = [stage for stage in self._program.stages if stage.claim == number]
        exact = sum(min(0 if one.everything else one.count for one in stage.alternatives) for stage in stages)
        # Too many without its requests for all devices: so it is on each node, and fatal. Else this node has too many
        # (section 15).
        make = ClaimError if exact > MOST_RESULTS else ClaimError.of_node
        return make(
            f"claim {self._program.claims[number].key}: number of requested devices {least} exceeds the claim limit of "
            f"{MOST_RESULTS}: divide the requests among several claims"
        )

    def _troubled(self, domain: Domain) -> Iterator[PoolView]:
        """The pools in trouble that may have devices for a request; in the reference all pools may.

        An invalid pool is published in full: without devices for this node it keeps none from it.
        """
        troubled = self._node.view.troubled
        if not (troubled and self._node.errors_stay):
            yield from troubled
            return
        # Selectors that name another driver keep the trouble of this pool from the request (section 15).
        naming = self._node.compiled.drivers(domain.alternative.expressions)
        for pool in troubled:
            if pool.status is Status.INVALID and not pool.devices:
                continue
            if not any(one.excludes(pool.pool.driver) for one in naming):
                yield pool

    def _domain(self, claim: int, alternative: Alternative) -> Domain:
        domain, node = Domain(alternative, claim, self._count), self._node
        release = node.features.release
        self._count += 1
        # A request for a number passes over devices that it cannot take. One for all devices has to take each that is
        # chosen, so there one that cannot be taken is a refusal (section 7).
        if alternative.everything:
            try:
                self._collect(domain)
            except AllocationError as error:
                if not (node.errors_stay and error.is_of_node):
                    raise
                domain.fault, self.is_faulty = error, True
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
        domain.wanted = tuple([wanted for concerned in MAKERS for wanted in concerned(node, domain)])
        return domain

    def _collect(self, domain: Domain) -> None:
        """Finds the devices that a request for all has to take, and those of them that it cannot take (section 7)."""
        node = self._node
        # Before any selector: of a pool in trouble it is not known which devices are all of them (section 7).
        for pool in self._troubled(domain):
            raise PoolError(
                f"claim {self._program.claims[domain.claim].key}, request {domain.alternative.request}: asks for all "
                f"devices, but {pool.complaint}: have its driver publish the whole pool, or ask for a number of devices"
            )
        offered = offer(node, domain)
        if offered.raised:
            # The first in the order of section 3 is the one that the reference meets.
            raise node.error_at(self._program.claims[domain.claim].key, domain.alternative, next(each(offered.raised)))
        domain.amounts = offered.shares
        domain.collected = offered.chosen
        for keeps in CHOOSING[node.features.release]:
            domain.collected = keeps(node, domain, domain.collected)
        domain.need = domain.collected.bit_count()
        domain.usable = domain.collected & offered.usable
        for keeps in KEEPING[node.features.release]:
            domain.usable = keeps(node, domain, domain.usable)


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
            known = _Filtering(node, program).filtered()
            node.keep(program.stages, known)
        self.domains = known.domains
        """By stage, an entry for each alternative. Problems share them until they need some of their own."""
        if known.wants_ledgers:
            self.own_domains()
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
        # A search changes its ledgers, and may be put aside while others on the same node go on.
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
