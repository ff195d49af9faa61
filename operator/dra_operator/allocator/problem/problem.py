"""The claims on one node: for each alternative a domain, which filters leave, and the ledgers that requests share.

Filters and ledgers come from two ordered lists (``filters``, ``makers``).
"""

from __future__ import annotations

from functools import cached_property

from dra_api.resource import RESULTS_LIMIT

from dra_operator.allocator.basics.bits import each
from dra_operator.allocator.basics.errors import AllocationError, ClaimError, PoolError, SelectorError
from dra_operator.allocator.basics.features import Features
from dra_operator.allocator.published.node_view import NodeView
from dra_operator.allocator.published.predicates import Compiled
from dra_operator.allocator.request.claim_program import Alternative, ClaimProgram
from dra_operator.allocator.usage import Usage

from . import makers
from .domain import Domain
from .filters import CHOOSING, KEEPING, in_use, offer
from .ledger import Ledger
from .node_state import NodeState


class Problem:
    """The claims on one node: a domain for each alternative of each stage, and the ledgers they share.

    Raises AllocationError from the constructor for everything that is fatal before the search.
    """

    def __init__(
        self,
        view: NodeView,
        program: ClaimProgram,
        usage: Usage,
        features: Features,
        compiled: Compiled,
        *,
        admin_exempt: bool = False,
    ) -> None:
        self.node = NodeState(view, program.claims, usage, features, compiled, admin_exempt=admin_exempt)
        self.view = view
        self.program = program
        self.domains: list[tuple[Domain, ...]] = []
        self._count = 0
        self._prepare()
        self._dead = next((stage for stage, domains in enumerate(self.domains) if _is_dead(domains)), len(self.domains))
        """The first stage that cannot be served, even if nothing else was asked for."""

    @cached_property
    def takers(self) -> dict[Ledger, list[Domain]]:
        """All ledgers, and the alternatives that each concerns."""
        takers: dict[Ledger, list[Domain]] = {}
        for domains in self.domains:
            for domain in domains:
                for ledger in domain.ledgers:
                    takers.setdefault(ledger, []).append(domain)
        return takers

    def outside(self, ledger: Ledger, devices: int) -> frozenset[int]:
        """The numbers of the alternatives that may take some of the devices without concerning the ledger."""
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
    def hopeless(self) -> bool:
        """Some request cannot even be served alone, and no fatal error can be met before that is noticed."""
        return self._dead < len(self.domains) and all(
            domain.cannot_raise for domains in self.reached for domain in domains
        )

    @property
    def reached(self) -> list[tuple[Domain, ...]]:
        """The stages that a search can reach: it never gets past one that cannot even be served alone."""
        return self.domains[: self._dead + 1]

    def error_at(self, domain: Domain, device: int) -> AllocationError:
        """The error of the first selector that raises on a device, evaluated once more for its text."""
        published, id_ = self.view.devices[device], self.view.id(device)
        for selector in domain.alternative.selectors:
            try:
                self.node.compiled.predicate(selector.expression)(id_.driver, published)
            except Exception as error:
                return selector.error(id_, published, error)
        return SelectorError(
            f"claim {self.program.claims[domain.claim].key}, request {domain.alternative.request}: a selector failed "
            f"on device {id_}, but not when it was evaluated once more: its language is not deterministic"
        )

    def _prepare(self) -> None:
        """Domains in the order of the stages; per claim the checks of section 4 behind its requests."""
        program, stages, position = self.program, self.program.stages, 0
        for number, claim in enumerate(program.claims):
            least = 0
            while position < len(stages) and stages[position].claim == number:
                domains = tuple([self._domain(number, alternative) for alternative in stages[position].alternatives])
                self.domains.append(domains)
                least += min([domain.need for domain in domains])
                position += 1
            if program.fault is not None and position == len(stages) and number == program.fault_claim:
                raise program.fault
            if least > RESULTS_LIMIT:
                raise ClaimError(
                    f"claim {claim.key}: number of requested devices {least} exceeds the claim limit of "
                    f"{RESULTS_LIMIT}: divide the requests among several claims"
                )

    def _domain(self, claim: int, alternative: Alternative) -> Domain:
        domain, node = Domain(alternative, claim, self._count), self.node
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
            for keeps in (*CHOOSING, *KEEPING):
                domain.usable = keeps(node, domain, domain.usable)
        domain.ledgers = tuple([ledger for make in makers.MAKERS for ledger in make(node, domain)])
        if domain.ledgers:
            domain.comparing = tuple([one for one in domain.ledgers if one.agrees_on or one.differs_in])
        return domain

    def _collect(self, domain: Domain) -> None:
        """All: which devices have to be taken, and which of them cannot be (section 7)."""
        for pool in self.view.troubled:
            raise PoolError(
                f"claim {self.program.claims[domain.claim].key}, request {domain.alternative.request}: asks for all "
                f"devices, but {pool.complaint}: have its driver publish the whole pool, or ask for a number of devices"
            )
        offered = offer(self.node, domain)
        if offered.raised:
            raise self.error_at(domain, next(each(offered.raised)))
        domain.amounts = offered.shares
        domain.collected = offered.chosen
        for keeps in CHOOSING:
            domain.collected = keeps(self.node, domain, domain.collected)
        domain.need = domain.collected.bit_count()
        domain.usable = domain.collected & offered.usable
        for keeps in KEEPING:
            domain.usable = keeps(self.node, domain, domain.usable)


def _is_dead(domains: tuple[Domain, ...]) -> bool:
    return all(domain.short for domain in domains)
