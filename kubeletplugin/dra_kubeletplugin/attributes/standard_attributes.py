"""Attributes that all drivers call by the same name, so that a claim can ask for devices that are close to each other.

``pci_attributes("0000:3b:00.0")`` gives the PCI address, the PCIe root complex and the NUMA node of a device, as sysfs
has them. A claim with ``matchAttribute: resource.kubernetes.io/pcieRoot`` then gets a GPU and a network card below one
root complex, from two drivers that know nothing of each other. ``numaNode`` is a standard name from Kubernetes 1.37 on;
earlier versions store it like any other. Spec: plugin-helper.md section 8.
"""

from __future__ import annotations

import re
from pathlib import Path

from dra_kubeletplugin.errors import AttributeUnknown

PCI_BUS_ID = "resource.kubernetes.io/pciBusID"
PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
NUMA_NODE = "resource.kubernetes.io/numaNode"
SYSFS = Path("/sys")

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
