"""The configuration file of ``hostdev``, YAML or JSON: which devices of the host, and what containers get::

    driverName: hostdev.example.com
    devices:
      - name: serial                            # devices are called serial-ttyusb0, ...
        paths: [/dev/ttyUSB*, /dev/ttyACM*]     # device nodes; or sysfs: [/sys/bus/pci/devices/*]
        match: {vendorId: ["0403", "10c4"]}     # facts (docs/hostdev.md), with * and ?
        container: {env: {SERIAL_PORT: "{containerPath}"}}
      - name: kvm
        paths: [/dev/kvm]
        shares: 100                             # claims that may use it at once

An error names the file, the entry, the field, and what to write instead.

Reading the file checks the rest: names, patterns, facts, and everything that CDI refuses.

Texts have facts in braces: ``/dev/vfio/{iommuGroup}``, ``{sysfs.speed}``, ``{udev.ID_MODEL}``. A misspelt name is an
error of the file, and no attribute that is always missing. A fact that a device does not have leaves the whole text
out. Two braces stand for one. ``Found`` is what one look at the host finds: devices with their entry and facts.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Final, Literal

import msgspec
from dra_api.resource import Device

from dra_kubeletplugin import CdiError, ContainerEdits, DeviceNode, Hook, Mount, SettingsError
from dra_kubeletplugin.drivers import ProcessConfig, read_file
from dra_kubeletplugin.drivers.hostdev.facts import FACTS, Facts

_NAME = re.compile(r"[a-z]([a-z0-9-]{0,29}[a-z0-9])?", re.ASCII)
_ATTRIBUTE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}", re.ASCII)


_FIELD = re.compile(r"\{\{|\}\}|\{(?P<name>[^{}]*)\}|[{}]")
_OF_HARDWARE = frozenset({"vendor", "product", "serial"})
_FREE = re.compile(r"udev\.[A-Z][A-Z0-9_]*|sysfs\.[A-Za-z0-9_]+", re.ASCII)


def check_fact(name: str) -> None:
    """Raise ValueError, with the names that exist, for a fact that does not."""
    if name not in FACTS and not _FREE.fullmatch(name):
        raise ValueError(
            f"there is no fact {name!r}: use {', '.join(FACTS)}, sysfs.FILE (such as sysfs.speed), or udev.PROPERTY "
            "(such as udev.ID_MODEL)"
        )


def check_text(text: str) -> None:
    """Raise ValueError for a lonely brace or a fact that does not exist."""
    for name in facts_in(text):
        check_fact(name)


def facts_in(text: str) -> Iterator[str]:
    """The facts that a text asks for. Raises ValueError for a lonely brace."""
    for match in _FIELD.finditer(text):
        if match[0] in "{}":
            raise ValueError(f"{text!r} has a brace without its other half: write two for a brace itself")
        if match["name"] is not None:
            yield match["name"]


def filled(text: str, facts: Facts) -> str | None:
    """The text for one device; None if the device lacks a fact."""
    values = {name: facts.text(name) for name in facts_in(text)}
    if None in values.values():
        return None
    return _FIELD.sub(_replacement(values), text)


def filled_as_path(text: str, facts: Facts) -> str | None:
    """As ``filled``, for a path or an argument of a program.

    Raises ValueError if what a device says of itself would lead elsewhere: it is a text of the hardware.
    """
    for name in facts_in(text):
        value = facts.text(name) or ""
        if _is_of_hardware(name) and ("/" in value or value.startswith(("..", "-")) or not value.isprintable()):
            raise ValueError(f"{text!r}: the device says {value!r} for {name}, which must not be part of a path")
    return filled(text, facts)


def _is_of_hardware(name: str) -> bool:
    return name in _OF_HARDWARE or name.startswith(("sysfs.", "udev."))


def _replacement(values: dict[str, str | None]) -> Callable[[re.Match[str]], str]:
    return lambda match: match[0][0] if match["name"] is None else values[match["name"]] or ""


CONTAINER_PATH: Final = "{containerPath}"
"""Stands for the place of the first device node in the container, which a claim may choose."""


class _Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    pass


class NodeConfig(_Part, frozen=True):
    """A further device node that containers get, ``/dev/nvidiactl`` for example."""

    path: str
    host_path: str = ""
    permissions: str = ""


class MountConfig(_Part, frozen=True):
    """A file or folder of the host in the container."""

    host_path: str
    container_path: str = ""
    options: tuple[str, ...] = ("ro", "nosuid", "nodev", "bind")


class NetDeviceConfig(_Part, frozen=True):
    """A network interface of the host that moves into the container, under the same name if ``name`` is left out."""

    host_interface_name: str = "{node}"
    name: str = ""


class IntegerFact(_Part, frozen=True):
    """An attribute that is an integer: ``{int: "{sysfs.mtu}"}``."""

    int: str


class HookConfig(_Part, frozen=True):
    """A program that the runtime calls; ``hook_name`` as in CDI."""

    hook_name: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: int | None = None


class ContainerConfig(_Part, frozen=True):
    """What a container with the device gets. Texts may hold facts in braces.

    ``path`` is where the device node is in the container, as on the host if left out; ``permissions`` what the
    container may do with it: ``r``, ``w``, ``m`` (make nodes).
    """

    path: str = "{path}"
    permissions: str = "rw"
    device_nodes: tuple[NodeConfig, ...] = ()
    env: dict[str, str] = {}
    net_devices: tuple[NetDeviceConfig, ...] = ()
    mounts: tuple[MountConfig, ...] = ()
    hooks: tuple[HookConfig, ...] = ()
    additional_gids: tuple[int, ...] = ()

    def templates(self) -> Iterator[tuple[str, str]]:
        """All texts that may hold facts, with their fields."""
        yield "path", self.path
        for index, node in enumerate(self.device_nodes):
            yield f"deviceNodes[{index}].path", node.path
            yield f"deviceNodes[{index}].hostPath", node.host_path
        for name, value in self.env.items():
            yield f"env.{name}", value
        for index, net_device in enumerate(self.net_devices):
            yield f"netDevices[{index}].hostInterfaceName", net_device.host_interface_name
            yield f"netDevices[{index}].name", net_device.name
        for index, mount in enumerate(self.mounts):
            yield f"mounts[{index}].hostPath", mount.host_path
            yield f"mounts[{index}].containerPath", mount.container_path
        for index, hook in enumerate(self.hooks):
            for at, argument in enumerate(hook.args):
                yield f"hooks[{index}].args[{at}]", argument


class Entry(_Part, frozen=True):
    """Devices of one kind.

    Either ``paths`` finds device nodes or ``sysfs`` folders of devices, whose nodes are in the folders that match
    ``nodes``. ``match`` keeps those whose facts match. ``group_by`` makes one device of all with the same text, ``id``
    is what their names end with. ``shares`` claims can use a device at once. ``attributes`` come on top of the facts.
    """

    name: str
    paths: tuple[str, ...] = ()
    sysfs: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    match: dict[str, str | tuple[str, ...]] = {}
    group_by: str = ""
    id: str = "{node}"
    attributes: dict[str, str | int | bool | IntegerFact] = {}
    shares: int | Literal["unlimited"] = 1
    container: ContainerConfig = ContainerConfig()


class GoneConfig(_Part, frozen=True):
    """A device that vanished stays published with a taint of this effect, and is withdrawn after these seconds."""

    effect: Literal["NoSchedule", "NoExecute"] = "NoSchedule"
    withdraw_after_seconds: float = 60.0


class HostdevConfig(ProcessConfig, frozen=True, kw_only=True):
    """The content of the file; flags of the same meaning override it."""

    driver_name: str = "hostdev.dra.kopf.dev"
    gone: GoneConfig = GoneConfig()
    devices: tuple[Entry, ...] = ()


def hook_of(hook: HookConfig, args: tuple[str, ...]) -> Hook:
    """The hook with its arguments filled in. Raises CdiError."""
    return Hook(hook_name=hook.hook_name, path=hook.path, args=args, env=hook.env, timeout=hook.timeout)


def read_config(path: Path) -> HostdevConfig:
    """The file's content. Raises SettingsError, which names the file, the entry, the field and the remedy."""
    config = read_file(path, HostdevConfig)
    for fault in _faults(config):
        raise SettingsError(f"the configuration {path} is invalid: {fault}")
    return config


