"""Published values of all devices of the cluster: drivers, and attributes and capacities by qualified name."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final, NamedTuple

from dra_api.core import NodeSelector, NodeSelectorRequirement
from dra_api.resource import Device, DeviceAttribute, DeviceCapacity, ResourceClaim, ResourceSlice
from dra_cel import Reference

from dra_operator.allocator import DeviceId
from dra_operator.cache import newest_slices
from dra_operator.kubectl.facts import value_text
from dra_operator.kubectl.observed import Observed


class Published:
    """Over the slices of the newest generation of each pool; each value with how many devices have it."""

    def __init__(self, slices: Collection[ResourceSlice]) -> None:
        newest = {id(slice_) for its in newest_slices(slices).values() for slice_ in its}
        self._slices = [slice_ for slice_ in slices if id(slice_) in newest]
        self._values: dict[Reference, Mapping[str, int]] = {}
        self._kinds: dict[tuple[Reference, ...], list[tuple[str, Device]]] = {}

    @cached_property
    def drivers(self) -> Counter[str]:
        """How many devices each publishes."""
        found: Counter[str] = Counter()
        for slice_ in self._slices:
            if slice_.spec.devices:
                found[slice_.spec.driver] += len(slice_.spec.devices)
        return found

    def places(self, driver: str) -> list[str]:
        """For which nodes a driver publishes devices, in the order of names."""
        return sorted(
            {_place(slice_) for slice_ in self._slices if slice_.spec.driver == driver and slice_.spec.devices}
        )

    def empty_places(self, driver: str) -> list[str]:
        """For which nodes a driver has slices in which there is nothing at all, in the order of names."""
        its = (slice_.spec for slice_ in self._slices if slice_.spec.driver == driver)
        return sorted({it.node_name or it.pool.name for it in its if not it.devices and not it.shared_counters})

    def is_partitioned(self, driver: str) -> bool:
        """Whether all devices of a driver are in slices that count with partitionable devices only."""
        found = [it.spec for it in self._slices if it.spec.driver == driver and it.spec.devices]
        return all(it.shared_counters or it.per_device_node_selection is not None for it in found)

    def kinds(self, names: Sequence[Reference], most: int) -> list[tuple[str, Device]]:
        """One device with its driver for each combination of driver and values of these names; ``most`` of them."""
        if (known := self._kinds.get(tuple(names))) is not None:
            return known
        found: dict[tuple[object, ...], tuple[str, Device]] = {}
        for slice_ in self._slices:
            driver = slice_.spec.driver
            for device in slice_.spec.devices or ():
                values = (value_of(device, driver, name) for name in names)
                found.setdefault((driver, device.allow_multiple_allocations, *map(repr, values)), (driver, device))
            if len(found) >= most:
                break
        return self._kinds.setdefault(tuple(names), list(found.values())[:most])

    def publishers(self, kind: str, domain: str, id_: str) -> set[str]:
        """The drivers whose devices publish a name."""
        name, found = Reference(kind, domain, id_), set[str]()
        for slice_ in self._slices:
            driver = slice_.spec.driver
            if driver not in found and any(value_of(it, driver, name) for it in slice_.spec.devices or ()):
                found.add(driver)
        return found

    @cached_property
    def _names(self) -> Counter[tuple[str, str, str]]:
        """Kind, domain and identifier of all that devices publish, with how many do."""
        found: Counter[tuple[str, str, str]] = Counter()
        for slice_ in self._slices:
            driver = slice_.spec.driver
            for device in slice_.spec.devices or ():
                found.update([("attributes", *_qualified(name, driver)) for name in device.attributes or ()])
                found.update([("capacity", *_qualified(name, driver)) for name in device.capacity or ()])
        return found

    def values(self, name: Reference) -> Mapping[str, int]:
        """The values of one name, the most frequent first."""
        if name not in self._values:
            self._values[name] = dict(Counter(self._texts(name)).most_common())
        return self._values[name]

    def _texts(self, name: Reference) -> Iterator[str]:
        for slice_ in self._slices:
            for device in slice_.spec.devices or ():
                value = value_of(device, slice_.spec.driver, name)
                if value is not None:
                    yield value_text(value) if isinstance(value, DeviceAttribute) else str(value.value)

    def spellings(self, wrong: Accessor, drivers: Collection[str] = ()) -> list[str]:
        """How to write an accessor that no device has, so that it reads a published name; the likeliest first.

        It may name the other kind, leave out the domain, join domain and name, or write the domain without brackets;
        or it may go on to a field of the slice, as in ``.model.string``. ``drivers``: those that are meant.
        """
        if len(wrong.parts) == 2 and (wrong.kind, *wrong.parts) in self._names:
            return []
        found: dict[str, tuple[bool, bool, str]] = {}
        for parts in (wrong.parts, wrong.parts[:-1] if wrong.parts[-1] in _FIELDS_OF_VALUES else ()):
            said = ".".join(parts).replace("/", ".")
            for kind, domain, name in self._names if said else ():
                if said in (name, f"{domain}.{name}"):
                    text = f'device.{kind}["{domain}"].{name}'
                    is_meant = bool(self.publishers(kind, domain, name).intersection(drivers))
                    found.setdefault(text, (not is_meant, kind != wrong.kind, text))
        return sorted(found, key=found.__getitem__)

    def domains_of(self, kind: str, id_: str) -> list[str]:
        """The domains in which devices publish a name, the most frequent first."""
        found = {domain: count for (what, domain, name), count in self._names.items() if (what, name) == (kind, id_)}
        return sorted(found, key=lambda domain: (-found[domain], domain))

    def names_of(self, kind: str, domain: str) -> list[str]:
        return sorted(name for what, its, name in self._names if (what, its) == (kind, domain))


class Pools:
    """The published devices, to look up devices of claims."""

    def __init__(self, seen: Observed) -> None:
        self._are_unseen = "resourceslices.resource.k8s.io" in seen.unseen
        self.newest = newest_slices(seen.every(ResourceSlice))
        self._devices = {
            DeviceId(*pool, device.name)
            for pool, slices in self.newest.items()
            for slice_ in slices
            for device in slice_.spec.devices or ()
        }
        self.nodes_of_driver: dict[str, set[str]] = defaultdict(set)
        for pool, slices in self.newest.items():
            self.nodes_of_driver[pool.driver] |= {slice_.spec.node_name or "" for slice_ in slices}

    def absent(self, device: DeviceId) -> str:
        """What is not there: driver, pool or device; empty if the device is, or may be in a slice that is to come."""
        if device.driver not in self.nodes_of_driver:
            return f"driver {device.driver} publishes no ResourceSlice"
        slices = self.newest.get(device.pool_id)
        if slices is None:
            return f"driver {device.driver} has no pool {device.pool}"
        is_complete = len(slices) == slices[0].spec.pool.resource_slice_count
        is_there = device in self._devices or not is_complete
        return "" if is_there else f"pool {device.driver}/{device.pool} has no device {device.device}"

    def vanished(self, claims: Iterable[ResourceClaim]) -> Iterator[str]:
        """Yield devices of claims that no slice has any more, such as devices out of service."""
        for claim in claims if not self._are_unseen else ():
            for device in map(DeviceId.of, claim.results):
                if why := self.absent(device):
                    yield (
                        f"claim {claim.metadata.name} has {device}, and {why}: the pod starts only if the driver still "
                        "knows it"
                    )


def value_of(device: Device, driver: str, name: Reference) -> DeviceAttribute | DeviceCapacity | None:
    """Return what a device of a driver publishes under a name; the driver may leave its own domain out."""
    members: Mapping[str, DeviceAttribute | DeviceCapacity] = (
        device.attributes if name.kind == "attributes" else device.capacity
    ) or {}
    found = members.get(f"{name.domain}/{name.id}")
    return members.get(name.id) if found is None and driver == name.domain else found


def nodes_of_one_pool(slices: Sequence[ResourceSlice]) -> list[str]:
    """The nodes whose plugins publish one pool without knowing of each other; empty if its slices belong together.

    A device's name counts within its pool, so such devices are one to all claims. ``slices``: the newest of a pool.
    """
    nodes = sorted({it.spec.node_name for it in slices if it.spec.node_name})
    is_shared = len(nodes) > 1 and len(slices) > slices[0].spec.pool.resource_slice_count
    return nodes if is_shared else []


class Accessor(NamedTuple):
    """What a selector reads of a device, as it is written: ``device.attributes["domain"].name``."""

    start: int
    end: int
    kind: str
    """``attributes`` or ``capacity``."""
    parts: tuple[str, ...]
    """The names behind it, in brackets or not."""


_ACCESSOR: Final = re.compile(
    r"""device\.(attributes|capacity)((?:\.\??[A-Za-z_]\w*\b(?!\s*\()|\[\??(?:"[^"\\\n]*"|'[^'\\\n]*')\])+)"""
)
_PART: Final = re.compile(r"""\w+|"[^"]*"|'[^']*'""")
_FIELDS_OF_VALUES: Final = frozenset({"string", "int", "bool", "version", "value", "stringValue", "intValue"})
"""Fields in which slices have values. A selector reads the value itself."""


def accessors(expression: str) -> list[Accessor]:
    """What an expression reads of a device, in its order."""
    return [
        Accessor(found.start(), found.end(), found[1], tuple(it.strip("\"'") for it in _PART.findall(found[2])))
        for found in _ACCESSOR.finditer(expression)
    ]


def _place(slice_: ResourceSlice) -> str:
    spec = slice_.spec
    if spec.node_name:
        return f"node {spec.node_name}"
    if spec.node_selector is None:
        return "all nodes" if spec.all_nodes else "nodes that each device names"
    return selector_text(spec.node_selector)


def selector_text(selector: NodeSelector) -> str:
    """``nodes with zone In a, b or rack Exists``."""
    terms = selector.node_selector_terms or ()
    wanted = [
        " and ".join(map(requirement_text, (*(it.match_expressions or ()), *(it.match_fields or ())))) for it in terms
    ]
    return f"nodes with {' or '.join(wanted)}"


def requirement_text(one: NodeSelectorRequirement) -> str:
    """``zone In a, b``."""
    return f"{one.key} {one.operator}" + (f" {', '.join(one.values)}" if one.values else "")


def _qualified(name: str, driver: str) -> tuple[str, str]:
    domain, slash, id_ = name.rpartition("/")
    return (domain, id_) if slash else (driver, name)


_LOOKS: Final = str.maketrans({"o": "0", "l": "1", "i": "1", "_": "-"})
"""What each of these characters is mistaken for."""


def likely_meant(word: str, known: Iterable[str]) -> list[str]:
    """Return the known words that a person may have meant, the likeliest first.

    A likely slip is a difference of case, then one letter left out, doubled or too many, or two letters in the wrong
    order, or characters that look alike (``a10O``, ``node_1``), then a word cut short. Any other letter makes another
    word: ``npu`` is no slip of ``gpu``.
    """
    ranked = sorted((rank, other) for other in set(known) if (rank := _slip(word, other)) is not None)
    return [other for _, other in ranked]


def _slip(word: str, other: str) -> int | None:
    """How unlikely the slip is; None if the words are no more alike than any others."""
    one, two = word.casefold(), other.casefold()
    if word == other or not one or not two:
        return None
    if one == two:
        return 0
    shorter, longer = sorted((one, two), key=len)
    place = next((at for at, letter in enumerate(shorter) if letter != longer[at]), len(shorter))
    if len(shorter) == len(longer):
        swapped = shorter[:place] + shorter[place + 1 : place + 2] + shorter[place : place + 1] + shorter[place + 2 :]
        return 1 if swapped == longer or one.translate(_LOOKS) == two.translate(_LOOKS) else None
    if len(longer) == len(shorter) + 1 and shorter[place:] == longer[place + 1 :]:
        return 1
    return 2 if longer.startswith(shorter) and len(shorter) > 1 else None
