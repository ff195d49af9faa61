"""Everything that is published: slices, classes and taint rules, kept up to date one object at a time.

Built once per change, never per attempt. A node has a ``NodeView``: all devices that it may use, numbered in the order
in which they are tried. Its pools come sorted by driver and name, those with binding conditions after all others
(allocator.md section 3). Sets of devices are whole numbers used as bit sets: bit i is the i-th device. Pools that may
concern any node (``multi_node``) are kept apart from those of one node, so that a node only looks at its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import cached_property
from operator import attrgetter
from typing import Any, Final, NamedTuple

from dra_api.core import Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Taint
from dra_api.releases import Release
from dra_api.resource import AllocationResult, Device, DeviceClass, DeviceTaintRule, ResourceSlice

from dra_ledger.basics import DeviceId, Journal, Memo, PoolId, are_short, each
from dra_ledger.capacity import Requests, consumption, fault
from dra_ledger.columns import Column, DerivedColumn
from dra_ledger.counters import Drawn, has_groups, note_drawn
from dra_ledger.features import Features, Semantics
from dra_ledger.pools import Pool, PoolView, Quantities, Status, Superseded, Unreadable
from dra_ledger.predicates import Compiled, Language, Verdicts
from dra_ledger.slices import Interner, Reach, Slice, device_is_for
from dra_ledger.taints import SliceChange, TaintedSlices, Territory


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


_MOST_SHORT_ENTRIES: Final = 4


def _is_short(offer: Any) -> bool:
    expressions, tolerations, _ = offer
    return are_short(expressions) and len(tolerations or ()) <= _MOST_SHORT_ENTRIES


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
        self.pool_ids = [view.pool for view in self.pools]
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
        self.offers: Memo[Any, Offer] = Memo(keeps=_is_short)
        """By ``Alternative.offer``; the filters compute and keep them here."""
        self._verdicts: Memo[tuple[str, ...], Verdicts] = Memo(keeps=are_short)
        self._failure: tuple[tuple[str, ...], int, tuple[str, Exception]] | None = None
        """The latest failure of a cheap selector; see ``keep_failure``."""
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
        """The selector that failed on a device, and how, if that is known."""
        kept = self._failure
        if kept is not None and kept[1] == number and kept[0] == expressions:
            return kept[2]
        view = self.pools[self.pool_of[number]]
        own = number - self.offsets[self.pool_of[number]]
        return view.failure(expressions, own)

    def keep_failure(self, expressions: tuple[str, ...], number: int, expression: str, error: Exception) -> None:
        """Keep how a selector failed on a device: each decision about the same claims meets the first such error.

        Only the latest one, and without the frames that raised it: there are thousands of nodes.
        """
        if are_short(expressions):
            error.__traceback__ = error.__context__ = None
            self._failure = expressions, number, (expression, error)

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


class Inventory:
    """The published devices of a cluster.

    ``is_lasting``: slices come and go for days, so that equal parts of devices are kept once. A process that ends soon
    saves the time that this takes.
    """

    _NODES = 10_000

    def __init__(
        self,
        features: Features | None = None,
        *,
        language: Language,
        semantics: Semantics | None = None,
        is_lasting: bool = True,
    ) -> None:
        self.features = features or Features()
        self.semantics = semantics or Semantics()
        self.compiled = Compiled(language, minds_other_drivers=not self.semantics.errors_stay_on_node)
        self._journal: Journal[PoolId] = Journal()
        self.version = 0
        """Grows with each change of a slice."""
        self.class_version = 0
        self._interner = Interner() if is_lasting else None
        self.territory = Territory(honours_taints=self.features.device_taints)
        self._tainted = TaintedSlices(self.semantics, self.territory)
        self._classes: dict[str, DeviceClass] = {}
        self._pools: dict[PoolId, Pool] = {}
        self._local: dict[str, Counter[PoolId]] = {}
        self._multi_node: Counter[PoolId] = Counter()
        self._counters: Counter[PoolId] = Counter()
        self._with_counters: Counter[PoolId] = Counter()
        """How many slices define shared counters, by pool."""
        self._unreadable: Counter[PoolId] = Counter()
        """How many slices have malformed node selectors, by pool."""
        self._drawn: dict[PoolId, dict[str, Drawn]] = {}
        """What devices in use drew before their pool changed, by pool and name."""
        self.in_use: Callable[[PoolId], Set[str]] = _none_in_use
        """The devices of a pool that claims hold."""
        self._troubled: dict[PoolId, PoolView] = {}
        self._unchecked: set[PoolId] = set()
        self._views: Memo[str, tuple[int, Node, NodeView]] = Memo(self._NODES)

    def touched_since(self, version: int) -> set[PoolId] | None:
        """The pools changed after a version; None if the version is too old."""
        return self._journal.since(version)

    def put_slice(self, slice_: ResourceSlice) -> None:
        """A slice was added or changed."""
        kept = slice_ if self._interner is None else self._interner.slice(slice_)
        self._apply(self._tainted.put_slice(kept))

    def remove_slice(self, name: str) -> None:
        """A slice is gone; an unknown one is ignored."""
        self._apply(self._tainted.remove_slice(name))

    def put_rule(self, rule: DeviceTaintRule) -> None:
        """A taint rule was added or changed."""
        self._apply(self._tainted.put_rule(rule))

    def rules(self) -> Iterable[DeviceTaintRule]:
        """All taint rules."""
        return self._tainted.rules

    def remove_rule(self, name: str) -> None:
        """A taint rule is gone."""
        self._apply(self._tainted.remove_rule(name))

    def put_node(self, node: Node) -> bool:
        """A node was added or changed; return whether that gives or takes devices from us."""
        return self._put_node(node.metadata.name, node.spec.taints or (), node.metadata.labels or {})

    def remove_node(self, name: str) -> None:
        """A node is gone."""
        self._put_node(name, (), {})

    def _put_node(self, name: str, taints: Sequence[Taint], labels: Mapping[str, str]) -> bool:
        changes = self._tainted.put_node(name, taints, labels)
        self._apply(changes)
        return bool(changes)

    def put_class(self, class_: DeviceClass) -> None:
        """A class was added or changed."""
        self._classes[class_.metadata.name] = class_
        self._classes_changed()

    def remove_class(self, name: str) -> None:
        """A class is gone."""
        self._classes.pop(name, None)
        self._classes_changed()

    def _classes_changed(self) -> None:
        self.class_version += 1
        self.compiled.common = {
            selector.cel.expression: None
            for class_ in self._classes.values()
            for selector in class_.spec.selectors or ()
            if selector.cel is not None
        }

    @property
    def classes(self) -> Iterable[DeviceClass]:
        """All classes."""
        return self._classes.values()

    def device_class(self, name: str) -> DeviceClass | None:
        """The class of a name."""
        return self._classes.get(name)

    def slice(self, name: str) -> ResourceSlice | None:
        """A slice with the taints of rules merged in."""
        return self._tainted.get(name)

    def pool(self, pool: PoolId) -> Pool | None:
        """One pool."""
        return self._pools.get(pool)

    def pools(self) -> Iterable[PoolId]:
        """All pools."""
        return self._pools

    @property
    def shared_pools(self) -> Iterable[PoolId]:
        """The pools that several nodes may use."""
        return self._multi_node

    def pools_of(self, node: str) -> Iterable[PoolId]:
        """The pools with slices for this node alone."""
        return self._local.get(node, ())

    def view(self, node: Node) -> NodeView:
        """What a node sees. Raises NodeSelectionError for malformed node selectors, in the reference's semantics."""
        name = node.metadata.name
        known = self._views.get(name)
        if known is not None and known[0] == self.version and (known[1] is node or known[1] == node):
            return known[2]
        own = {*self._local.get(name, ()), *self._multi_node}
        views = [view for pool in sorted(own) if (view := self._pools[pool].view(node)) is not None]
        foreign = [view for view in self._troubled_counters() if view.pool not in own]
        outdated = sorted({*self._local.get(name, ())} - {view.pool for view in views})
        superseded = [self._pools[pool].superseded for pool in outdated]
        unreadable = [one for pool in sorted(self._unreadable) if (one := self._pools[pool].unreadable) is not None]
        made = NodeView(node, views, foreign, superseded, unreadable, self.features)
        self._views.put(name, (self.version, node, made))
        return made

    def _troubled_counters(self) -> Iterable[PoolView]:
        """Unusable pools that affect every node through their counters."""
        for pool in self._unchecked:
            view = self._pools[pool].counters_view() if pool in self._counters else None
            if view is not None and view.status is not Status.USABLE:
                self._troubled[pool] = view
            else:
                self._troubled.pop(pool, None)
        self._unchecked.clear()
        return self._troubled.values()

    def _apply(self, changes: list[SliceChange]) -> None:
        for old, new in changes:
            if old is not None and self._with_counters and not _draw_alike(old, new):
                self._remember_drawn(PoolId.of(old), old.spec.pool.generation)
            if old is not None and self._is_known(old):
                before = self._pools[PoolId.of(old)].remove(old.metadata.name)
                self._list(before, -1)
                if not len(self._pools[before.pool]):
                    del self._pools[before.pool]
            if new is not None and self._is_known(new):
                after = Slice(new, self.features, self.semantics)
                if after.pool not in self._pools:
                    self._pools[after.pool] = Pool(after.pool, self.semantics, self.features)
                self._pools[after.pool].put(after)
                self._list(after, 1)
            for pool in self._pools_of(old, new) if self._drawn else ():
                if pool in self._drawn and pool in self._pools:
                    self._pools[pool].keep_drawn(self._drawn[pool])

    def _pools_of(self, *changed: ResourceSlice | None) -> set[PoolId]:
        return {PoolId.of(slice_) for slice_ in changed if slice_ is not None}

    def _remember_drawn(self, pool: PoolId, generation: int) -> None:
        """Notes what devices in use draw, before slices of the generation change or go."""
        if self._with_counters[pool] and self.semantics.counters_stay_drawn and (held := self.in_use(pool)):
            known = dict(self._drawn.get(pool, {}))
            for name, record in self._pools[pool].drawn_by(generation, held).items():
                note_drawn(known, name, record)
            if known:
                self._drawn[pool] = known

    def given_back(self, allocation: AllocationResult) -> None:
        """Forget the draws of an allocation. The claim has its devices no more, as ``in_use`` shows."""
        for result in allocation.results if self._drawn else ():
            id_ = PoolId(result.driver, result.pool)
            drawn = self._drawn.get(id_, {})
            if result.device not in drawn or result.device in self.in_use(id_):
                continue
            left = {name: record for name, record in drawn.items() if name != result.device}
            if left:
                self._drawn[id_] = left
            else:
                del self._drawn[id_]
            if (pool := self._pools.get(id_)) is not None:
                pool.keep_drawn(left)
                self._journal.add(id_)
                self.version = self._journal.revision

    def _is_known(self, slice_: ResourceSlice) -> bool:
        """With compatibility groups off, a slice that has any is as if it were not there (K37-CG-09)."""
        if self.features.compatibility_groups or self.features.release < Release.V1_37:
            return True
        return not any(map(has_groups, slice_.spec.devices or ()))

    def _list(self, slice_: Slice, change: int) -> None:
        """Counts the slice in or out of the index that leads from nodes to pools."""
        if slice_.owning_node is not None:
            pools = self._local.setdefault(slice_.owning_node, Counter())
            _count(pools, slice_.pool, change)
            if not pools:
                del self._local[slice_.owning_node]
        elif slice_.reach is Reach.MULTI_NODE:
            _count(self._multi_node, slice_.pool, change)
            if slice_.malformed:
                _count(self._unreadable, slice_.pool, change)
        elif slice_.reach is Reach.COUNTERS:
            _count(self._counters, slice_.pool, change)
        if slice_.has_counters:
            _count(self._with_counters, slice_.pool, change)
        self._unchecked.add(slice_.pool)
        self._journal.add(slice_.pool)
        self.version = self._journal.revision


def _draw_alike(old: ResourceSlice, new: ResourceSlice | None) -> bool:
    """Return whether slices differ in nothing that matters for counters, as when a rule taints devices."""
    if new is None or old.spec.pool != new.spec.pool or old.spec.driver != new.spec.driver:
        return False
    before, after = old.spec.devices or (), new.spec.devices or ()
    return old.spec.shared_counters == new.spec.shared_counters and [
        (it.name, it.consumes_counters) for it in before
    ] == [(it.name, it.consumes_counters) for it in after]


def _none_in_use(pool: PoolId) -> Set[str]:
    return frozenset()


def _count(pools: Counter[PoolId], pool: PoolId, change: int) -> None:
    pools[pool] += change
    if not pools[pool]:
        del pools[pool]
