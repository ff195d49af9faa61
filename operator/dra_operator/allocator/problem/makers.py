"""Which ledgers a request falls under, in the order in which they are asked.

The order matters for a request for all devices: the first ledger that refuses a device decides how the attempt
continues. A device that an earlier request shares violates a constraint rather than being used up (section 7).

A node asks once for each request and keeps the answer with what the filters leave; each problem then makes its ledgers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from dra_operator.allocator.request.claim_program import Comparison

from .constraints import Distinct, Match
from .derived_constraints import DerivedDistinct, DerivedMatch
from .domain import Domain, Wanted
from .ledger import Ledger
from .node_state import NodeState
from .shares import Shares


def compatibility(node: NodeState, domain: Domain) -> Iterable[Wanted]:
    """The compatibility groups of the pools whose devices the request may take."""
    if not node.features.compatibility_groups or node.exempt(domain):
        return ()
    return [(("compatibility", it), node.compatibility(it).copy) for it in node.grouped_places(domain.usable)]


def counters(node: NodeState, domain: Domain) -> Iterable[Wanted]:
    """The counters of the pools whose devices the request may take."""
    consuming = domain.usable & node.view.consuming
    if not consuming or node.exempt(domain) or not node.features.partitionable_devices:
        return ()
    return [(("counters", place), node.counters(place).copy) for place in node.places(consuming)]


def constraints(node: NodeState, domain: Domain) -> Iterable[Wanted]:
    """The constraints of its claim, also for admin access."""
    return [
        (("constraint", domain.claim, comparison.position), _constraint(node, comparison))
        for comparison in domain.alternative.constraints
    ]


def shares(node: NodeState, domain: Domain) -> Iterable[Wanted]:
    """Consumable capacity, if the request may take a device that has any."""
    if not domain.usable & node.shareable or node.exempt(domain):
        return ()
    return (("shares", partial(Shares, node.shareable, node.left)),)


def _constraint(node: NodeState, comparison: Comparison) -> Callable[[], Ledger]:
    if comparison.is_derived:
        kind = DerivedDistinct if comparison.distinct else DerivedMatch
        return partial(kind, comparison.attribute, partial(node.column_of, comparison), node.view.id)
    return partial(Distinct if comparison.distinct else Match, node.column(comparison))


MAKERS: tuple[Callable[[NodeState, Domain], Iterable[Wanted]], ...] = (
    compatibility,
    counters,
    constraints,
    shares,
)
