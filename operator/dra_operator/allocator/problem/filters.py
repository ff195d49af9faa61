"""Which devices an alternative of a request may take: an ordered list of checks.

A filter depends only on the inventory, the allocated state and the request, so its result is a set. Filters that ignore
the allocated state leave an ``Offer``, which a node keeps from one decision to the next.
The order matters for two things: selectors are evaluated on devices that are not in use and carry no forbidden binding
conditions, capacity is counted on those that the selectors select, and a selector that raises there, or an amount that
is fatal, ends the attempt if the search reaches the device (allocator.md sections 6 and 9); and the refusal blames the
first filter that left too little.

For a request for all devices, some filters choose the devices that it has to take, and others only keep it from taking
one of them (section 7).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from operator import attrgetter
from typing import Final, NamedTuple

from dra_api.releases.release import Release
from dra_api.selectors import declares_optional_node_operations
from dra_ledger.basics import each
from dra_ledger.node_view import Offer
from dra_ledger.taints import LEFT, blocking

from dra_operator.allocator.outcome import Rule

from .node_state import NO_AMOUNTS, Domain, NodeState


def in_use(node: NodeState, domain: Domain, devices: int) -> int:
    """No claim holds the device. Admin access may take it anyway."""
    return devices if domain.alternative.admin else devices & ~node.in_use


def binding_conditions(node: NodeState, domain: Domain, devices: int) -> int:
    """With the feature off, devices that need binding conditions cannot be used."""
    return devices if node.features.binding_conditions else devices & ~node.view.binding


def selectors(node: NodeState, domain: Domain, devices: int) -> int:
    """All selectors are true."""
    return devices & node.view.selected(domain.alternative.expressions, node.compiled).true


def here(node: NodeState, domain: Domain, devices: int) -> int:
    """The device is for this node."""
    return devices & node.view.here


def capacity(node: NodeState, domain: Domain, devices: int) -> int:
    """The capacity suffices for one share while nothing of it is allocated (section 9)."""
    return (
        devices & node.view.fitting(domain.alternative.capacity).devices
        if _is_capacity_limited(node, domain)
        else devices
    )


def capacity_left(node: NodeState, domain: Domain, devices: int) -> int:
    """What is left of the capacity suffices for one share."""
    # Nothing is consumed of the others: their full capacity was checked before (``capacity``).
    for number in each(devices & node.consumed) if not node.exempt(domain) else ():
        amounts, left = node.view.consumption(number, domain.alternative.capacity) or {}, node.left(number)
        if any(amount.nanos > left[name] for name, amount in amounts.items()):
            devices &= ~(1 << number)
    return devices


def node_operations(node: NodeState, domain: Domain, devices: int) -> int:
    """The node manages without the calls to the driver that the slice leaves out (K37-ONO-04)."""
    # The field is known from 1.37 on.
    if not node.view.skipping or node.features.release < Release.V1_37:
        return devices
    if node.features.optional_node_operations and declares_optional_node_operations(node.view.node):
        return devices
    return devices & ~node.view.skipping


def compatibility(node: NodeState, domain: Domain, devices: int) -> int:
    """The device has a compatibility group in common with those in use on its counter sets (K37-CG-02)."""
    # Admin access that ignores allocations ignores groups as well (K37-CG-08).
    if node.features.compatibility_groups and not node.exempt(domain):
        for place in node.grouped_places(devices):
            devices = node.compatibility(place).admit(devices, domain)
    return devices


def shared_counters(node: NodeState, domain: Domain, devices: int) -> int:
    """The counters of the pool suffice for the device alone. With the feature off, no device may need any."""
    consuming = devices & node.view.consuming
    if not node.features.partitionable_devices:
        return devices & ~consuming
    # In the reference admin access needs free counters as well (section 10).
    if consuming and not node.exempt(domain):
        for place in node.places(consuming):
            devices = node.counters(place).admit(devices, domain)
    return devices


def taints(node: NodeState, domain: Domain, devices: int) -> int:
    """The request tolerates the taints of the device, and the device is not left to other schedulers."""
    # With the feature off the taints of drivers are ignored (section 11). That a device is left to another scheduler is
    # a setting of this operator, and counts all the same.
    counts = node.features.device_taints
    for number in each(devices & node.view.tainted):
        found = node.view.devices[number].taints or ()
        if LEFT in found or (counts and blocking(found, domain.alternative.tolerations) is not None):
            devices &= ~(1 << number)
    return devices


def attributes(node: NodeState, domain: Domain, devices: int) -> int:
    """The device has the attributes of the constraints. A request for all devices notices only when it takes one."""
    # For a request for all devices a device without the attribute is an error when it is taken (section 7): a filter
    # would make it a refusal.
    if domain.alternative.published and not domain.alternative.everything:
        for comparison in domain.alternative.published:
            devices &= node.column(comparison).present
    return devices


def value(node: NodeState, domain: Domain, devices: int) -> int:
    """The device has the value of an attribute that all devices of its gang have."""
    wanted = domain.alternative.value
    return devices if wanted is None else devices & node.having(wanted)


def _is_capacity_limited(node: NodeState, domain: Domain) -> bool:
    """Some device may have too little for the request, which need not name any capacity."""
    view = node.view
    return node.features.consumable_capacity and bool(
        domain.alternative.capacity or view.shareable | view.has_request_policy
    )


Keeps = Callable[[NodeState, Domain, int], int]


class Filter(NamedTuple):
    """``keeps`` gives the devices that pass; ``rule`` names the filter in a refusal."""

    rule: Rule
    keeps: Keeps
    chooses: bool = False
    """It chooses which devices a request for all devices has to take."""
    fixed: bool = False
    """It depends on nothing but the inventory and ``Alternative.offer``."""


FILTERS: Final = (
    Filter(Rule.VALUE, value),
    Filter(Rule.IN_USE, in_use),
    Filter(Rule.BINDING_CONDITIONS, binding_conditions, chooses=True, fixed=True),
    Filter(Rule.SELECTOR, selectors, chooses=True, fixed=True),
    Filter(Rule.NODE, here, chooses=True, fixed=True),
    # Two filters for one rule: published amounts last as long as the slices, remaining ones change with each claim.
    Filter(Rule.CAPACITY, capacity, chooses=True, fixed=True),
    Filter(Rule.CAPACITY, capacity_left, chooses=True),
    # Asked after capacity (K37-ONO-04).
    Filter(Rule.NODE_OPERATIONS, node_operations, fixed=True),
    # Asked before counters (K37-CG-06).
    Filter(Rule.COMPATIBILITY, compatibility),
    Filter(Rule.COUNTERS, shared_counters),
    Filter(Rule.TAINTS, taints, fixed=True),
    Filter(Rule.CONSTRAINT, attributes),
)


def chooses(filter_: Filter, release: Release) -> bool:
    """Whether it chooses: from 1.37 on the inventory alone does, not what is allocated (K37-BUG-07)."""
    return filter_.chooses and (filter_.fixed or release < Release.V1_37)


def _unfixed(release: Release, *, choose: bool) -> tuple[Keeps, ...]:
    return tuple(each_.keeps for each_ in FILTERS if not each_.fixed and chooses(each_, release) is choose)


CHOOSING: Final = {release: _unfixed(release, choose=True) for release in Release}
"""The filters that choose, and are not in an offer."""
KEEPING: Final = {release: _unfixed(release, choose=False) for release in Release}
"""The others that are not in an offer."""


def offer(node: NodeState, domain: Domain) -> Offer:
    """What the fixed filters leave."""
    # Kept with the view, which lasts as long as the slices that the node sees.
    key = domain.alternative.offer
    known = node.view.offers.get(key)
    return known if known is not None else node.view.offers.put(key, _make_offer(node, domain))


def _make_offer(node: NodeState, domain: Domain) -> Offer:
    view = node.view
    raised = binding_conditions(node, domain, view.selected(domain.alternative.expressions, node.compiled).raised)
    faulty = view.faulty(domain.alternative.capacity)
    # An amount is only looked at on a device that passes what is asked before capacity (section 6): on others it is no
    # fault.
    for filter_ in FILTERS if faulty else ():
        if filter_.rule is Rule.CAPACITY:
            break
        faulty = filter_.keeps(node, domain, faulty) if filter_.fixed else faulty
    chosen = usable = view.everything & ~faulty
    for filter_ in FILTERS:
        if filter_.fixed:
            usable = filter_.keeps(node, domain, usable)
            chosen = usable if filter_.chooses else chosen
    shares = view.fitting(domain.alternative.capacity).shares if _is_capacity_limited(node, domain) else NO_AMOUNTS
    return Offer(chosen, usable, raised | faulty, shares)


def stages(node: NodeState, domain: Domain) -> Iterator[tuple[Rule, int]]:
    """What is left after each rule, in their order: for refusals."""
    devices = node.view.everything
    release = node.features.release
    # A request for all devices has to take what these choose. Only what they have chosen can be taken away by the
    # others.
    order = sorted(FILTERS, key=lambda one: not chooses(one, release)) if domain.alternative.everything else FILTERS
    for rule, filters in groupby(order, attrgetter("rule")):
        for filter_ in filters:
            devices = filter_.keeps(node, domain, devices)
        yield rule, devices
