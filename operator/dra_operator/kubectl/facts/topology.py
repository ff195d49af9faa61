"""The devices of a node as a tree: NUMA node, PCIe root, the counters that partitions share, parent, device.

A level that no driver publishes is left out. Attributes count whatever their domain: ``numaNode`` of one driver means
what ``numa`` of another does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from dra_api.resource import Device, ResourceSlice
from dra_api.values.quantity import Quantity

from dra_operator.kubectl.answer import Fact
from dra_operator.kubectl.observed.pipeline import Pipeline
from dra_operator.wording import counted

from .devices import DeviceFact, published

NUMA: Final = frozenset({"numanode", "numanodes", "numa"})
PCIE_ROOT: Final = frozenset({"pcieroot", "pcieroots"})
PARENT: Final = frozenset({"parent", "parentuuid", "parentdevice"})
ITSELF: Final = frozenset({"uuid"})

Set = tuple[str, str, str]
"""Driver, pool and name of a set of counters."""


class Branch(Fact, frozen=True):
    """``kind``: node, numa, pcie, counters or device; a device has its facts, and below it are those whose parent it
    is."""

    kind: str
    name: str
    detail: str = ""
    device: DeviceFact | None = None
    children: tuple[Branch, ...] = ()


class Topology:
    """Over what was published when it was made; ``facts`` are all devices."""

    def __init__(self, pipeline: Pipeline, facts: Sequence[DeviceFact]) -> None:
        self._facts = facts
        used = {fact.id for fact in facts if any(not holder.admin for holder in fact.holders)}
        self._sets: dict[str, list[Set]] = {}
        """By the id of a device, those that it takes from."""
        self._left: dict[Set, dict[str, Quantity]] = defaultdict(dict)
        self._total: dict[Set, dict[str, Quantity]] = {}
        slices = list(published(pipeline))
        for slice_ in slices:
            for set_ in slice_.spec.shared_counters or ():
                counters = {name: counter.value for name, counter in (set_.counters or {}).items()}
                self._total[(slice_.spec.driver, slice_.spec.pool.name, set_.name)] = counters
        self._left |= {key: dict(counters) for key, counters in self._total.items()}
        for slice_ in slices:
            for device in slice_.spec.devices or ():
                id_ = f"{slice_.spec.driver}/{slice_.spec.pool.name}/{device.name}"
                self._count(slice_, device, id_, is_used=id_ in used)
        self._short = {
            f"{slice_.spec.driver}/{slice_.spec.pool.name}/{device.name}"
            for slice_ in slices
            for device in slice_.spec.devices or ()
            if self._is_short(slice_, device)
        } - used

    def of(self, node: str) -> Branch:
        """The tree of one node."""
        here = [fact for fact in self._facts if fact.node == node]
        used = sum(bool(fact.holders) for fact in here)
        return Branch(
            kind="node", name=node, detail=f"{counted(len(here), 'device')}, {used} in use", children=self._numa(here)
        )

    def _count(self, slice_: ResourceSlice, device: Device, id_: str, *, is_used: bool) -> None:
        for consumed in device.consumes_counters or ():
            key = (slice_.spec.driver, slice_.spec.pool.name, consumed.counter_set)
            self._sets.setdefault(id_, []).append(key)
            left = self._left[key]
            for name, counter in (consumed.counters or {}).items() if is_used else ():
                if name in left:
                    nanos = max(0, left[name].nanos - counter.value.nanos)
                    left[name] = Quantity.from_nanos(nanos, binary=str(left[name]).endswith("i"))

    def _is_short(self, slice_: ResourceSlice, device: Device) -> bool:
        """Whether devices in use have left too little of what it takes."""
        return any(
            name in left and counter.value.nanos > left[name].nanos
            for consumed in device.consumes_counters or ()
            for left in [self._left[(slice_.spec.driver, slice_.spec.pool.name, consumed.counter_set)]]
            for name, counter in (consumed.counters or {}).items()
        )

    def _numa(self, facts: Sequence[DeviceFact]) -> tuple[Branch, ...]:
        return _level("numa", NUMA, facts, lambda some: _level("pcie", PCIE_ROOT, some, self._counters))

    def _counters(self, facts: Sequence[DeviceFact]) -> tuple[Branch, ...]:
        """Devices that take from the same set of counters are partitions of one thing."""
        groups: dict[Set, list[DeviceFact]] = defaultdict(list)
        alone: list[DeviceFact] = []
        for fact in facts:
            sets = self._sets.get(fact.id)
            (groups[sets[0]] if sets else alone).append(fact)
        shared = [
            Branch(kind="counters", name=key[2], detail=self._amounts(key), children=self._parents(some))
            for key, some in sorted(groups.items())
        ]
        return (*shared, *self._parents(alone))

    def _amounts(self, key: Set) -> str:
        """``memory 20Gi of 40Gi left``."""
        total = sorted(self._total.get(key, {}).items())
        return ", ".join(f"{name} {self._left[key][name]} of {amount} left" for name, amount in total)

    def _parents(self, facts: Sequence[DeviceFact]) -> tuple[Branch, ...]:
        names: Mapping[str, DeviceFact] = {
            **{fact.name: fact for fact in facts},
            **{uuid: fact for fact in facts if (uuid := attribute(fact, ITSELF))},
        }
        below: dict[str, list[DeviceFact]] = defaultdict(list)
        tops: list[DeviceFact] = []
        for fact in facts:
            parent = names.get(attribute(fact, PARENT))
            is_child = parent is not None and parent is not fact and not attribute(parent, PARENT)
            (below[parent.id] if is_child and parent is not None else tops).append(fact)
        return tuple(self._device(fact, tuple(map(self._device, below[fact.id]))) for fact in tops)

    def _device(self, fact: DeviceFact, children: tuple[Branch, ...] = ()) -> Branch:
        detail = "too few counters left" if fact.id in self._short else ""
        return Branch(kind="device", name=fact.name, detail=detail, device=fact, children=children)


def attribute(fact: DeviceFact, names: frozenset[str]) -> str:
    """The value of the first attribute with one of these names, whatever its domain."""
    values = (value for name, value in fact.attributes.items() if name.rpartition("/")[2].lower() in names)
    return next(values, "")


def _level(
    kind: str,
    names: frozenset[str],
    facts: Sequence[DeviceFact],
    below: Callable[[Sequence[DeviceFact]], tuple[Branch, ...]],
) -> tuple[Branch, ...]:
    """A branch for each value; devices without one come last, on this level."""
    groups: dict[str, list[DeviceFact]] = defaultdict(list)
    for fact in facts:
        groups[attribute(fact, names)].append(fact)
    without = below(groups.pop("", []))
    return (*(Branch(kind=kind, name=value, children=below(groups[value])) for value in sorted(groups)), *without)
