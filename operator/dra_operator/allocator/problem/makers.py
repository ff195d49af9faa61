"""Which ledgers a request falls under, in the order in which they are asked.

The order matters for a request for all devices: the first ledger that refuses a device decides how the attempt
continues. A device that an earlier request shares violates a constraint rather than being used up (section 7).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from dra_operator.allocator.request.claim_program import Comparison

from .constraints import Constraint, Distinct, Match
from .counters import Counters
from .domain import Domain
from .ledger import Ledger
from .ledgers import Ledgers
from .node_state import NodeState
from .shares import Shares


def counters(ledgers: Ledgers, domain: Domain) -> Iterable[Ledger]:
    """The counters of the pools whose devices the request may take."""
    node = ledgers.node
    consuming = domain.usable & node.view.consuming
    if not consuming or node.exempt(domain) or not node.features.partitionable_devices:
        return ()
    return [ledgers.get((Counters, place), partial(_counters, place)) for place in node.places(consuming)]


def constraints(ledgers: Ledgers, domain: Domain) -> Iterable[Ledger]:
    """The constraints of its claim, also for admin access."""
    return [
        ledgers.get((Constraint, domain.claim, comparison.position), partial(_constraint, comparison))
        for comparison in domain.alternative.constraints
    ]


def shares(ledgers: Ledgers, domain: Domain) -> Iterable[Ledger]:
    """Consumable capacity, if the request may take a device that has any."""
    node = ledgers.node
    return (ledgers.get(Shares, _shares),) if domain.usable & node.shareable and not node.exempt(domain) else ()


def _counters(place: int, node: NodeState) -> Ledger:
    return node.counters(place).copy()


def _constraint(comparison: Comparison, node: NodeState) -> Ledger:
    column = node.column(comparison)
    return Distinct(column) if comparison.distinct else Match(column)


def _shares(node: NodeState) -> Ledger:
    return Shares(node.shareable, node.left)


MAKERS: tuple[Callable[[Ledgers, Domain], Iterable[Ledger]], ...] = (counters, constraints, shares)
