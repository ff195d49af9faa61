"""Holders of devices, and free devices: fed one object at a time, asked at any time.

``Ledger`` puts together the parts by which the operator decides: the ``Inventory`` of published devices, and
``AllocatedDevices``, the devices in use. Its answer about a pool is kept until something about that pool
changes, so a change costs the same in a cluster of any size.

An exporter is asked by one thread and fed by another. Each call has the ledger for itself: an answer that is worked out
during a change would be kept as if it were the answer after it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from itertools import chain
from threading import RLock
from typing import TYPE_CHECKING, Concatenate, Final, ParamSpec, Self, TypeVar

from dra_api.codec import DecodeError
from dra_api.core import Node
from dra_api.gates import FeatureGates
from dra_api.releases import AUTO, NEWEST, chosen
from dra_api.resource import Device, DeviceAttribute, DeviceClass, DeviceTaintRule, ResourceSlice

from .basics import DeviceId, PoolId
from .entries import (
    CounterEntry,
    DeviceEntry,
    Holder,
    Holdings,
    PoolEntry,
    Seen,
    Sight,
    Tally,
    counter_entries,
    device_entry,
    gone_entry,
    pool_entry,
)
from .features import Features
from .forms import KINDS, Listed, Malformed
from .inventory import Inventory
from .pools import Pool, PoolView
from .predicates import Weighed
from .sources import NAMESPACED, HeldClaim, Kept, SeenPod, read
from .usage import AllocatedDevices

BY: Final = ("class", "node", "namespace", "driver")
"""What ``Ledger.tally`` counts by."""


if TYPE_CHECKING:
    from .cel_language import CelSelectors


class _Selectors:
    """CEL, loaded when the first class is asked for: most questions need none."""

    def __init__(self, features: Features) -> None:
        self._features = features
        self._language: CelSelectors | None = None

    def compile(self, expression: str) -> Weighed:
        """A predicate on devices. Raises CompileError."""
        return self._loaded().compile(expression)

    def attribute(self, expression: str) -> tuple[Callable[[str, Device], DeviceAttribute], int]:
        """An expression whose value is an attribute. Raises CompileError."""
        return self._loaded().attribute(expression)

    def _loaded(self) -> CelSelectors:
        if self._language is None:
            from .cel_language import CelSelectors

            self._language = CelSelectors(self._features)
        return self._language


@contextmanager
def _no_collections() -> Iterator[None]:
    """Objects are made by the hundred thousand, and none of them is in a cycle. Each run of Python's collector would
    look at all of them: together half of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


P = ParamSpec("P")
T = TypeVar("T")


def _alone(method: Callable[Concatenate[Ledger, P], T]) -> Callable[Concatenate[Ledger, P], T]:
    @wraps(method)
    def alone(self: Ledger, /, *args: P.args, **options: P.kwargs) -> T:
        with self.lock:
            return method(self, *args, **options)

    return alone


