"""The claims on one node: for each alternative a domain, which filters leave, and the ledgers that requests share.

Filters and ledgers come from two ordered lists (``filters``, ``makers``).
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import cached_property

from dra_ledger.errors import AllocationError

from dra_operator.allocator.request.claim_program import ClaimProgram

from .domain import Domain
from .filtering import filtered
from .ledger import Ledger
from .node_state import NodeState


class Problem:
    """The claims on one node: a domain for each alternative of each stage, and the ledgers they share.

    Raises AllocationError from the constructor for everything that is fatal before the search.
    """

    def __init__(self, node: NodeState, program: ClaimProgram) -> None:
        self.node = node
        self.view = node.view
        self.program = program
        known = node.filtered.get(program.stages) if program.fault is None else None
        if known is None:
            known = filtered(node, program)
            node.keep(program.stages, known)
        self.domains = known.domains
        """By stage, an entry for each alternative. Problems share them until they need some of their own."""
        if known.wants_ledgers:
            self.own_domains()
        self._dead = known.dead
        """The first stage that cannot be served even alone."""
        self.is_faulty = known.is_faulty
        """It is not known what the node has for some request for all devices."""
        if program.derives_attributes:
            node.compiled.check_derived(
                (it.usable.bit_count(), it.derived.values()) for domains in self.reached for it in domains
            )

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
