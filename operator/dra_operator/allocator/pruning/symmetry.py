"""Interchangeable devices: nothing that a problem asks can tell them apart.

Two devices are interchangeable when they are in the same domains, have the same values in all constrained
attributes and consume the same counters. When the search fails with one, it fails with the other, so only
the first is tried. Of devices that can be shared, only those are alike that also have the same capacity
left at the moment, and for admin access only those that another claim of the call has taken as well (see
``Pruner.interchangeable_with``); those that can be shared and consume counters besides are told apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dra_operator.allocator.basics.bits import each
from dra_operator.allocator.problem.domain import Domain
from dra_operator.allocator.problem.problem import Problem
from dra_operator.allocator.published.columns import Column

from .sharing import offers

SMALL: Final = 8
"""Up to so many devices a set is looked at device by device."""


def interchangeable(problem: Problem) -> dict[int, int]:
    """For each device that is not alone: the set of devices interchangeable with it, itself included."""
    if any(_sees_order(domain) for domains in problem.domains for domain in domains):
        return {}
    classes = split([_concerned(problem)], _sets(problem))
    return {device: members for members in classes if members & (members - 1) for device in each(members)}


def _sees_order(domain: Domain) -> bool:
    """Devices that are equal by themselves are not equal for the domain.

    A request for all devices under a constraint fails or ends the attempt, depending on whether the first of them
    is in use or violates the constraint.
    """
    return domain.alternative.everything and bool(domain.constraints)


def split(classes: Iterable[int], by: Iterable[int]) -> list[int]:
    """The classes cut so that each lies wholly inside or outside of every given set."""
    large: list[int] = []
    small: list[int] = []
    for distinguishing in by:
        (large if distinguishing.bit_count() > SMALL else small).append(distinguishing)
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


def _sets(problem: Problem) -> Iterable[int]:
    """Everything that tells devices apart, without repetition."""
    sets: set[int] = set()
    columns: set[Column] = set()
    for domains in problem.domains:
        for domain in domains:
            sets |= {domain.usable, domain.raised, domain.collected}
            columns |= {constraint.column for constraint in domain.constraints}
    for column in columns:
        sets.update(column.having.values())
    for counters in problem.counters:
        sets.update(devices for _, devices in counters.groups)
    sets.add(problem.view.shareable)
    sets.update(1 << device for device in each(problem.view.shareable & problem.view.consuming))
    sets.update(_amounts(problem))
    return sets


def _amounts(problem: Problem) -> Iterable[int]:
    """The devices that can be shared, by what a share consumes of them."""
    for amounts, usable in offers(problem):
        groups: dict[tuple[tuple[str, int], ...], int] = {}
        for device in each(usable):
            if device in amounts:
                key = tuple((name, amount.nanos) for name, amount in amounts[device].items())
                groups[key] = groups.get(key, 0) | 1 << device
        yield from groups.values()
