"""All devices that one node may use, numbered in the order in which they are tried.

Pools come sorted by driver and name, those with binding conditions after all others (allocator.md section
3). Sets of devices are whole numbers used as bit sets: bit i is the i-th device.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from typing import NamedTuple

from dra_api.core import Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from dra_api.resource import Device

from .basics import DeviceId, Memo, each
from .capacity import Requests, consumption, fault
from .columns import Column, DerivedColumn
from .features import Features
from .pools import PoolView, Quantities, Status, Superseded, Unreadable
from .predicates import Compiled, Verdicts
from .slices import Slice, device_is_for


class Fitting(NamedTuple):
    """The devices whose capacity suffices for capacity requests while nothing of it is allocated."""

    devices: int
    shares: dict[int, Quantities]
    """What a share consumes of devices that allow multiple allocations."""


class Offer(NamedTuple):
    """What a node has for a request, whatever is allocated."""

    chosen: int
    """The devices that a request for all of them has to take."""
    usable: int
    """Devices that pass all filters that ignore the allocated state."""
    raised: int
    """Those on which a selector raised, or of which a fatal amount would be consumed."""
    shares: Mapping[int, Quantities]
    """What a share consumes, of devices that allow multiple allocations."""


class NodeView:
    """The pools of a node whose devices are allocated, and those in trouble; before 1.35 an incomplete one is both."""

    def __init__(
        self,
        node: Node,
        views: Sequence[PoolView],
        foreign: Sequence[PoolView],
        outdated: Sequence[Superseded],
        unreadable: Sequence[Unreadable],
        features: Features | None,
    ) -> None:
        self.node = node
        self._features = features or Features()
        self.outdated = outdated
        """Pools whose slices for this node are all of older generations."""
        self.unreadable = unreadable
        """Pools that may be meant for this node, but do not say so in a way that can be understood."""
        self.name = node.metadata.name
        self.only_this_node = _only(self.name)
        """What an AllocationResult says of devices that can be used on this node only."""
        self.troubled = [view for view in (*views, *foreign) if view.status is not Status.USABLE]
        self.invalid = any(view.status is Status.INVALID for view in self.troubled)
        offered = [view for view in views if view.is_offered]
        self.pools = [view for view in offered if not view.last] + [view for view in offered if view.last]
        self.offsets: list[int] = []
        self.devices: list[Device] = []
        self.pool_of: list[int] = []
        for number, view in enumerate(self.pools):
            self.offsets.append(len(self.devices))
            self.devices.extend(view.devices)
            self.pool_of.extend([number] * len(view.devices))
        self.everything = (1 << len(self.devices)) - 1
        self.binding = self.gather(attrgetter("binding"))
        self.consuming = self.gather(attrgetter("consuming"))
        self.shareable = self.gather(attrgetter("shareable"))
        self.has_request_policy = self.gather(attrgetter("has_request_policy"))
        self.skipping = self.gather(attrgetter("skipping"))
        self.tainted = self.gather(attrgetter("tainted"))
        self.here = self._devices_for_this_node()
        self.offers: Memo[Hashable, Offer] = Memo()
        """By ``Alternative.offer``; the filters compute and keep them here."""
        self._verdicts: Memo[tuple[str, ...], Verdicts] = Memo()
        self._columns: Memo[tuple[str, bool], Column] = Memo()
        self._fitting: Memo[Requests, Fitting] = Memo()

    @cached_property
    def is_plain(self) -> bool:
        """No device has fields that a request may stumble over, and all are of this node alone."""
        special = self.binding | self.consuming | self.shareable | self.has_request_policy | self.skipping
        is_usual = not (special or self.tainted or self.troubled or self.outdated or self.unreadable)
        return is_usual and all(map(_is_of_one_node, self.pools))

    def gather(self, bits: Callable[[PoolView], int]) -> int:
        """One bit set over all devices from one per pool."""
        if len(self.pools) == 1:
            return bits(self.pools[0])
        together = 0
        for view, offset in zip(self.pools, self.offsets, strict=True):
            together |= bits(view) << offset
        return together

    def id(self, number: int) -> DeviceId:
        """The identity of a device."""
        place = self.pool_of[number]
        return self.pools[place].id(number - self.offsets[place])

    def origin(self, number: int) -> Slice:
        """The slice that publishes a device."""
        place = self.pool_of[number]
        return self.pools[place].origin[number - self.offsets[place]]

    def driver(self, number: int) -> str:
        """The driver of a device."""
        return self.pools[self.pool_of[number]].pool.driver

    def column(self, attribute: str, *, lists: bool) -> Column:
        """An attribute over all devices."""
        known = self._columns.get((attribute, lists))
        if known is None:
            devices = ((self.driver(number), device) for number, device in enumerate(self.devices))
            known = self._columns.put((attribute, lists), Column(attribute, devices, lists=lists))
        return known

    def derived_column(self, attribute: str, expression: str, compiled: Compiled, *, lists: bool) -> DerivedColumn:
        """An attribute that a request computes by this expression, for one search: who writes the expression decides
        how large the values are, so none of them stays. Raises NotEvaluated if it may cost too much."""
        derive = compiled.attribute(expression)
        return DerivedColumn(attribute, lambda number: derive(self.driver(number), self.devices[number]), lists=lists)

    def selected(self, expressions: tuple[str, ...], compiled: Compiled) -> Verdicts:
        """Where all selectors are true, and where the first one that is not true raised."""
        if len(self.pools) == 1:
            return self.pools[0].verdicts(expressions, compiled)
        known = self._verdicts.get(expressions)
        if known is None:
            true = raised = 0
            for view, offset in zip(self.pools, self.offsets, strict=True):
                part = view.verdicts(expressions, compiled)
                true |= part.true << offset
                raised |= part.raised << offset
            known = self._verdicts.put(expressions, Verdicts(true, raised))
        return known

    def failure(self, expressions: tuple[str, ...], number: int) -> tuple[str, Exception] | None:
        """The costly selector that failed on a device, and how."""
        view = self.pools[self.pool_of[number]]
        own = number - self.offsets[self.pool_of[number]]
        return view.failure(expressions, own)

    def fitting(self, requests: Requests) -> Fitting:
        """The devices that could serve capacity requests if nothing were allocated (allocator.md section 9)."""
        known = self._fitting.get(requests)
        if known is None:
            concerned = self.everything if requests else self.shareable | self.has_request_policy
            devices, shares = self.everything & ~concerned, {}
            for number in each(concerned):
                amounts, capacities = self.consumption(number, requests), self.devices[number].capacity or {}
                if amounts is not None and all(amounts[name] <= capacities[name].value for name in amounts):
                    devices |= 1 << number
                    if self.shareable >> number & 1:
                        shares[number] = amounts
            known = self._fitting.put(requests, Fitting(devices, shares))
        return known

    def consumption(self, number: int, requests: Requests) -> Quantities | None:
        """What capacity requests consume of a device; None when it cannot serve them."""
        pool = self.pools[self.pool_of[number]]
        known = pool.consumptions.get(requests)
        if known is None:
            known = pool.consumptions.put(requests, {})
        own = number - self.offsets[self.pool_of[number]]
        if own not in known:
            known[own] = consumption(dict(requests), pool.devices[own].capacity or {}, self._features)
        return known[own]

    def faulty(self, requests: Requests) -> int:
        """The devices of which capacity requests would consume a fatal amount."""
        return self.gather(lambda view: view.faulty(requests, self._features))

    def capacity_fault(self, number: int, requests: Requests) -> str:
        """Why that is fatal on a device; empty if it is not."""
        return fault(dict(requests), self.devices[number].capacity or {}, self._features)

    def _devices_for_this_node(self) -> int:
        here = self.everything
        for view, offset in zip(self.pools, self.offsets, strict=True):
            if view.per_device:
                for number, device in enumerate(view.devices):
                    if view.origin[number].spec.per_device_node_selection and not device_is_for(device, self.node):
                        here &= ~(1 << (offset + number))
        return here


def _is_of_one_node(view: PoolView) -> bool:
    return all(slice_.owning_node is not None for slice_ in view.slices)


def _only(node: str) -> NodeSelector:
    name = NodeSelectorRequirement(key="metadata.name", operator="In", values=(node,))
    return NodeSelector(node_selector_terms=(NodeSelectorTerm(match_fields=(name,)),))
