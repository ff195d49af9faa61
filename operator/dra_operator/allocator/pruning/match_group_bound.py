"""A bound for several ``matchAttribute`` constraints over one attribute.

The requests of one constraint are a group: all of its devices come from one value. Several groups may share a value
as long as it has enough devices for all of them. Whether there are values for all groups is a flow again.
"""

from __future__ import annotations

from collections.abc import Sequence

from dra_ledger.columns import Column

from dra_operator.allocator.problem.ledger import Ledger
from dra_operator.allocator.search.pruner import Remaining

from .flow import Need, Supply, feasible
from .open_request import OpenRequest


def match_groups_suffice(remaining: Remaining, opened: Sequence[OpenRequest], several: int) -> bool:
    """False only when the groups of some attribute certainly cannot all find a value."""
    return all(
        len(groups) < 2 or _find_values(column, groups, remaining)
        for column, groups in _by_column(remaining, opened, several).items()
    )


def _by_column(
    remaining: Remaining, opened: Sequence[OpenRequest], several: int
) -> dict[Column, list[list[OpenRequest]]]:
    """The groups of each attribute; no request is in two of them, and no device can serve two requests."""
    members: dict[tuple[Ledger, Column], list[OpenRequest]] = {}
    for request in opened:
        if not request.admin and not request.devices(remaining) & several:
            for ledger in request.bound:
                if ledger.agrees_on is not None:
                    members.setdefault((ledger, ledger.agrees_on), []).append(request)
    groups: dict[Column, list[list[OpenRequest]]] = {}
    for (_, column), group in members.items():
        others = groups.setdefault(column, [])
        if not any(request is other for other_group in others for other in other_group for request in group):
            others.append(group)
    return groups


def _find_values(column: Column, groups: Sequence[Sequence[OpenRequest]], remaining: Remaining) -> bool:
    having = list(column.having.values())
    needs = [sum(request.need(remaining) for request in group) for group in groups]
    values = [_values(having, group, remaining) for group in groups]
    together = 0
    for group in groups:
        for request in group:
            together |= request.devices(remaining)
    supplies = []
    for position, devices in enumerate(having):
        fitting = sorted(need for need, possible in zip(needs, values, strict=True) if possible >> position & 1)
        supplies.append(Supply(1 << position, _fit(fitting, (devices & together).bit_count())))
    return feasible([Need(possible, 1) for possible in values], supplies)


def _values(having: Sequence[int], group: Sequence[OpenRequest], remaining: Remaining) -> int:
    """The positions of the values with enough devices for each request of a group."""
    return sum(
        1 << position
        for position, devices in enumerate(having)
        if all(
            any(
                (remaining[domain.number] & devices).bit_count() >= need for domain, need in request.ruled_in(remaining)
            )
            for request in group
        )
    )


def _fit(needs: Sequence[int], room: int) -> int:
    """How many of the needs, smallest first, find room together."""
    for count, need in enumerate(needs):
        room -= need
        if room < 0:
            return count
    return len(needs)
