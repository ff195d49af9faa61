"""The devices of a node as a tree: NUMA node, PCIe root, the counters that partitions share, parent, device.

A level that no driver publishes is left out. Attributes count in any domain: ``numaNode`` of one driver means the same
as ``numa`` of another. Drivers publish different levels of one machine, so the levels are joined by their values: each
PCIe root is drawn once, in the NUMA node that any of its devices names (``Places``).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from dra_api.resource import Device, ResourceSlice
from dra_api.values.quantity import Quantity

from dra_operator.kubectl.answer import Fact
from dra_operator.kubectl.observed.pipeline import Pipeline
from dra_operator.wording import counted

from .devices import DeviceFact, published

STANDARD_DOMAIN: Final = "resource.kubernetes.io/"
NUMA: Final = ("numanode", "numanodes", "numa", "numanodeid", "numa_node", "numainfo")
"""Names of the attribute, without domain and case; the first that a device publishes counts."""
PCIE_ROOT: Final = ("pcieroot", "pcieroots")
PARENT: Final = ("parent", "parentuuid", "parentdevice")
ITSELF: Final = ("uuid",)
_NUMBERED: Final = re.compile(r"(?:numa|node|id|[-_ :#/])*?([0-9]+)", re.ASCII | re.IGNORECASE)
_NEGATIVE: Final = re.compile(r"-[0-9]+", re.ASCII)

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
        self._places = Places(here)
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
        places = self._places

        def roots(some: Sequence[DeviceFact]) -> tuple[Branch, ...]:
            return _level("pcie", places.root, some, self._counters)

        return _level("numa", places.numa, facts, roots)

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
        details = [self._places.several(fact)] + (["too few counters left"] if fact.id in self._short else [])
        detail = "; ".join(filter(None, details))
        return Branch(kind="device", name=fact.name, detail=detail, device=fact, children=children)


class Places:
    """In which NUMA node and below which PCIe root each device of one node is.

    A device that publishes no level of its own is where its parent is. A device near several roots (a processor, for
    example) is below none of them, and one near several NUMA nodes in none of them.
    """

    def __init__(self, facts: Sequence[DeviceFact]) -> None:
        itself = {(fact.driver, name): fact for fact in facts for name in (fact.name, attribute(fact, ITSELF)) if name}
        parents = {fact.id: itself.get((fact.driver, attribute(fact, PARENT))) for fact in facts}
        self._numa = {fact.id: _inherited(fact, parents, _numa_nodes) for fact in facts}
        self._roots = {fact.id: _inherited(fact, parents, _pcie_roots) for fact in facts}
        said: dict[str, set[str]] = defaultdict(set)
        for fact in facts:
            numa = self._numa[fact.id]
            for root in self._roots[fact.id] if len(numa) == 1 else ():
                said[root] |= set(numa)
        self._numa_of_root = {root: ",".join(sorted(numa, key=_by_number)) for root, numa in said.items()}
        """Several if devices of one root disagree: the root is drawn once all the same."""

    def root(self, fact: DeviceFact) -> str:
        """Return the PCIe root of the device; empty if it has none, or several."""
        roots = self._roots[fact.id]
        return roots[0] if len(roots) == 1 else ""

    def numa(self, fact: DeviceFact) -> str:
        """Return the NUMA node of the device, or that of its roots; empty if it has none, or several."""
        if root := self.root(fact):
            return self._numa_of_root.get(root, "")
        numa = self._numa[fact.id] or tuple({self._numa_of_root.get(root, "") for root in self._roots[fact.id]})
        return numa[0] if len(numa) == 1 else ""

    def several(self, fact: DeviceFact) -> str:
        """Return the roots and NUMA nodes of a device that is near several."""
        near = (("NUMA nodes", self._numa[fact.id]), ("PCIe roots", self._roots[fact.id]))
        return "; ".join(f"near {what} {', '.join(values)}" for what, values in near if len(values) > 1)


def _inherited(
    fact: DeviceFact, parents: Mapping[str, DeviceFact | None], own: Callable[[DeviceFact], tuple[str, ...]]
) -> tuple[str, ...]:
    values, seen = own(fact), {fact.id}
    while not values:
        parent = parents[fact.id]
        if parent is None or parent.id in seen:
            return ()
        seen.add(parent.id)
        fact, values = parent, own(parent)
    return values


def _numa_nodes(fact: DeviceFact) -> tuple[str, ...]:
    """``0`` for ``0``, ``node0`` and ``NUMA 0``; none for a negative number: Linux writes one if there is no node."""
    texts = [text for text in _listed(fact, NUMA) if not _NEGATIVE.fullmatch(text)]
    numbered = (_NUMBERED.fullmatch(text) for text in texts)
    found = [str(int(one[1])) if one else text for one, text in zip(numbered, texts, strict=True)]
    return tuple(sorted(dict.fromkeys(found), key=_by_number))


def _pcie_roots(fact: DeviceFact) -> tuple[str, ...]:
    return tuple(sorted(dict.fromkeys(_listed(fact, PCIE_ROOT))))


def _listed(fact: DeviceFact, names: Sequence[str]) -> list[str]:
    """The values of a list, which ``facts.devices`` joins by commas."""
    return [text for part in attribute(fact, names).split(",") if (text := part.strip())]


def _by_number(text: str) -> tuple[bool, int, str]:
    return (not text.isdecimal(), int(text) if text.isdecimal() else 0, text)


def attribute(fact: DeviceFact, names: Sequence[str]) -> str:
    """Return the value of the first of these names that the device publishes, in the standard domain or any other."""
    known: dict[str, str] = {}
    for name, value in sorted(fact.attributes.items(), key=lambda item: not item[0].startswith(STANDARD_DOMAIN)):
        known.setdefault(name.rpartition("/")[2].lower(), value)
    return next((known[name] for name in names if known.get(name)), "")


def _level(
    kind: str,
    value_of: Callable[[DeviceFact], str],
    facts: Sequence[DeviceFact],
    below: Callable[[Sequence[DeviceFact]], tuple[Branch, ...]],
) -> tuple[Branch, ...]:
    """A branch for each value; devices without one come last, on this level."""
    groups: dict[str, list[DeviceFact]] = defaultdict(list)
    for fact in facts:
        groups[value_of(fact)].append(fact)
    without = below(groups.pop("", []))
    names = sorted(groups, key=_by_number)
    return (*(Branch(kind=kind, name=value, children=below(groups[value])) for value in names), *without)
