"""Applies the filters to a program on a node, which gives domains, and finds errors that are fatal before any search.

Raises AllocationError for faults of the claims and, for requests for all devices, of pools and selectors.
"""

from __future__ import annotations

from collections.abc import Iterator

from dra_api.resource import MOST_RESULTS

from dra_operator.allocator.basics.bits import each
from dra_operator.allocator.basics.errors import ClaimError, PoolError
from dra_operator.allocator.request.claim_program import Alternative, ClaimProgram

from . import makers
from .domain import Domain, Filtered
from .filters import CHOOSING, KEEPING, in_use, offer
from .node_state import NodeState


def filtered(node: NodeState, program: ClaimProgram) -> Filtered:
    """Applies the filters to all alternatives of a program."""
    made = list(_Filtering(node, program).domains())
    dead = (stage for stage, domains in enumerate(made) if all(domain.short for domain in domains))
    wants_ledgers = any(domain.wanted for domains in made for domain in domains)
    return Filtered(made, next(dead, len(made)), wants_ledgers)


class _Filtering:
    def __init__(self, node: NodeState, program: ClaimProgram) -> None:
        self._node = node
        self._program = program
        self._count = 0

    def domains(self) -> Iterator[tuple[Domain, ...]]:
        """The domains in the order of the stages; makes the checks of section 4 after the requests of each claim."""
        program, stages, position = self._program, self._program.stages, 0
        for number, claim in enumerate(program.claims):
            least = 0
            while position < len(stages) and stages[position].claim == number:
                domains = tuple([self._domain(number, alternative) for alternative in stages[position].alternatives])
                yield domains
                least += min([domain.need for domain in domains])
                position += 1
            if number + 1 == len(program.requests) and program.fault is not None:
                raise program.fault
            if least > MOST_RESULTS:
                raise ClaimError(
                    f"claim {claim.key}: number of requested devices {least} exceeds the claim limit of "
                    f"{MOST_RESULTS}: divide the requests among several claims"
                )

    def _domain(self, claim: int, alternative: Alternative) -> Domain:
        domain, node = Domain(alternative, claim, self._count), self._node
        release = node.features.release
        self._count += 1
        if alternative.everything:
            self._collect(domain)
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
        for pool in node.view.troubled:
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
