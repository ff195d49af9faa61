"""From the configuration and the host to the devices that are there now.

What the entries find is matched, grouped and named. A problem, such as two devices of one name or a value that no slice
can hold, costs only the device at fault, and is a text for the log. Nothing is remembered between two looks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from dra_api.quantity import Quantity
from dra_api.resource import CapacityRequestPolicy, CapacityRequestPolicyRange, Device, DeviceCapacity

from dra_kubeletplugin import NUMA_NODE, PCI_BUS_ID, PCIE_ROOT, PluginError, Pool, check_resources, device

from . import template
from .config import Entry, HostdevConfig
from .facts import FACTS, Facts
from .tree import HostTree

_STANDARD = {"pciAddress": PCI_BUS_ID, "pcieRoot": PCIE_ROOT, "numaNode": NUMA_NODE}
_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")
_LONGEST_NAME = 63
SHARES = "shares"


@dataclass(frozen=True)
class HostDevice:
    """A device that can be published: its entry, and the device nodes (or folders in sysfs) that belong to it."""

    entry: Entry
    parts: tuple[Facts, ...]
    published: Device

    @property
    def name(self) -> str:
        """Its name in the pool."""
        return self.published.name


@dataclass(frozen=True)
class Found:
    """One look at the host."""

    devices: dict[str, HostDevice] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def scan(config: HostdevConfig, tree: HostTree) -> Found:
    """Look for all entries, in their order."""
    devices: dict[str, HostDevice] = {}
    problems: list[str] = []
    for entry in config.devices:
        for parts in _groups(entry, _matching(entry, _found(entry, tree))):
            where = f"entry {entry.name!r}, device {parts[0].found}"
            try:
                made = HostDevice(entry, parts, _published(entry, parts))
                check_resources({"p": Pool.of([made.published])}, driver=config.driver_name, node_name="n")
            except (ValueError, TypeError, PluginError) as error:
                problems.append(f"{where}: {error}")
                continue
            if other := devices.get(made.name):
                problems.append(
                    f"{where}: {other.parts[0].found} has the name {made.name!r} already; make the id differ, or group "
                    "them with groupBy"
                )
            else:
                devices[made.name] = made
    return Found(devices, tuple(problems))


def _found(entry: Entry, tree: HostTree) -> Iterator[Facts]:
    seen = set()
    for pattern in (*entry.paths, *entry.sysfs):
        for found in tree.glob(pattern):
            path = tree.resolved(found)
            if path is None or path in seen:
                continue
            seen.add(path)
            if entry.sysfs:
                yield Facts(tree, found, path, tree.node_in(path))
            elif number := tree.number(path):
                yield Facts(tree, found, tree.folder_of(number), path, number)


def _matching(entry: Entry, found: Iterator[Facts]) -> Iterator[Facts]:
    return (facts for facts in found if all(_matches(facts.text(name), wanted) for name, wanted in entry.match.items()))


def _matches(text: str | None, wanted: str | Sequence[str]) -> bool:
    patterns = [wanted] if isinstance(wanted, str) else wanted
    return text is not None and any(fnmatchcase(text.lower(), pattern.lower()) for pattern in patterns)


def _groups(entry: Entry, found: Iterator[Facts]) -> list[tuple[Facts, ...]]:
    groups: dict[str, list[Facts]] = {}
    for facts in found:
        key = template.filled(entry.group_by, facts) if entry.group_by else None
        groups.setdefault(f"= {key}" if key else facts.found, []).append(facts)
    return [tuple(parts) for parts in groups.values()]


def _published(entry: Entry, parts: tuple[Facts, ...]) -> Device:
    shared = entry.shares != 1
    return device(
        _name(entry, parts[0]),
        attributes=_attributes(entry, parts[0]),
        capacity={SHARES: _shares(entry.shares)} if isinstance(entry.shares, int) and shared else None,
        allow_multiple_allocations=True if shared else None,
    )


def _name(entry: Entry, facts: Facts) -> str:
    """Ends with the id, or with the name of the node if the device lacks what the id asks for; not ``kvm-kvm``."""
    text = template.filled(entry.id, facts) or facts.known["node"]
    ending = _NOT_IN_NAMES.sub("-", text.lower()).strip("-")
    return entry.name if ending == entry.name else f"{entry.name}-{ending}"[:_LONGEST_NAME].rstrip("-")


def _attributes(entry: Entry, facts: Facts) -> dict[str, str | int | bool]:
    attributes: dict[str, str | int | bool] = {"entry": entry.name}
    for name in FACTS:
        if value := facts.known.get(name):
            attributes[_STANDARD.get(name, name)] = int(value) if name == "numaNode" else value
    for name, given in entry.attributes.items():
        own = template.filled(given, facts) if isinstance(given, str) else given
        if own is not None:
            attributes[name] = own
    return attributes


def _shares(count: int) -> DeviceCapacity:
    """So many portions, of which a claim that says nothing gets one."""
    one = Quantity("1")
    policy = CapacityRequestPolicy(default=one, valid_range=CapacityRequestPolicyRange(min=one, step=one))
    return DeviceCapacity(value=Quantity(str(count)), request_policy=policy)
