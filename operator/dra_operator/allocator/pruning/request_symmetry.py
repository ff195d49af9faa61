"""Requests that ask for exactly the same need only be served in order.

Two requests are symmetric when every device suits one as it suits the other. Exchanging what they took turns a solution
into a solution, so the first solution gives the earlier one the earlier devices, and whatever would give one a
device before those of an earlier one can be left out. Without that, n equal requests that cannot all be served are
tried in all n! orders.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from dra_operator.allocator.problem.domain import Domain
from dra_operator.allocator.problem.ledger import Ledger, Request
from dra_operator.allocator.problem.problem import Problem


class RequestOrder(Ledger):
    """The ledger of symmetric requests: admits the devices behind the latest one that any of them took.

    A device that can be shared (one of ``shareable``) may be taken again by the next one.
    """

    lasting = True

    def __init__(self, shareable: int) -> None:
        self._shareable = shareable
        self._behind = [-1]

    def admit(self, devices: int, request: Request) -> int:
        return devices & self._behind[-1]

    def take(self, device: int, request: Request) -> None:
        self._behind.append(-1 << device + (not self._shareable >> device & 1))

    def give_back(self, device: int, request: Request) -> None:
        self._behind.pop()

    def state(self) -> Hashable:
        return self._behind[-1]


def introduce(problem: Problem, first: int) -> None:
    """Gives symmetric requests among the stages from ``first`` on their common ledgers, one for each alternative."""
    shareable = problem.node.shareable
    by_claim = problem.program.wants_admin_access
    """What admin access takes is in use for its own claim, but need not be for another."""
    families: dict[Hashable, list[tuple[Domain, ...]]] = {}
    for domains in problem.domains[first:]:
        if not any(_is_alone(domain, shareable) for domain in domains):
            families.setdefault(tuple(_symmetry_key(domain, by_claim=by_claim) for domain in domains), []).append(
                domains
            )
    for family in families.values():
        if len(family) > 1:
            for members in zip(*family, strict=True):
                _connect(members, RequestOrder(shareable))


def _connect(members: Iterable[Domain], ledger: Ledger) -> None:
    for domain in members:
        domain.ledgers = (*domain.ledgers, ledger)


def _is_alone(domain: Domain, shareable: int) -> bool:
    """Devices cannot be exchanged one for one with those of another request."""
    return domain.alternative.everything or bool(domain.need > 1 and domain.usable & shareable)


def _symmetry_key(domain: Domain, *, by_claim: bool) -> Hashable:
    """Equal for domains that the search cannot tell apart but by their order."""
    claim = domain.claim if by_claim else None
    ledgers = tuple((id(ledger), ledger.treats(domain)) for ledger in domain.ledgers)
    return domain.usable, domain.need, domain.alternative.admin, claim, ledgers
