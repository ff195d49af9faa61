"""What has to be allocated for a pod, which may differ between nodes.

First the claims of the pod that have no devices yet, then the claim for its extended resources (the order of the
reference), which depends on what devices serve on the node. Most pods have one demand for all nodes. Each demand has
its own program and its own candidates in the index of the allocator.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from dra_api.resource import AllocationResult, ResourceClaim

from dra_operator.allocator import Allocator, AttributeValue, Candidates, ClaimProgram, Refusal
from dra_operator.scheduling.nodes import Nodes
from dra_operator.scheduling.state.node import LoadedNode

from .extended_resources import ExtendedClaim, ExtendedResources, Served


@dataclass(slots=True, eq=False)
class Demand:
    """What the pod needs on the nodes where devices serve the same of its extended resources."""

    served: Served
    extended: ExtendedClaim | None
    """The claim that would have to be made; None if devices serve nothing, or if it is made already."""
    is_outdated: bool
    """The claim made in an earlier attempt is not what these nodes call for."""
    claims: tuple[ResourceClaim, ...]
    program: ClaimProgram
    candidates: Candidates | None = None
    """None if there is nothing to allocate, so that every node may do."""
    asked: int = 0

    def may_fit(self, node: str) -> bool:
        """Whether one of its nodes is worth trying."""
        return self.candidates is None or self.candidates.anywhere or node in self.candidates

    def in_terms_of_pod(self, refusal: Refusal) -> Refusal:
        """The refusal in the terms of the pod's author."""
        return self.extended.in_terms_of_pod(refusal) if self.extended is not None else refusal

    def allocations(self, results: Sequence[AllocationResult]) -> dict[str, AllocationResult]:
        """The results, which come in the order of the claims, by claim UID."""
        return dict(zip((claim.metadata.uid for claim in self.claims), results, strict=True))


class Demands:
    """The demands of one pod with these claims. All devices have the ``value``, if there is one."""

    def __init__(
        self,
        claims: Iterable[ResourceClaim],
        extended: ExtendedResources,
        nodes: Nodes,
        allocator: Allocator,
        value: AttributeValue | None = None,
    ) -> None:
        self._open = tuple(claim for claim in claims if claim.status.allocation is None)
        self._extended, self._nodes, self._allocator, self._value = extended, nodes, allocator, value
        self._known: dict[Served, Demand] = {}
        self._groups: dict[Served, frozenset[str] | None] = {}
        self._rest: Demand | None = None

    def on(self, state: LoadedNode) -> Demand:
        """The demand on one node. Raises ClaimError, see ``ExtendedResources.claim_for``."""
        return self._get(self._extended.served_on(state))

    def all(self) -> list[Demand]:
        """All demands that the current nodes cause. Raises ClaimError."""
        self._groups = self._extended.groups(self._nodes)
        demands = {self._get(served): members for served, members in self._groups.items()}
        self._rest = next((demand for demand, members in demands.items() if members is None), None)
        return list(demands)

    def may_fit(self, node: str) -> bool:
        """Whether the node is worth trying, according to the candidates of its demand."""
        demand = self._of(node)
        return demand is not None and demand.may_fit(node)

    def nodes_of(self, demand: Demand, names: Iterable[str]) -> Iterator[str]:
        """Which of the nodes have this demand."""
        if demand is self._rest and len(self._groups) == 1:
            return iter(names)
        return (name for name in names if self._of(name) is demand)

    def size(self, demand: Demand) -> int:
        """How many nodes have this demand."""
        members = self._groups.get(demand.served)
        if members is not None:
            return len(members)
        return len(self._nodes) - sum(len(others) for others in self._groups.values() if others is not None)

    def short_list(self, most: int) -> list[str] | None:
        """All nodes that may fit, if they are fewer than ``most``."""
        found: list[str] = []
        for served, members in self._groups.items():
            candidates = self._get(served).candidates
            if candidates is not None and not candidates.anywhere:
                found += islice(self.nodes_of(self._get(served), candidates), most - len(found))
            elif members is not None and len(members) < most - len(found):
                found += members
            else:
                return None
            if len(found) >= most:
                return None
        return found

    def _of(self, node: str) -> Demand | None:
        """What ``on`` says, as it was when ``all`` was asked, and without looking at the node."""
        for served, members in self._groups.items():
            if members is not None and node in members:
                return self._known[served]
        return self._rest

    def _get(self, served: Served) -> Demand:
        known = self._known.get(served)
        if known is None:
            wanted = self._extended.claim_for(served)
            missing = wanted if self._extended.made is None else None
            claims = (*self._open, missing.claim) if missing is not None else self._open
            outdated = self._extended.is_outdated(wanted)
            known = Demand(served, missing, outdated, claims, self._allocator.compile(claims, self._value))
            self._known[served] = known
        return known