class Ledger:
    """The devices of a cluster and their holders.

    ``release`` is the release of Kubernetes by whose rules devices count as free, such as ``"1.34"``; ``gates`` are the
    feature gates that differ from its defaults. Raises ValueError for a release, and GateError for a gate, that is not
    known. ``over`` are published and allocated devices that somebody else keeps, such as an allocator: the ledger takes
    nodes, claims and pods alone, and changes nothing.

    Examples:
        >>> ledger = Ledger()
        >>> spec = {"driver": "gpu.example.com", "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
        ...     "nodeName": "n1", "devices": [{"name": "gpu-0"}, {"name": "gpu-1"}]}
        >>> ledger.feed({"kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": spec})
        >>> result = {"request": "gpu", "driver": "gpu.example.com", "pool": "n1", "device": "gpu-0"}
        >>> ledger.feed({"kind": "ResourceClaim", "metadata": {"namespace": "ml", "name": "train"},
        ...     "status": {"allocation": {"devices": {"results": [result]}}}})
        >>> [(device.name, device.state, [holder.key for holder in device.holders]) for device in ledger.devices()]
        [('gpu-0', 'taken', ['ml/train']), ('gpu-1', 'free', [])]
    """

    def __init__(
        self,
        release: str = str(NEWEST),
        gates: Mapping[str, bool] | None = None,
        *,
        over: tuple[Inventory, AllocatedDevices] | None = None,
    ) -> None:
        if over is None:
            self.features = Features.of(
                FeatureGates.of(gates or {}, NEWEST if release == AUTO else chosen(release) or NEWEST)
            )
            self._inventory = Inventory(self.features, language=_Selectors(self.features))
            self._allocated = AllocatedDevices(self._inventory, shares=self.features.consumable_capacity)
        else:
            self._inventory, self._allocated = over
            self.features = self._inventory.features
        self.lock: Final = RLock()
        """Whoever holds it has a ledger that stays as it is over several calls. Each call holds it."""
        self._is_keeper = over is None
        self._nodes: dict[str, Node] = {}
        self._holdings = Holdings()
        self._slices: dict[str, PoolId] = {}
        self._known: dict[PoolId, _Known] = {}
        """What was answered of a pool since it changed last."""
        self._revision = 0
        self._told: set[str] = set()
        """Kinds of which a source had an object, or a list."""
        self.malformed: dict[str, str] = {}
        """Objects that could not be read, as ``KIND namespace/name``, and what is wrong with them. ``KINDList``: the
        pages of a list that are fed have no last one yet."""

    @classmethod
    def of(cls, *sources: object, release: str = str(NEWEST), gates: Mapping[str, bool] | None = None) -> Self:
        """Return a ledger of these sources. Raises as ``Ledger`` and ``feed`` do."""
        ledger = cls(release, gates)
        for source in sources:
            ledger.feed(source)
        return ledger

    # --- what changes ---

    def feed(self, source: object) -> None:
        """Take in a new or changed object in any form, a list of them, or an event of a watch (``sources``).

        The ledger keeps the last good version of a malformed object, and ``malformed`` names the fault. Raises
        DecodeError for a value that is no source at all.
        """
        if isinstance(source, Iterator) and not hasattr(source, "read"):
            for one in source:  # it may be the stream of a watch, which waits for hours between two events
                if one is not None:
                    self.feed(one)
            return
        with self.lock, _no_collections():
            for found, is_gone in read(source):
                if is_gone and not isinstance(found, Listed) and _is_named(found):
                    self._remove(_kind(found), _key(found))
                else:
                    self._take(found)

    @_alone
    def remove(self, source: object) -> None:
        """Take out deleted objects; their names suffice. Unknown ones are ignored.

        Raises DecodeError, also for an object without a name or namespace.
        """
        for found, _ in read(source):
            if isinstance(found, Malformed) and not _is_named(found):
                raise DecodeError(f"{found.object}: {found.fault}")
            if not isinstance(found, Listed):
                self._remove(_kind(found), _key(found))

    @_alone
    def replace(self, kind: str, source: object) -> None:
        """Take in all objects of a kind, such as ``ResourceClaim``, after a new list: others are gone.

        Raises ValueError for another kind, and DecodeError for a source of another kind, or without its last page.
        """
        if kind not in KINDS:
            raise ValueError(f"a ledger has no {kind}: choose one of {', '.join(KINDS)}")
        every, deleted = list[Kept | Malformed | Listed](), set[str]()
        for found, is_gone in read(source, kind):
            every.append(found)
            if not isinstance(found, Listed):
                (deleted.add if is_gone else deleted.discard)(_key(found))
        lists = [found for found in every if isinstance(found, Listed)]
        if lists and lists[-1].goes_on:
            raise DecodeError("the list has further pages (metadata.continue): give a list of all pages")
        for found in every:
            if _kind(found) not in (kind, "items"):
                raise DecodeError(f"objects of the kind {kind} are expected, and it has a {_kind(found)}")
        fresh = [found for found in every if not isinstance(found, Listed) and _key(found) not in deleted]
        names = {f"{_kind(found)} {_key(found)}" for found in fresh}
        self._told.add(kind)
        for known in self._every(kind):
            if f"{kind} {_key(known)}" not in names:
                self._remove(kind, _key(known))
        for name in [name for name in self.malformed if name.startswith((f"{kind} ", f"{kind}List"))]:
            del self.malformed[name]
        with _no_collections():
            for found in fresh:
                self._take(found)

    @property
    def missing(self) -> list[str]:
        """The kinds of which no source said anything. Answers count as if there were none of them."""
        return [kind for kind in KINDS if kind not in self._told]

    def _take(self, found: Kept | Malformed | Listed) -> None:
        if isinstance(found, Listed):
            self._told.add(found.kind)
            self.malformed.pop(f"{found.kind}List", None)
            if found.goes_on:
                self.malformed[f"{found.kind}List"] = "the last page is missing (metadata.continue)"
        elif isinstance(found, Malformed):
            kind, _, name = found.object.partition(" ")
            self._told.add(kind)
            self.malformed[found.object] = found.fault
            if kind == "Node":
                self._note_node(name)
        else:
            self._told.add(_kind(found))
            self._put(found)

    def _put(self, found: Kept) -> None:
        if self.malformed:
            self.malformed.pop(f"{_kind(found)} {_key(found)}", None)
        if isinstance(found, HeldClaim):
            self._put_claim(found.key, found)
        elif isinstance(found, SeenPod):
            self._forget(self._holdings.put_pod(found.key, found))
        elif isinstance(found, Node):
            self._note_node(found.metadata.name)
            self._nodes[found.metadata.name] = found
            if self._is_keeper:
                self._inventory.put_node(found)
        elif self._is_keeper:
            self._publish(found)

    def _publish(self, found: ResourceSlice | DeviceClass | DeviceTaintRule) -> None:
        if isinstance(found, ResourceSlice):
            self._slices[found.metadata.name] = PoolId.of(found)
            self._inventory.put_slice(found)
        elif isinstance(found, DeviceClass):
            self._inventory.put_class(found)
        elif self.features.taint_rules and self.features.device_taints:
            self._inventory.put_rule(found)

    def _remove(self, kind: str, name: str) -> None:
        self.malformed.pop(f"{kind} {name}", None)
        if kind == "ResourceClaim":
            self._put_claim(name, None)
        elif kind == "Pod":
            self._forget(self._holdings.put_pod(name, None))
        elif kind == "Node":
            self._note_node(name)
            self._nodes.pop(name, None)
            if self._is_keeper:
                self._inventory.remove_node(name)
        elif self._is_keeper:
            self._withdraw(kind, name)

    def _withdraw(self, kind: str, name: str) -> None:
        if kind == "ResourceSlice":
            self._slices.pop(name, None)
            self._inventory.remove_slice(name)
        elif kind == "DeviceClass":
            self._inventory.remove_class(name)
        elif kind == "DeviceTaintRule":
            self._inventory.remove_rule(name)

    def _note_node(self, name: str) -> None:
        """Forgets what depends on the node. The first one, and the end of the last one, concern every pool."""
        if not self._nodes or self._nodes.keys() == {name}:
            self._known.clear()
        self._forget([*self._inventory.shared_pools, *self._inventory.pools_of(name)])

    def _put_claim(self, key: str, now: HeldClaim | None) -> None:
        self._forget(self._holdings.put_claim(key, now))
        if self._is_keeper:
            self._allocated.stored(key, now.allocation if now is not None else None)

    def _forget(self, pools: Iterable[PoolId]) -> None:
        for pool in pools:
            self._known.pop(pool, None)

    def _every(self, kind: str) -> list[Kept]:
        """All objects of a kind; of slices and rules their names alone."""
        slices = (self._inventory.slice(name) for name in self._slices)
        every: dict[str, Iterable[Kept]] = {
            "ResourceSlice": [slice_ for slice_ in slices if slice_ is not None],
            "ResourceClaim": self._holdings.claims.values(),
            "DeviceClass": self._inventory.classes,
            "DeviceTaintRule": self._inventory.rules(),
            "Node": self._nodes.values(),
            "Pod": self._holdings.pods.values(),
        }
        return list(every[kind])

    # --- what is asked ---

    @_alone
    def devices(
        self, *, node: str | None = None, device_class: str | None = None, namespace: str | None = None
    ) -> list[DeviceEntry]:
        """Return the devices, sorted by driver, pool and place in it: all, or the devices for one node, of a class, or
        with claims of a namespace. Raises KeyError for a class that is not known.

        A selector that fails on a device means that the class does not mean it.
        """
        found: list[DeviceEntry] = []
        expressions = self._expressions(device_class) if device_class is not None else None
        with _no_collections():
            for pool in self._pools():
                known = self._answer(pool)
                entries = known.entries if expressions is None else known.members(expressions, self._inventory)
                found += [
                    entry
                    for entry in entries
                    if (node is None or entry.node == node)
                    and (namespace is None or any(holder.namespace == namespace for holder in entry.holders))
                ]
        return found

    @_alone
    def device(self, driver: str, pool: str, name: str) -> DeviceEntry | None:
        """Return one device; None if nobody publishes or holds it."""
        id_ = PoolId(driver, pool)
        if self._inventory.pool(id_) is None and id_ not in self._holdings.pools:
            return None
        return next((entry for entry in self._current(id_).entries if entry.name == name), None)

    def holders(self, namespace: str | None = None) -> Iterator[tuple[DeviceEntry, Holder]]:
        """Yield each device with each claim that holds it, for all claims or a namespace. Admin access is left out.

        In an invalid pool several devices may have one name. The first of them counts as held.
        """
        seen: set[str] = set()
        for entry in self.devices(namespace=namespace):
            if not entry.holders or entry.id in seen:
                continue
            seen.add(entry.id)
            for holder in entry.holders:
                if namespace in (None, holder.namespace):
                    yield entry, holder

    @_alone
    def pools(self) -> list[PoolEntry]:
        """Return the pools, sorted."""
        self._follow()
        found = []
        for id_ in sorted(self._inventory.pools()):
            pool = self._inventory.pool(id_)
            if pool is not None:
                known = self._answer(id_)
                found.append(pool_entry(pool, known.views, known.entries))
        return found

    @_alone
    def counters(self) -> list[CounterEntry]:
        """Return the shared counters, sorted by pool, in the order in which slices define them."""
        self._follow()
        found: list[CounterEntry] = []
        for id_ in sorted(self._inventory.pools()):
            view = next((view for view in self._answer(id_).views if view.counters.names), None)
            if view is not None:
                found += counter_entries(view, self._allocated.usage.pool(id_))
        return found

    @_alone
    def draws(self) -> dict[str, dict[str, int]]:
        """Return what each device in use draws from shared counters, summed over all sets for each name, in billionths.

        By the id of the device. Devices that draw nothing are left out.
        """
        self._follow()
        found: dict[str, dict[str, int]] = {}
        for id_ in self._inventory.pools():
            table = next((view.counters for view in self._answer(id_).views if view.counters.names), None)
            if table is None:
                continue
            for device in self._allocated.usage.pool(id_).charged:
                sums: dict[str, int] = {}
                for number, amount in table.in_use.get(device, ()):
                    name = table.names[number][1]
                    sums[name] = sums.get(name, 0) + amount
                if sums:
                    found[f"{id_.driver}/{id_.pool}/{device}"] = sums
        return found

    @_alone
    def tally(self, by: str) -> list[Tally]:
        """Count devices by ``class``, ``node``, ``namespace`` or ``driver``, sorted by name.

        Devices that several nodes can use count for the node ``""``. A namespace has the devices that its claims hold,
        a class all that it means: one device may count for several of them. Raises ValueError for any other ``by``.
        """
        if by not in BY:
            raise ValueError(f"cannot count by {by!r}: choose one of {', '.join(BY)}")
        if by == "class":
            return [Tally.of(name, self.devices(device_class=name)) for name in self.classes]
        groups: dict[str, list[DeviceEntry]] = {}
        for entry in self.devices():
            names = {holder.namespace for holder in entry.holders} if by == "namespace" else {getattr(entry, by)}
            for name in names:
                groups.setdefault(name, []).append(entry)
        return [Tally.of(name, entries) for name, entries in sorted(groups.items())]

    @property
    @_alone
    def classes(self) -> list[str]:
        """The names of the device classes, sorted."""
        return sorted(class_.metadata.name for class_ in self._inventory.classes)

    def _expressions(self, class_: str) -> tuple[str, ...]:
        known = self._inventory.device_class(class_)
        if known is None:
            raise KeyError(class_)
        # A selector of a kind that is not known means no device, as an expression does that does not compile.
        selectors = known.spec.selectors or ()
        return tuple(selector.cel.expression if selector.cel is not None else "" for selector in selectors)

    def _pools(self) -> list[PoolId]:
        self._follow()
        return sorted({*self._inventory.pools(), *self._holdings.pools})

    def _follow(self) -> None:
        """Forgets what was answered of pools whose slices changed since."""
        if self._revision == self._inventory.version:
            return
        changed = self._inventory.touched_since(self._revision)
        self._revision = self._inventory.version
        if changed is None:
            self._known.clear()
        else:
            self._forget(changed)

    def _current(self, pool: PoolId) -> _Known:
        self._follow()
        return self._answer(pool)

    def _answer(self, id_: PoolId) -> _Known:
        known = self._known.get(id_)
        if known is None:
            known = self._known[id_] = self._work_out(id_)
        return known

    def _work_out(self, id_: PoolId) -> _Known:
        pool = self._inventory.pool(id_)
        sights = self._sights(pool) if pool is not None else []
        seen = Seen(
            sights,
            self._allocated.usage.pool(id_),
            self.features,
            self._absence(pool.owning_node) if pool is not None and pool.owning_node else "",
            str(pool.unreadable or "") if pool is not None else "",
        )
        health, holders = self._holdings.health(id_), self._holdings.holders(id_)
        rows: list[tuple[str, list[DeviceEntry]]] = []
        published: set[str] = set()
        for slice_ in pool.by_age()[0] if pool is not None else ():
            row = []
            for device in slice_.devices:
                name = device.name
                row.append(device_entry(slice_, device, holders.get(name, ()), seen, health.get(name, "")))
                published.add(name)
            rows.append((slice_.name, row))
        gone = [
            gone_entry(DeviceId(id_.driver, id_.pool, name), holders[name], health.get(name, ""))
            for name in sorted(holders.keys() - published)
        ]
        return _Known(id_, [sight.view for sight in sights], rows, gone)

    def _absence(self, node: str) -> str:
        """Return why the node has no devices to give, or an empty text if it is there, or no node is known."""
        if not self._nodes or node in self._nodes:
            return ""
        return f"node {node} cannot be read" if f"Node {node}" in self.malformed else f"node {node} does not exist"

    def _sights(self, pool: Pool) -> list[Sight]:
        """As the nodes see the pool, each different view once; as all together would if no node is known."""
        owner = pool.owning_node
        if not self._nodes:
            view = pool.own_view()
            return [Sight(view, None)] if view is not None else []
        if owner is not None:
            nodes = [self._nodes[owner]] if owner in self._nodes else []
        else:
            nodes = [node for _, node in sorted(self._nodes.items())]
        found: dict[int, tuple[PoolView, list[Node]]] = {}
        for node in nodes:
            if (view := pool.view(node)) is not None:
                found.setdefault(id(view), (view, []))[1].append(node)
        return [Sight(view, seeing) for view, seeing in found.values()]


