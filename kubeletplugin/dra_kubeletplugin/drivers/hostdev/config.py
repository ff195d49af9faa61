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
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from dra_kubeletplugin import Hook
from dra_kubeletplugin.drivers.config_file import ProcessConfig

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
