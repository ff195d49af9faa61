"""What all devices of the cluster publish: drivers, and the values of attributes and capacities by qualified name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property

from dra_api.core import NodeSelector, NodeSelectorRequirement
from dra_api.resource import ResourceSlice
from dra_cel import Reference

from dra_operator.kubectl.facts import value_text


class Published:
    """Over all slices that are given; each value with how many devices have it."""

    def __init__(self, slices: Collection[ResourceSlice]) -> None:
        self._slices = slices
        self._values: dict[Reference, Mapping[str, int]] = {}

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
        qualified, is_attribute = f"{name.domain}/{name.id}", name.kind == "attributes"
        for slice_ in self._slices:
            names = (qualified, name.id) if slice_.spec.driver == name.domain else (qualified,)
            for device in slice_.spec.devices or ():
                for its in names:
                    if is_attribute:
                        if device.attributes and (value := device.attributes.get(its)) is not None:
                            yield value_text(value)
                    elif device.capacity and (capacity := device.capacity.get(its)) is not None:
                        yield str(capacity.value)

    def domains_of(self, kind: str, id_: str) -> list[str]:
        """The domains in which devices publish a name, the most frequent first."""
        found = {domain: count for (what, domain, name), count in self._names.items() if (what, name) == (kind, id_)}
        return sorted(found, key=lambda domain: (-found[domain], domain))

    def names_of(self, kind: str, domain: str) -> list[str]:
        """The names in a domain."""
        return sorted(name for what, its, name in self._names if (what, its) == (kind, domain))


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
