"""From the configuration and the host to the devices that are there now.

What the entries find is matched, grouped and named. A problem, such as two devices of one name or a value that no slice
can hold, costs only the device at fault, and is a text for the log. A node of the host belongs to one device.

What the node uses itself is never offered: its network interfaces (``interfaces``), its disks (``disks``), and USB
hubs, by which a pod would have all that is plugged into them.

``--list``: what the file finds on this host, as YAML for a person.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from fnmatch import fnmatchcase

import yaml
from dra_api.codec import to_dict
from dra_api.resource import CapacityRequestPolicy, CapacityRequestPolicyRange, Device, DeviceCapacity
from dra_api.values import Quantity

from dra_kubeletplugin import NUMA_NODE, PCI_BUS_ID, PCIE_ROOT, CdiError, PluginError, Pool, check_resources, device
from dra_kubeletplugin.drivers.hostdev.config import Entry, Found, HostdevConfig, HostDevice, IntegerFact, filled
from dra_kubeletplugin.drivers.hostdev.disks import user_of_disk
from dra_kubeletplugin.drivers.hostdev.driver import edits_of, moved_interfaces, owned
from dra_kubeletplugin.drivers.hostdev.facts import FACTS, Facts, HostTree
from dra_kubeletplugin.drivers.hostdev.interfaces import Interfaces

_STANDARD = {"pciAddress": PCI_BUS_ID, "pcieRoot": PCIE_ROOT, "numaNode": NUMA_NODE}
_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")
_LONGEST_NAME_CHARACTERS = 63
_INTEGER = re.compile(r"-?[0-9]{1,19}", re.ASCII)
_USB_HUB = "09"  # a class of USB devices
_NOTHING = Found()
SHARES = "shares"


def scan(
    config: HostdevConfig, tree: HostTree, before: Found = _NOTHING, held: Callable[[], Collection[str]] = tuple
) -> Found:
    """Look for all entries, in their order; ``before`` is what the last look found.

    ``held`` returns the devices that prepared claims have: a disk that a pod has mounted is not the node's.
    """
    by_name: dict[str, list[HostDevice]] = {}
    problems: list[str] = []
    interfaces = Interfaces(tree, before.needed)
    for entry in config.devices:
        for parts in _groups(entry, _matching(entry, _found(entry, tree))):
            try:
                made = HostDevice(entry, parts, _published(entry, parts))
                check_resources({"p": Pool.of([made.published])}, driver=config.driver_name, node_name="n")
                edits_of(made)
                _check_needed(made, interfaces)
            except (ValueError, TypeError, PluginError, CdiError) as error:
                problems.append(f"{_where(entry, parts)}: {error}")
                continue
            by_name.setdefault(made.name, []).append(made)
    ones: dict[str, HostDevice] = {}
    for name, same in by_name.items():
        kept, faults = _the_one(same, before.devices.get(name))
        problems += faults
        if kept:
            ones[name] = kept
    belongings, faults = _belongings(ones, tree, held)
    devices = {name: ones[name] for name in ones if name in belongings}
    return Found(devices, (*problems, *faults), belongings, interfaces.needed)


def _belongings(
    ones: dict[str, HostDevice], tree: HostTree, held: Callable[[], Collection[str]]
) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """Return what belongs to each device that can be offered, and why the others cannot.

    ``held`` reads all claims, so it is asked only if it matters.
    """
    all_own = {name: owned(made) for name, made in ones.items()}
    users = {name: _user_of_disk(ones[name], own, tree, ()) for name, own in all_own.items()}
    names = list(ones)
    if any(users.values()) or len({part for own in all_own.values() for part in own}) < sum(map(len, all_own.values())):
        in_claims = set(held())
        given = {part for name in in_claims & all_own.keys() for part in all_own[name]}
        users = {name: user and _user_of_disk(ones[name], all_own[name], tree, given) for name, user in users.items()}
        # A pod that has a disk may make partitions on it, whose nodes are then its own.
        names.sort(key=lambda name: name not in in_claims)
    belongings: dict[str, tuple[str, ...]] = {}
    problems: list[str] = []
    owners: dict[str, str] = {}
    for name in names:
        own, where = all_own[name], _where(ones[name].entry, ones[name].parts)
        if users[name]:
            problems.append(f"{where}: a disk that the node uses is never offered: {users[name]}")
        elif other := next((owners[part] for part in own if part in owners), None):
            problems.append(f"{where}: {other} has its node already; match each once")
        else:
            belongings[name] = own
            owners |= dict.fromkeys(own, name)
    return belongings, problems


def _user_of_disk(made: HostDevice, own: Sequence[str], tree: HostTree, given: Collection[str]) -> str:
    is_named = all(part.found in (*made.entry.paths, *made.entry.sysfs) for part in made.parts)
    return user_of_disk(own, tree, given, is_named=is_named)


def _check_needed(made: HostDevice, interfaces: Interfaces) -> None:
    """Raise ValueError for a device whose interface must stay on the node, for its console, and for a USB hub."""
    names = moved_interfaces(made)
    for node in made.nodes:
        if node.known.get("subsystem") == "tty" and node.folder:
            consoles = (node.tree.text("/sys/class/tty/console/active") or "").split()
            if (name := node.folder.rpartition("/")[2]) in (*consoles, "console"):
                raise ValueError(f"the terminal {name} is never offered: it is the node's console, where people log in")
    for part in made.parts:
        if part.folder is not None and part.known.get("subsystem") == "usb":
            if part.tree.text(f"{part.folder}/bDeviceClass") == _USB_HUB:
                raise ValueError("a USB hub is never offered: who has it, has all that is plugged into it")
            names += [path.rpartition("/")[2] for path in part.tree.glob(f"{part.folder}/**/net/*")]
    for name in names:
        if why := interfaces.why_not(name):
            raise ValueError(f"the interface {name} is never offered: {why}")


def _the_one(same: list[HostDevice], before: HostDevice | None) -> tuple[HostDevice | None, list[str]]:
    """Which of these devices of one name has it, and why the others are left out.

    The one that had it before keeps it. Otherwise none gets it: which of them a claim means cannot be told, and the
    wrong one is worse than none.
    """
    if len(same) == 1:
        return same[0], []
    kept = next((device for device in same if before and device.parts == before.parts), None)
    remedy = "make the id differ, or group them with groupBy"
    found = [device.parts[0].found for device in same]
    if kept:
        reason = f"{kept.parts[0].found} has the name {kept.name!r} already; {remedy}"
    else:
        reason = f"{' and '.join(found)} would all have the name {same[0].name!r}, so none gets it; {remedy}"
    return kept, [f"{_where(device.entry, device.parts)}: {reason}" for device in same if device is not kept]


def _where(entry: Entry, parts: Sequence[Facts]) -> str:
    return f"entry {entry.name!r}, device {parts[0].found}"


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
        key = filled(entry.group_by, facts) if entry.group_by else None
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
    text = filled(entry.id, facts) or facts.known["node"]
    ending = _NOT_IN_NAMES.sub("-", text.lower()).strip("-")
    return entry.name if ending == entry.name else f"{entry.name}-{ending}"[:_LONGEST_NAME_CHARACTERS].rstrip("-")


def _attributes(entry: Entry, facts: Facts) -> dict[str, str | int | bool]:
    attributes: dict[str, str | int | bool] = {"entry": entry.name}
    for name in FACTS:
        if value := facts.known.get(name):
            attributes[_STANDARD.get(name, name)] = int(value) if name == "numaNode" else value
    for name, given in entry.attributes.items():
        own = _attribute(given, facts)
        if own is not None:
            attributes[name] = own
    return attributes


def _attribute(given: str | int | bool | IntegerFact, facts: Facts) -> str | int | bool | None:
    if isinstance(given, str):
        return filled(given, facts)
    if not isinstance(given, IntegerFact):
        return given
    text = filled(given.int, facts)
    if text is not None and not _INTEGER.fullmatch(text):
        raise ValueError(f"{given.int} is {text!r}, which is not an integer: leave int out to make it a string")
    return None if text is None else int(text)


def _shares(count: int) -> DeviceCapacity:
    """So many portions, of which a claim that says nothing gets one."""
    one = Quantity("1")
    policy = CapacityRequestPolicy(default=one, valid_range=CapacityRequestPolicyRange(min=one, step=one))
    return DeviceCapacity(value=Quantity(str(count)), request_policy=policy)


def listing(config: HostdevConfig, tree: HostTree, found: Found) -> str:
    """The devices as they would be published, with what containers get, and why others are left out.

    ``foundNothing`` has the patterns that match nothing, and the entries without devices.
    """
    devices = [
        {"device": to_dict(made.published), "containerEdits": to_dict(edits_of(made))}
        for made in found.devices.values()
    ]
    listed = {"devices": devices, "leftOut": list(found.problems), "foundNothing": list(_nothing(config, tree, found))}
    return yaml.safe_dump(listed, sort_keys=False, width=120)


def _nothing(config: HostdevConfig, tree: HostTree, found: Found) -> Iterator[str]:
    for entry in config.devices:
        empty = [pattern for pattern in (*entry.paths, *entry.sysfs) if not tree.glob(pattern)]
        yield from (f"entry {entry.name!r}: {pattern} matches nothing on this host" for pattern in empty)
        is_used = any(made.entry is entry for made in found.devices.values())
        if not is_used and len(empty) < len(entry.paths + entry.sysfs):
            kind = "folder of a device" if entry.sysfs else "device node"
            facts = f" with the facts {', '.join(entry.match)} that match asks for" if entry.match else ""
            yield f"entry {entry.name!r}: its patterns match no {kind}{facts}, or only some that are left out"
