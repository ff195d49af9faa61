"""Interchangeable devices and symmetric requests: one of the devices is tried, the requests are served in one order.

Two devices are interchangeable when they are in the same domains and no ledger tells them apart
(``Ledger.tells_apart``). When the search fails with one, it fails with the other, so only the first is tried. What was
taken so far may still tell them apart: ledgers say so (``Ledger.alike_now``), and admin access may take devices that
another claim of the call has taken as well, for which only those are alike (``Pruner.interchangeable_with``).

Two requests are symmetric when every device suits one as it suits the other. Exchanging what they took turns a solution
into a solution, so the first solution gives the earlier one the earlier devices, and a branch that gives a request a
device before those of an earlier one can be left out. Without that, n equal requests that cannot all be served are
tried in all n! orders.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Final

from dra_ledger.basics import each

from dra_operator.allocator.problem.ledgers import Ledger, Request
from dra_operator.allocator.problem.node_state import Domain
from dra_operator.allocator.problem.problem import NodeProblem

SMALL_SET_DEVICES: Final = 8
"""Sets of at most so many devices are split device by device."""


def interchangeable(problem: NodeProblem) -> dict[int, int]:
    """For each device with interchangeable ones, their set, including itself."""
    # Exchanging two devices could turn a refusal into an error, or the other way round.
    if any(_sees_order(domain) for domains in problem.domains for domain in domains):
        return {}
    concerned = _concerned(problem)
    classes = split([concerned], _sets(problem, concerned))
    return {device: members for members in classes if members & (members - 1) for device in each(members)}


def _sees_order(domain: Domain) -> bool:
    """Devices that are equal by themselves are not equal for the domain.

    A request for all devices under a ledger that ends the attempt fails or ends it, depending on whether the first
    device is in use or refused.
    """
    return domain.alternative.everything and any(ledger.ends_attempt for ledger in domain.ledgers)


def split(classes: Iterable[int], by: Iterable[int]) -> list[int]:
    """The classes cut so that each lies wholly inside or outside of every given set."""
    large: list[int] = []
    small: list[int] = []
    for distinguishing in by:
        (large if distinguishing.bit_count() > SMALL_SET_DEVICES else small).append(distinguishing)
    parts = list(classes)
    # Each large set at most doubles the parts. Small ones come in hundreds: an attribute that is different on each
    # device.
    for distinguishing in large:
        halves = [(members & distinguishing, members & ~distinguishing) for members in parts]
        parts = [part for pair in halves for part in pair if part]
    return _split_off(parts, small) if small else parts


def _split_off(classes: Iterable[int], small: Iterable[int]) -> list[int]:
    """The same for many small sets, as an attribute has them that is different on each device: one device at a time."""
    inside: dict[int, list[int]] = {}
    for number, distinguishing in enumerate(small):
        for device in each(distinguishing):
            inside.setdefault(device, []).append(number)
    concerned = sum(1 << device for device in inside)
    parts: list[int] = []
    for members in classes:
        alike: dict[tuple[int, ...], int] = {}
        for device in each(members & concerned):
            key = tuple(inside[device])
            alike[key] = alike.get(key, 0) | 1 << device
        parts += alike.values()
        if members & ~concerned:
            parts.append(members & ~concerned)
    return parts


def _concerned(problem: NodeProblem) -> int:
    devices = 0
    for domains in problem.domains:
        for domain in domains:
            devices |= domain.usable | domain.raised | domain.collected
    return devices


def _sets(problem: NodeProblem, concerned: int) -> Iterable[int]:
    """Everything that tells devices apart, without repetition."""
    # Whether a device can be shared decides whether it is in use once it is taken.
    sets = {problem.node.shareable}
    for domains in problem.domains:
        for domain in domains:
            sets |= {domain.usable, domain.raised, domain.collected}
    for ledger, under_it in problem.ledgers.items():
        sets.update(ledger.tells_apart(concerned, under_it))
    return sets


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
        # The next request begins behind this device, or with it where a second share of it can be taken.
        self._behind.append(-1 << device + (not self._shareable >> device & 1))

    def give_back(self, device: int, request: Request) -> None:
        self._behind.pop()

    def state(self) -> Hashable:
        return self._behind[-1]


def introduce(problem: NodeProblem, first: int) -> None:
    """Gives symmetric requests among the stages from ``first`` on their common ledgers, one for each alternative."""
    shareable = problem.node.shareable
    by_claim = problem.program.wants_admin_access
    """What admin access takes is in use for its own claim, but need not be for another."""
    families: dict[Hashable, list[tuple[Domain, ...]]] = {}
    # Before the last stage at which an error may be met, which devices are tried is observable.
    for domains in problem.domains[first:]:
        if not any(_is_alone(domain, shareable) for domain in domains):
            families.setdefault(tuple(_symmetry_key(domain, by_claim=by_claim) for domain in domains), []).append(
                domains
            )
    for family in families.values():
        if len(family) > 1:
            # Alternative by alternative: only requests that use the same one can exchange what they took.
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
