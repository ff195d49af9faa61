"""Attributes that all drivers call by the same name, and what sysfs says of them.

``pci_attributes("0000:3b:00.0")`` gives the PCI address, the PCIe root complex and the NUMA node of a device, as sysfs
has them. A claim with ``matchAttribute: resource.kubernetes.io/pcieRoot`` then gets a GPU and a network card below one
root complex, from two drivers that know nothing of each other. ``numaNode`` is a standard name from Kubernetes 1.37 on;
earlier versions store it like any other. Spec: plugin-helper.md section 8.

The value of ``resource.kubernetes.io/numaNode`` is one node, or a list of nodes where the API server has the feature
DRAListTypeAttributes: the device's own node and those that reach it as fast as any other does, within the same
processor socket. Drivers choose; nothing is guessed. Spec: K37-NUMA-01 to -04.
"""

from __future__ import annotations

import re
from pathlib import Path

from dra_kubeletplugin.errors import AttributeUnknown

PCI_BUS_ID = "resource.kubernetes.io/pciBusID"
PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
NUMA_NODE = "resource.kubernetes.io/numaNode"
SYSFS = Path("/sys")
LARGEST_NODE_NUMBER = 1023

_NODE = re.compile(r"node(\d{1,4})", re.ASCII)
_FIRST_CPU = re.compile(r"\s*(\d{1,6})", re.ASCII)


def numa_node_of_cpu(cpu: int, sysfs: Path = SYSFS) -> int:
    """The NUMA node of a CPU. Raises AttributeUnknown if sysfs does not say it."""
    folder = sysfs / f"devices/system/cpu/cpu{cpu}"
    nodes = _numbers(folder)
    if len(nodes) != 1:
        raise AttributeUnknown(f"{folder} has {len(nodes)} links to NUMA nodes instead of one: leave the attribute out")
    return nodes[0]


def near_numa_nodes(node: int, sysfs: Path = SYSFS) -> list[int]:
    """The node, then in ascending order the nodes that are nearest to it and not known to be on another socket.

    Alone if sysfs does not tell distances. Raises AttributeUnknown for a number that no node can have.
    """
    if node not in range(LARGEST_NODE_NUMBER + 1):
        raise AttributeUnknown(f"{node!r} is not a NUMA node: give a number from 0 to {LARGEST_NODE_NUMBER}")
    distances = _distances(node, sysfs)
    nearest = min(distances.values(), default=0)
    socket = _socket(node, sysfs)
    near = [other for other, distance in distances.items() if distance == nearest]
    return [node, *(other for other in near if socket is None or _socket(other, sysfs) in (None, socket))]


def _distances(node: int, sysfs: Path) -> dict[int, int]:
    """The distance of each other node; empty if the row does not fit. It has the nodes that are online, in order."""
    online = _numbers(sysfs / "devices/system/node")
    try:
        row = [int(text) for text in _text(sysfs, node, "distance").split()]
    except ValueError:
        return {}
    if len(row) != len(online) or node not in online:
        return {}
    return {other: distance for other, distance in zip(online, row, strict=True) if other != node}


def _socket(node: int, sysfs: Path) -> int | None:
    """The processor socket of a node; None for one without CPUs, or if it is not known."""
    cpu = _FIRST_CPU.match(_text(sysfs, node, "cpulist"))
    if cpu is None:
        return None
    try:
        socket = int((sysfs / f"devices/system/cpu/cpu{cpu[1]}/topology/physical_package_id").read_text())
    except (OSError, ValueError):
        return None
    return socket if socket >= 0 else None


def _numbers(folder: Path) -> list[int]:
    """The NUMA nodes that a folder of sysfs lists, in ascending order."""
    try:
        names = [_NODE.fullmatch(path.name) for path in folder.iterdir()]
    except OSError:
        return []
    return sorted(int(name[1]) for name in names if name)


def _text(sysfs: Path, node: int, file: str) -> str:
    try:
        return (sysfs / f"devices/system/node/node{node}" / file).read_text()
    except (OSError, UnicodeDecodeError):
        return ""


_ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", re.ASCII)
_ROOT = re.compile(r"pci[0-9a-f]{4}:[0-9a-f]{2}", re.ASCII)


def pci_attributes(address: str, sysfs: Path = SYSFS) -> dict[str, str | int]:
    """The standard attributes of a PCI device; without NUMA node if the machine does not say it.

    Raises AttributeUnknown as the functions for the single attributes do.
    """
    address = pci_bus_id(address)
    node = numa_node(address, sysfs)
    return {PCI_BUS_ID: address, PCIE_ROOT: pcie_root(address, sysfs)} | ({} if node is None else {NUMA_NODE: node})


def pci_bus_id(address: str) -> str:
    """The address in the form of the attribute, ``0000:3b:00.0``. Raises AttributeUnknown if it is none."""
    lowered = address.lower()
    if not _ADDRESS.fullmatch(lowered):
        raise AttributeUnknown(f"{address!r} is not a PCI address: write domain, bus, device, function: 0000:3b:00.0")
    return lowered


def pcie_root(address: str, sysfs: Path = SYSFS) -> str:
    """The root complex above a PCI device, ``pci0000:3a``. Raises AttributeUnknown if sysfs does not have it."""
    link = _device(address, sysfs)
    try:
        path = link.resolve(strict=True)
    except OSError as error:
        raise AttributeUnknown(
            f"cannot resolve {link}: {error.strerror}; is the device there, /sys mounted?"
        ) from error
    for part in path.parts:
        if _ROOT.fullmatch(part):
            return part
    raise AttributeUnknown(f"{link} leads to {path}, which is below no PCIe root complex: leave the attribute out")


def numa_node(address: str, sysfs: Path = SYSFS) -> int | None:
    """The NUMA node of a PCI device; None if the machine has only one and does not number it (-1 in sysfs).

    Raises AttributeUnknown if sysfs does not have the device.
    """
    file = _device(address, sysfs) / "numa_node"
    try:
        node = int(file.read_text())
    except (OSError, ValueError) as error:
        raise AttributeUnknown(f"cannot read {file}: {error}; is the device there, and /sys mounted?") from error
    return node if node >= 0 else None


def _device(address: str, sysfs: Path) -> Path:
    return sysfs / "bus/pci/devices" / pci_bus_id(address)
