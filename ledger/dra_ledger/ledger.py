"""Holders of devices, and free devices: fed one object at a time, asked at any time.

``Ledger`` puts together the parts by which the operator decides: the ``Inventory`` of published devices, and
``AllocatedDevices``, the devices in use. Its answer about a pool is kept until something about that pool
changes, so a change costs the same in a cluster of any size.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Final, Self

from dra_api.core import Node
from dra_api.releases.gates import FeatureGates
from dra_api.releases.release import AUTO, NEWEST, chosen
from dra_api.resource import Device, DeviceAttribute, DeviceClass, DeviceTaintRule, ResourceSlice

from .allocated import AllocatedDevices
from .basics import DeviceId, PoolId
from .entries import (
    CounterEntry,
    DeviceEntry,
    Holder,
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
from .inventory import Inventory
from .pools import Pool, PoolView
from .predicates import Weighed
from .sources import HeldClaim, Kept, Malformed, SeenPod, read

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


class Ledger:
    """The devices of a cluster and their holders.

    ``release`` is the release of Kubernetes by whose rules devices count as free, such as ``"1.34"``; ``gates`` are the
    feature gates that differ from its defaults. Raises ValueError for a release, and GateError for a gate, that is not
    known.

    >>> ledger = Ledger()
    >>> ledger.feed({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": {
    ...     "driver": "gpu.example.com", "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
    ...     "nodeName": "n1", "devices": [{"name": "gpu-0"}, {"name": "gpu-1"}]}})
    >>> result = {"request": "gpu", "driver": "gpu.example.com", "pool": "n1", "device": "gpu-0"}
    >>> ledger.feed({"kind": "ResourceClaim", "metadata": {"namespace": "ml", "name": "train"},
    ...     "status": {"allocation": {"devices": {"results": [result]}}}})
    >>> [(device.name, device.state, [holder.key for holder in device.holders]) for device in ledger.devices()]
    [('gpu-0', 'taken', ['ml/train']), ('gpu-1', 'free', [])]
    """

    def __init__(self, release: str = str(NEWEST), gates: Mapping[str, bool] | None = None) -> None:
        self.features = Features.of(
            FeatureGates.of(gates or {}, NEWEST if release == AUTO else chosen(release) or NEWEST)
        )
        self._inventory = Inventory(self.features, language=_Selectors(self.features))
        self._allocated = AllocatedDevices(self._inventory, shares=self.features.consumable_capacity)
        self._nodes: dict[str, Node] = {}
        self._classes: dict[str, DeviceClass] = {}
        self._claims: dict[str, HeldClaim] = {}
        """Claims by ``namespace/name``, the key of the following maps as well."""
        self._pods: dict[str, SeenPod] = {}
        self._groups: dict[str, dict[str, None]] = {}
        """The pods of each PodGroup."""
        self._held: dict[PoolId, dict[str, tuple[str, ...]]] = {}
        """The claims that have a device, with admin access as well, by pool and device."""
        self._slices: dict[str, PoolId] = {}
        self._known: dict[PoolId, _Known] = {}
        """What was answered of a pool since it changed last."""
        self._revision = 0
        self.malformed: dict[str, str] = {}
        """Objects that could not be read, as ``KIND namespace/name``, and what is wrong with them."""

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
        with _no_collections():
            for found, is_gone in read(source):
                if isinstance(found, Malformed):
                    self.malformed[found.object] = found.fault
                elif is_gone:
                    self._remove(found)
                else:
                    self._put(found)

    def remove(self, source: object) -> None:
        """Take out deleted objects; their names suffice. Unknown ones are ignored. Raises DecodeError."""
        for found, _ in read(source):
            if not isinstance(found, Malformed):
                self._remove(found)

    def replace(self, kind: str, source: object) -> None:
        """Take in all objects of a kind, such as ``ResourceClaim``, after a new list: others are gone."""
        fresh = [found for found, _ in read(source)]
        names = {_kind(found) + " " + _key(found) for found in fresh if not isinstance(found, Malformed)}
        names |= {found.object for found in fresh if isinstance(found, Malformed)}
        for known in self._every(kind):
            if f"{kind} {_key(known)}" not in names:
                self._remove(known)
        for name in [name for name in self.malformed if name.startswith(f"{kind} ")]:
            del self.malformed[name]
        for found in fresh:
            if isinstance(found, Malformed):
                self.malformed[found.object] = found.fault
            else:
                self._put(found)

    def _put(self, found: Kept) -> None:
        if self.malformed:
            self.malformed.pop(f"{_kind(found)} {_key(found)}", None)
        if isinstance(found, HeldClaim):
            self._put_claim(found.key, found)
        elif isinstance(found, ResourceSlice):
            self._slices[found.metadata.name] = PoolId.of(found)
            self._inventory.put_slice(found)
        elif isinstance(found, SeenPod):
            self._put_pod(found.key, found)
        elif isinstance(found, Node):
            self._note_node(found.metadata.name)
            self._nodes[found.metadata.name] = found
            self._inventory.put_node(found)
        elif isinstance(found, DeviceClass):
            self._classes[found.metadata.name] = found
            self._inventory.put_class(found)
        elif self.features.taint_rules and self.features.device_taints:
            self._inventory.put_rule(found)

    def _remove(self, found: Kept) -> None:
        name = _key(found)
        if isinstance(found, HeldClaim):
            self._put_claim(name, None)
        elif isinstance(found, ResourceSlice):
            self._slices.pop(name, None)
            self._inventory.remove_slice(name)
        elif isinstance(found, SeenPod):
            self._put_pod(name, None)
        elif isinstance(found, Node):
            self._note_node(name)
            self._nodes.pop(name, None)
            self._inventory.remove_node(name)
        elif isinstance(found, DeviceClass):
            self._classes.pop(name, None)
            self._inventory.remove_class(name)
        elif isinstance(found, DeviceTaintRule):
            self._inventory.remove_rule(name)

    def _note_node(self, name: str) -> None:
        """Forgets what depends on the node. The first one, and the end of the last one, concern every pool."""
        if not self._nodes or self._nodes.keys() == {name}:
            self._known.clear()
        self._forget([*self._inventory.shared_pools, *self._inventory.pools_of(name)])

    def _put_claim(self, key: str, now: HeldClaim | None) -> None:
        before = self._claims.pop(key, None)
        if before is not None:
            self._file(before, is_held=False)
        if now is not None:
            self._claims[key] = now
            self._file(now, is_held=True)
        self._allocated.stored(key, now.allocation if now is not None else None)

    def _file(self, claim: HeldClaim, *, is_held: bool) -> None:
        for result in claim.allocation.results if claim.allocation is not None else ():
            pool = PoolId(result.driver, result.pool)
            self._known.pop(pool, None)
            devices = self._held.setdefault(pool, {})
            others = tuple(key for key in devices.get(result.device, ()) if key != claim.key)
            if holders := (*others, claim.key) if is_held else others:
                devices[result.device] = holders
            else:
                devices.pop(result.device, None)
            if not devices:
                del self._held[pool]

    def _put_pod(self, key: str, now: SeenPod | None) -> None:
        before = self._pods.pop(key, None)
        for pod in (before, now):
            if pod is None:
                continue
            if pod.group:
                group = self._groups.setdefault(f"{pod.namespace}/{pod.group}", {})
                if pod is now:
                    group[key] = None
                else:
                    group.pop(key, None)
            for name in pod.claims:
                claim = self._claims.get(f"{pod.namespace}/{name}")
                results = claim.allocation.results if claim is not None and claim.allocation is not None else ()
                self._forget(PoolId(result.driver, result.pool) for result in results)
        if now is not None:
            self._pods[key] = now

    def _forget(self, pools: Iterable[PoolId]) -> None:
        for pool in pools:
            self._known.pop(pool, None)

    def _every(self, kind: str) -> list[Kept]:
        """All objects of a kind; of slices and rules their names alone."""
        slices = (self._inventory.slice(name) for name in self._slices)
        every: dict[str, Iterable[Kept]] = {
            "ResourceSlice": [slice_ for slice_ in slices if slice_ is not None],
            "ResourceClaim": self._claims.values(),
            "DeviceClass": self._classes.values(),
            "DeviceTaintRule": self._inventory.rules(),
            "Node": self._nodes.values(),
            "Pod": self._pods.values(),
        }
        return list(every[kind])

    # --- what is asked ---

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

    def device(self, driver: str, pool: str, name: str) -> DeviceEntry | None:
        """Return one device; None if nobody publishes or holds it."""
        id_ = PoolId(driver, pool)
        if self._inventory.pool(id_) is None and id_ not in self._held:
            return None
        return next((entry for entry in self._current(id_).entries if entry.name == name), None)

    def holders(self, namespace: str | None = None) -> Iterator[tuple[DeviceEntry, Holder]]:
        """Yield each device with each claim that holds it, for all claims or a namespace. Admin access is left out."""
        for entry in self.devices(namespace=namespace):
            for holder in entry.holders:
                if namespace in (None, holder.namespace):
                    yield entry, holder

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

    def counters(self) -> list[CounterEntry]:
        """Return the shared counters, sorted by pool, in the order in which slices define them."""
        self._follow()
        found: list[CounterEntry] = []
        for id_ in sorted(self._inventory.pools()):
            view = next((view for view in self._answer(id_).views if view.counters.names), None)
            if view is not None:
                found += counter_entries(view, self._allocated.usage.pool(id_))
        return found

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
                for number, amount in table.charges.get(device, ()):
                    name = table.names[number][1]
                    sums[name] = sums.get(name, 0) + amount
                if sums:
                    found[f"{id_.driver}/{id_.pool}/{device}"] = sums
        return found

    def tally(self, by: str) -> list[Tally]:
        """Count devices by ``class``, ``node``, ``namespace`` or ``driver``, sorted by name.

        Devices that several nodes can use count for the node ``""``. A namespace has the devices that its claims hold,
        a class all that it means: one device may count for several of them. Raises ValueError for any other ``by``.
        """
        if by not in BY:
            raise ValueError(f"cannot count by {by!r}: choose one of {', '.join(BY)}")
        if by == "class":
            return [Tally.of(name, self.devices(device_class=name)) for name in sorted(self._classes)]
        groups: dict[str, list[DeviceEntry]] = {}
        for entry in self.devices():
            names = {holder.namespace for holder in entry.holders} if by == "namespace" else {getattr(entry, by)}
            for name in names:
                groups.setdefault(name, []).append(entry)
        return [Tally.of(name, entries) for name, entries in sorted(groups.items())]

    @property
    def classes(self) -> list[str]:
        """The names of the device classes, sorted."""
        return sorted(self._classes)

    def _expressions(self, class_: str) -> tuple[str, ...]:
        selectors = self._classes[class_].spec.selectors or ()
        return tuple(selector.cel.expression for selector in selectors if selector.cel is not None)

    def _pools(self) -> list[PoolId]:
        self._follow()
        return sorted({*self._inventory.pools(), *self._held})

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
        pool, held = self._inventory.pool(id_), self._held.get(id_, {})
        sights = self._sights(pool) if pool is not None else []
        absent = (pool.owning_node or "") if pool is not None and self._nodes else ""
        seen = Seen(
            sights,
            self._allocated.usage.pool(id_),
            self.features,
            absent if absent not in self._nodes else "",
            str(pool.unreadable or "") if pool is not None else "",
        )
        health = self._health(id_, held)
        holders = {device: self._holders(id_, device, claims) for device, claims in held.items()}
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

    def _holders(self, pool: PoolId, device: str, claims: Iterable[str]) -> tuple[Holder, ...]:
        found = []
        for key in claims:
            claim = self._claims[key]
            if claim.allocation is None:
                continue
            for result in claim.allocation.results:
                if (result.driver, result.pool, result.device) == (*pool, device):
                    consumed = {name: str(amount) for name, amount in (result.consumed_capacity or {}).items()}
                    holder = Holder(
                        namespace=claim.namespace,
                        claim=claim.name,
                        request=result.request,
                        pods=self._consumers(claim),
                        since=claim.allocation.allocation_timestamp or claim.created,
                        share=result.share_id or "",
                        consumed=consumed,
                        is_admin=bool(result.admin_access),
                    )
                    found.append(holder)
        return tuple(found)

    def _consumers(self, claim: HeldClaim) -> tuple[str, ...]:
        if not claim.groups:
            return claim.pods
        names = dict.fromkeys(claim.pods)
        for group in claim.groups:
            for key in self._groups.get(f"{claim.namespace}/{group}", ()):
                pod = self._pods[key]
                if not pod.is_done and claim.name in pod.claims:
                    names[pod.name] = None
        return tuple(names)

    def _health(self, id_: PoolId, held: Mapping[str, Iterable[str]]) -> dict[str, str]:
        """What kubelets say of the devices of a pool. One of several resources of a request is told by its name."""
        found: dict[str, str] = {}
        for claim in {key: self._claims[key] for keys in held.values() for key in keys}.values() if self._pods else ():
            results = claim.allocation.results if claim.allocation is not None else ()
            for name in self._consumers(claim):
                pod = self._pods.get(f"{claim.namespace}/{name}")
                for said in pod.health if pod is not None else ():
                    meant = [it for it in results if said.claim == claim.name and said.request in ("", it.request)]
                    if len(meant) > 1:
                        meant = [it for it in meant if said.resource.endswith((f"/{it.device}", f"={it.device}"))]
                    for result in meant[:1]:
                        if (result.driver, result.pool) == id_ and found.get(result.device) != "Unhealthy":
                            found[result.device] = said.health
        return found


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


def _kind(found: Kept) -> str:
    return {"HeldClaim": "ResourceClaim", "SeenPod": "Pod"}.get(type(found).__name__, type(found).__name__)


def _key(found: Kept) -> str:
    return found.key if isinstance(found, HeldClaim | SeenPod) else found.metadata.name