class _Known:
    """The kept answer about a pool: its devices, slice by slice, and devices that are held but gone."""

    __slots__ = ("_gone", "_id", "_rows", "views")

    def __init__(
        self, pool: PoolId, views: list[PoolView], rows: list[tuple[str, list[DeviceEntry]]], gone: list[DeviceEntry]
    ) -> None:
        self._id, self.views, self._rows, self._gone = pool, views, rows, gone

    @property
    def entries(self) -> Iterable[DeviceEntry]:
        """All of them."""
        return chain(*(row for _, row in self._rows), self._gone)

    def members(self, expressions: tuple[str, ...], inventory: Inventory) -> list[DeviceEntry]:
        """The devices on which all selectors are true."""
        pool = inventory.pool(self._id)
        newest = {slice_.name: slice_ for slice_ in pool.by_age()[0]} if pool is not None else {}
        found = []
        for name, row in self._rows:
            true = newest[name].verdicts(expressions, inventory.compiled).true
            found += [entry for number, entry in enumerate(row) if true >> number & 1]
        return found


_NAMES: Final = {HeldClaim: "ResourceClaim", SeenPod: "Pod"}


def _kind(found: Kept | Malformed | Listed) -> str:
    if isinstance(found, Malformed):
        return found.object.partition(" ")[0].partition("[")[0]
    return found.kind if isinstance(found, Listed) else _NAMES.get(type(found)) or type(found).__name__


def _key(found: Kept | Malformed) -> str:
    if isinstance(found, Malformed):
        return found.object.partition(" ")[2]
    return found.key if isinstance(found, HeldClaim | SeenPod) else found.metadata.name


def _is_named(found: Kept | Malformed) -> bool:
    """Return whether it is known which object this is."""
    name = _key(found)
    return bool(name) and ("/" in name) == (_kind(found) in NAMESPACED)