def _faults(config: HostdevConfig) -> Iterator[str]:
    if not config.devices:
        yield "devices: there is no entry, so nothing would be published; add one, see docs/hostdev.md"
    if config.gone.withdraw_after_seconds < 0:
        yield "gone.withdrawAfterSeconds: must not be negative"
    seen: dict[str, int] = {}
    for index, entry in enumerate(config.devices):
        where = f"devices[{index}] ({entry.name!r})"
        if entry.name in seen:
            yield f"{where}.name: devices[{seen[entry.name]}] has it already; names of devices begin with it"
        seen.setdefault(entry.name, index)
        for place, fault in _faults_of(entry):
            yield f"{where}.{place}: {fault}"


def _faults_of(entry: Entry) -> Iterator[tuple[str, str]]:
    if not _NAME.fullmatch(entry.name):
        yield "name", "use lower-case letters, digits and '-', at most 31, beginning with a letter"
    if bool(entry.paths) == bool(entry.sysfs):
        yield "paths", "give either paths (of device nodes) or sysfs (folders of devices)"
    if entry.nodes and not entry.sysfs:
        yield "nodes", "only with sysfs: paths are device nodes themselves"
    for place, patterns, start in (("paths", entry.paths, "/dev/"), ("sysfs", entry.sysfs, "/sys/")):
        for pattern in patterns:
            if not pattern.startswith(start) or ".." in pattern.split("/"):
                yield place, f"{pattern!r} must begin with {start} and have no '..'"
    if isinstance(entry.shares, int) and not 1 <= entry.shares <= 10_000:
        yield "shares", f"{entry.shares} is not from 1 to 10000; write unlimited if it does not matter"
    for name in entry.attributes:
        if not _ATTRIBUTE.fullmatch(name):
            yield f"attributes.{name}", "use letters, digits and '_', at most 32, not beginning with a digit"
    yield from _wrong_templates(entry)
    yield from _wrong_edits(entry.container)


