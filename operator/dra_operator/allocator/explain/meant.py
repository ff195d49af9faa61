"""The published devices and pools that a request can mean.

Selectors that name drivers rule all others out. What those publish is no reason why the request is refused, and a
refusal that counted it would change with each slice of theirs.
"""

from __future__ import annotations

from typing import NamedTuple

from dra_ledger.pools import PoolView, Superseded, Unreadable

from dra_operator.allocator.problem.domain import Domain
from dra_operator.allocator.problem.problem import Problem


class Meant(NamedTuple):
    """``devices``: how many. ``troubled``: pools that cannot be used, ``outdated``: those of older generations,
    ``unreadable``: those with malformed node selectors."""

    devices: int
    troubled: list[PoolView]
    outdated: list[Superseded]
    unreadable: list[Unreadable]
    names_driver: bool
    """The selectors name drivers, so that those of others are not counted."""
    mixed: bool
    """The devices are those of several drivers, although the selectors name none."""


def meant(problem: Problem, domain: Domain) -> Meant:
    """What an alternative of a request can mean."""
    view = problem.view
    naming = problem.node.compiled.drivers(domain.alternative.expressions)
    pools = [view_.pool for view_ in (*view.pools, *view.troubled)]
    pools += [*(old.pool for old in view.outdated), *(one.pool for one in view.unreadable)]
    drivers = {pool.driver for pool in pools}
    drivers = {driver for driver in drivers if not any(one.excludes(driver) for one in naming)}
    usable = [pool for pool in view.pools if pool.pool.driver in drivers]
    return Meant(
        sum(len(pool.devices) for pool in usable),
        [pool for pool in view.troubled if pool.pool.driver in drivers],
        [old for old in view.outdated if old.pool.driver in drivers],
        [one for one in view.unreadable if one.pool.driver in drivers],
        bool(naming),
        not naming and len({pool.pool.driver for pool in usable}) > 1,
    )
