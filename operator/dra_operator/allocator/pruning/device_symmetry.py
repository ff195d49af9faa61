"""Interchangeable devices: nothing that a problem asks can tell them apart.

Two devices are interchangeable when they are in the same domains and no ledger tells them apart
(``Ledger.tells_apart``). When the search fails with one, it fails with the other, so only the first is tried. What was
taken so far may still tell them apart: ledgers say so (``Ledger.alike_now``), and admin access may take devices that
another claim of the call has taken as well, for which only those are alike (``Pruner.interchangeable_with``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dra_ledger.basics import each

from dra_operator.allocator.problem.domain import Domain
from dra_operator.allocator.problem.problem import Problem

SMALL_SET_DEVICES: Final = 8
"""Sets of at most so many devices are split device by device."""


def interchangeable(problem: Problem) -> dict[int, int]:
    """For each device with interchangeable ones, their set, including itself."""
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


def _concerned(problem: Problem) -> int:
    devices = 0
    for domains in problem.domains:
        for domain in domains:
            devices |= domain.usable | domain.raised | domain.collected
    return devices


def _sets(problem: Problem, concerned: int) -> Iterable[int]:
    """Everything that tells devices apart, without repetition."""
    sets = {problem.node.shareable}
    for domains in problem.domains:
        for domain in domains:
            sets |= {domain.usable, domain.raised, domain.collected}
    for ledger, under_it in problem.ledgers.items():
        sets.update(ledger.tells_apart(concerned, under_it))
    return sets
