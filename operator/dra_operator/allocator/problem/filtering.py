"""Applies the filters to a program on a node, which gives domains, and finds errors before any search.

Raises AllocationError for faults of the claims. Faults of pools and selectors make an alternative that asks for all
devices one that the node cannot serve (``Domain.fault``); in the reference they are raised as well.
"""

from __future__ import annotations

from collections.abc import Iterator

from dra_api.resource import MOST_RESULTS
from dra_ledger.basics import each
from dra_ledger.errors import AllocationError, ClaimError, PoolError
from dra_ledger.pools import PoolView, Status

from dra_operator.allocator.request.claim_program import Alternative, ClaimProgram

from . import makers
from .domain import Domain, Filtered
from .filters import CHOOSING, KEEPING, in_use, offer
from .node_state import NodeState


def filtered(node: NodeState, program: ClaimProgram) -> Filtered:
    """Applies the filters to all alternatives of a program."""
    filtering = _Filtering(node, program)
    made = list(filtering.domains())
    dead = (stage for stage, domains in enumerate(made) if all(domain.short for domain in domains))
    wants_ledgers = any(domain.wanted for domains in made for domain in domains)
    return Filtered(made, next(dead, len(made)), wants_ledgers, filtering.is_faulty)


class _Filtering:
    def __init__(self, node: NodeState, program: ClaimProgram) -> None:
        self._node = node
        self._program = program
        self._count = 0
        self.is_faulty = False

    def domains(self) -> Iterator[tuple[Domain, ...]]:
        """The domains in the order of the stages; makes the checks of section 4 after the requests of each claim."""
        program, stages, position = self._program, self._program.stages, 0
        for number in range(len(program.claims)):
            least = 0
            while position < len(stages) and stages[position].claim == number:
                domains = tuple([self._domain(number, alternative) for alternative in stages[position].alternatives])
                yield domains
                least += min([domain.need for domain in domains])
                position += 1
            if number + 1 == len(program.requests) and program.fault is not None:
                raise program.fault
            if least > MOST_RESULTS:
                raise self._too_many(number, least)

    def _too_many(self, number: int, least: int) -> ClaimError:
        """The claim asks for more than it may have: on each node, or because of the devices that this one has."""
        stages = [stage for stage in self._program.stages if stage.claim == number]
        exact = sum(min(0 if one.everything else one.count for one in stage.alternatives) for stage in stages)
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
                domain.raised = in_use(node, domain, offered.raised)
            for keeps in (*CHOOSING[release], *KEEPING[release]):
                domain.usable = keeps(node, domain, domain.usable)
        domain.wanted = tuple([wanted for concerned in makers.MAKERS for wanted in concerned(node, domain)])
        return domain

    def _collect(self, domain: Domain) -> None:
        """Finds the devices that a request for all has to take, and those of them that it cannot take (section 7)."""
        node = self._node
        for pool in self._troubled(domain):
            raise PoolError(
                f"claim {self._program.claims[domain.claim].key}, request {domain.alternative.request}: asks for all "
                f"devices, but {pool.complaint}: have its driver publish the whole pool, or ask for a number of devices"
            )
        offered = offer(node, domain)
        if offered.raised:
            raise node.error_at(self._program.claims[domain.claim].key, domain.alternative, next(each(offered.raised)))
        domain.amounts = offered.shares
        domain.collected = offered.chosen
        for keeps in CHOOSING[node.features.release]:
            domain.collected = keeps(node, domain, domain.collected)
        domain.need = domain.collected.bit_count()
        domain.usable = domain.collected & offered.usable
        for keeps in KEEPING[node.features.release]:
            domain.usable = keeps(node, domain, domain.usable)