def _wrong_templates(entry: Entry) -> Iterator[tuple[str, str]]:
    for name in entry.match:
        if fault := _fault(partial(check_fact, name)):
            yield f"match.{name}", fault
    texts = [("groupBy", entry.group_by), ("id", entry.id)]
    texts += [(f"attributes.{name}", text) for name, text in entry.attributes.items() if isinstance(text, str)]
    texts += [(f"attributes.{name}", it.int) for name, it in entry.attributes.items() if isinstance(it, IntegerFact)]
    texts += [(f"container.{place}", text) for place, text in entry.container.templates()]
    for place, text in texts:
        if place.startswith("container.") and place != "container.path":
            text = text.replace(CONTAINER_PATH, "")
        if fault := _fault(partial(check_text, text)):
            yield place, fault
    if (entry.group_by or entry.nodes) and not any(facts_in(entry.container.path)):
        yield "container.path", "several nodes cannot have one path: write {node} into it, such as /dev/camera/{node}"


def _wrong_edits(container: ContainerConfig) -> Iterator[tuple[str, str]]:
    """What the CDI model refuses, whatever the facts are."""
    makers: list[tuple[str, Callable[[], object]]] = [
        ("permissions", partial(DeviceNode, path="/dev/x", permissions=container.permissions)),
        ("env", partial(ContainerEdits, env=tuple(f"{name}=x" for name in container.env))),
        ("additionalGids", partial(ContainerEdits, additional_gids=container.additional_gids)),
    ]
    for index, node in enumerate(container.device_nodes):
        makers.append((f"deviceNodes[{index}]", partial(DeviceNode, path=node.path, permissions=node.permissions)))
    for index, mount in enumerate(container.mounts):
        makers.append((f"mounts[{index}]", partial(Mount, host_path=mount.host_path, container_path="/x")))
    for index, hook in enumerate(container.hooks):
        makers.append((f"hooks[{index}]", partial(hook_of, hook, hook.args)))
    for place, make in makers:
        if fault := _fault(make):
            yield f"container.{place}", fault


def _fault(make: Callable[[], object]) -> str:
    try:
        make()
    except (ValueError, CdiError) as error:
        return str(error)
    return ""


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

    @cached_property
    def nodes(self) -> tuple[Facts, ...]:
        """Its device nodes: each with the facts of its part, as the node that was found."""
        found = {
            path: Facts(part.tree, path, part.folder, path, part.number)
            for part in self.parts
            for path in self._paths(part)
        }
        return tuple(found.values())

    def _paths(self, part: Facts) -> list[str]:
        folders = [
            folder
            for pattern in self.entry.nodes
            for folder in part.tree.glob(f"{glob.escape(part.folder or '')}/{pattern}")
        ]
        below = [part.tree.node_in(folder) for folder in folders]
        return list(dict.fromkeys(path for path in (part.path, *below) if path))


@dataclass(frozen=True)
class Found:
    """One look at the host.

    ``owned`` says by device what of the host belonged to it alone when it was looked at: read later, the number of a
    node that was pulled meanwhile would be missing, and the device would seem to be another one. ``needed`` are network
    interfaces that this look or one before it found the node's network to need, with the reason.
    """

    devices: dict[str, HostDevice] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    owned: dict[str, tuple[str, ...]] = field(default_factory=dict)
    needed: dict[str, str] = field(default_factory=dict)
