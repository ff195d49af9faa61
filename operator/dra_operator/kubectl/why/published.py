"""What all devices of the cluster publish: drivers, and the values of attributes and capacities by qualified name."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from functools import cached_property

from dra_api.resource import ResourceSlice
from dra_cel import Reference

from dra_operator.kubectl.facts.devices import value_text


class Published:
    """Over all slices that are given; each value with how many devices have it."""

    def __init__(self, slices: Collection[ResourceSlice]) -> None:
        self._slices = slices

    @cached_property
    def drivers(self) -> Counter[str]:
        """How many devices each publishes."""
        found: Counter[str] = Counter()
        for slice_ in self._slices:
            if slice_.spec.devices:
                found[slice_.spec.driver] += len(slice_.spec.devices)
        return found

    @cached_property
    def _values(self) -> Mapping[tuple[str, str, str], Counter[str]]:
        found: dict[tuple[str, str, str], Counter[str]] = defaultdict(Counter)
        for slice_ in self._slices:
            driver = slice_.spec.driver
            for device in slice_.spec.devices or ():
                for name, attribute in (device.attributes or {}).items():
                    found[("attributes", *_qualified(name, driver))][value_text(attribute)] += 1
                for name, capacity in (device.capacity or {}).items():
                    found[("capacity", *_qualified(name, driver))][str(capacity.value)] += 1
        return found

    def values(self, name: Reference) -> Mapping[str, int]:
        """The values of one name, the most frequent first."""
        return dict(self._values.get((name.kind, name.domain, name.id), Counter()).most_common())

    def domains_of(self, kind: str, id_: str) -> list[str]:
        """The domains in which devices publish a name, the most frequent first."""
        found = {
            domain: counts.total()
            for (what, domain, name), counts in self._values.items()
            if (what, name) == (kind, id_)
        }
        return sorted(found, key=lambda domain: (-found[domain], domain))

    def names_of(self, kind: str, domain: str) -> list[str]:
        """The names in a domain."""
        return sorted(name for what, its, name in self._values if (what, its) == (kind, domain))


def _qualified(name: str, driver: str) -> tuple[str, str]:
    domain, slash, id_ = name.rpartition("/")
    return (domain, id_) if slash else (driver, name)
