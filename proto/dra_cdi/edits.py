"""What changes in a container that gets a device: variables, device nodes, mounts, hooks, groups, network interfaces.

Fields have the names of the file format in snake case. Each class checks its own values when it is made, and raises
CdiError, the one error of the package.

A kind is ``vendor/class``, a device id ``vendor/class=name``. A vendor or a class starts with a letter, a device name
with a letter or digit. All end with a letter or digit and have ASCII letters, digits, ``_``, ``-`` and ``.`` between; a
device name may have ``:`` as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec


class CdiError(ValueError):
    """A CDI file, or a value in it, cannot be used. The message names file, device, field and remedy, where known."""


_PART = re.compile(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_DEVICE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")


def check_kind(kind: str) -> None:
    """Raises CdiError, unless this is a kind."""
    vendor, _, class_ = kind.partition("/")
    for word, part in (("vendor", vendor), ("class", class_)):
        if not _PART.fullmatch(part):
            raise CdiError(
                f"kind {kind!r} is not of the form vendor/class: the {word} {part!r} has to start with a letter, end "
                "with a letter or digit, and have only letters, digits, '_', '-' and '.', such as example.com/gpu"
            )


def check_device_name(name: str) -> None:
    """Raises CdiError, unless a device may be called this."""
    if not _DEVICE.fullmatch(name):
        raise CdiError(
            f"device name {name!r} is not valid: start and end it with a letter or digit, "
            "and use only letters, digits, '_', '.', ':' and '-'"
        )


HOOKS: Final = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
"""The moments in a container's life at which a hook runs."""

_UINT32_VALUES: Final = (0, 2**32 - 1)
_INT64_VALUES: Final = (-(2**63), 2**63 - 1)
_CLOS_ID_BYTES: Final = 4095


class Part(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """A part of a file. A field that no release of the interface has is refused, as runtimes do."""


class DeviceNode(Part, frozen=True):
    """A device node at ``path`` in the container.

    ``host_path`` is where it is on the host, if not there; ``type`` is ``b`` (block), ``c`` or ``u`` (character) or
    ``p`` (FIFO), ``permissions`` what the container may do: a combination of ``r``, ``w`` and ``m`` (make nodes).
    A runtime takes what is left out from the host's node.
    """

    path: str
    host_path: str = ""
    type: str = ""
    major: int = 0
    minor: int = 0
    file_mode: int | None = None
    permissions: str = ""
    uid: int | None = None
    gid: int | None = None

    def __post_init__(self) -> None:
        _filled("path of a device node", self.path)
        if self.type not in ("", "b", "c", "u", "p"):
            raise CdiError(f"type {self.type!r} of device node {self.path}: use b, c, u or p, or leave it out")
        if set(self.permissions) - set("rwm"):
            raise CdiError(
                f"permissions {self.permissions!r} of device node {self.path}: use a combination of r, w and m"
            )
        for name, value in (("major", self.major), ("minor", self.minor)):
            _within(_INT64_VALUES, f"{name} of device node {self.path}", value)
        for name, number in (("fileMode", self.file_mode), ("uid", self.uid), ("gid", self.gid)):
            _within(_UINT32_VALUES, f"{name} of device node {self.path}", number)

    @property
    def source(self) -> str:
        """The path on the host."""
        return self.host_path or self.path


class Mount(Part, frozen=True):
    """A file or folder of the host in the container; ``options`` such as ``ro``, ``type`` such as ``tmpfs``."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ()
    type: str = ""

    def __post_init__(self) -> None:
        _filled("hostPath of a mount", self.host_path)
        _filled("containerPath of a mount", self.container_path)


class Hook(Part, frozen=True):
    """A program of the host that the runtime runs when ``hook_name`` (of ``HOOKS``) says; ``timeout`` in seconds."""

    hook_name: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: int | None = None

    def __post_init__(self) -> None:
        if self.hook_name not in HOOKS:
            raise CdiError(f"hookName {self.hook_name!r}: use one of {', '.join(HOOKS)}")
        _filled(f"path of hook {self.hook_name}", self.path)
        _variables(self.env)
        _within(_INT64_VALUES, f"timeout of hook {self.hook_name}", self.timeout)


class IntelRdt(Part, frozen=True):
    """Shares of cache and memory bandwidth (Intel Resource Director Technology); ``clos_id`` names the class."""

    clos_id: str = msgspec.field(default="", name="closID")
    l3_cache_schema: str = ""
    mem_bw_schema: str = ""
    schemata: tuple[str, ...] | None = None
    enable_monitoring: bool = False

    def __post_init__(self) -> None:
        name = self.clos_id
        if name == "/":
            return
        if name in (".", "..") or set(name) & set("/\n") or len(name.encode()) > _CLOS_ID_BYTES:
            raise CdiError(f"closID {name[:40]!r} of intelRdt: use a file name, or / for the root class")


class NetDevice(Part, frozen=True):
    """A network interface of the host that moves into the container as ``name``."""

    host_interface_name: str
    name: str

    def __post_init__(self) -> None:
        _filled("hostInterfaceName of a network device", self.host_interface_name)
        _filled("name of a network device", self.name)


class ContainerEdits(Part, frozen=True):
    """What changes in a container; ``env`` holds ``NAME=value``."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    net_devices: tuple[NetDevice, ...] = ()
    hooks: tuple[Hook, ...] = ()
    mounts: tuple[Mount, ...] = ()
    intel_rdt: IntelRdt | None = None
    additional_gids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.env:
            _variables(self.env)
        if self.net_devices:
            _once("hostInterfaceName of netDevices", (device.host_interface_name for device in self.net_devices))
            _once("name of netDevices", (device.name for device in self.net_devices))
        for group in self.additional_gids:
            _within(_UINT32_VALUES, "an entry of additionalGids", group)

    def __bool__(self) -> bool:
        """Whether anything changes."""
        return self != ContainerEdits()

    def __add__(self, other: ContainerEdits) -> ContainerEdits:
        """Both, one after the other. Of Intel RDT, and of one network interface, the later one counts."""
        net_devices = {device.host_interface_name: device for device in self.net_devices + other.net_devices}
        return ContainerEdits(
            env=self.env + other.env,
            device_nodes=self.device_nodes + other.device_nodes,
            net_devices=tuple(net_devices.values()),
            hooks=self.hooks + other.hooks,
            mounts=self.mounts + other.mounts,
            intel_rdt=other.intel_rdt or self.intel_rdt,
            additional_gids=self.additional_gids + other.additional_gids,
        )

    def environment(self) -> dict[str, str]:
        """The variables; the last of equal names counts."""
        return dict(entry.split("=", 1) for entry in self.env)


def _filled(what: str, value: str) -> None:
    if not value:
        raise CdiError(f"the {what} is empty: give it, or leave the whole entry out")


def _within(limits: tuple[int, int], what: str, value: int | None) -> None:
    low, high = limits
    if value is not None and not low <= value <= high:
        raise CdiError(f"the {what} is {value}: use a number from {low} to {high}")


def _variables(entries: Iterable[str]) -> None:
    if isinstance(entries, str | Mapping):
        raise CdiError(f"env is {entries!r}: give a list of texts of the form NAME=value")
    for entry in entries:
        if not isinstance(entry, str) or entry.find("=") < 1 or "\0" in entry:
            raise CdiError(f"env entry {entry!r}: use the form NAME=value")


def _once(what: str, values: Iterable[str]) -> None:
    seen = set()
    for value in values:
        if value in seen:
            raise CdiError(f"the {what} {value!r} is given twice: use each once")
        seen.add(value)
