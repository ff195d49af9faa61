"""What sysfs and udev say about one device.

A device is looked at from its own folder upwards. The nearest USB device and the nearest PCI device above a serial
adapter are the adapter and the controller it is plugged into: vendor, product and serial are those of the nearest, NUMA
node and PCIe root those of the controller.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from .tree import HostTree, Number

FACTS: Mapping[str, str] = {
    "path": "device node on the host, links followed",
    "node": "last part of the path that was found: `ttyUSB0`, or the folder's name in sysfs",
    "subsystem": "`tty`, `video4linux`, `misc`, `pci`",
    "driver": "the kernel's driver",
    "vendorId": "four hex digits, of USB or PCI",
    "productId": "four hex digits, of USB or PCI",
    "vendor": "name, from the USB device or udev's database",
    "product": "name, from the USB device or udev's database",
    "serial": "serial number, from the USB device or udev",
    "usbPort": "the USB port: `1-2.3`",
    "pciAddress": "`0000:3b:00.0`, of a PCI device and its functions",
    "pciClass": "six hex digits: `030200` is a GPU",
    "pcieRoot": "`pci0000:3a`, also of what is plugged into a PCI device",
    "numaNode": "number of the NUMA node; missing if the machine does not number them",
    "iommuGroup": "group for VFIO",
}
"""The facts by name, with what they mean; docs/hostdev.md shows them."""

_PCIE_ROOT = re.compile(r"/sys/devices/(pci[0-9a-f]{4}:[0-9a-f]{2})/", re.ASCII)


@dataclass(frozen=True)
class Facts:
    """What is known of the device found as ``found``, with its folder in sysfs and the number of its node, if any."""

    tree: HostTree
    found: str
    folder: str | None = None
    path: str | None = None
    number: Number | None = None

    def text(self, name: str) -> str | None:
        """A fact as text, None if it is unknown; ``sysfs.FILE`` and ``udev.PROPERTY`` are any file and property."""
        kind, _, rest = name.partition(".")
        if kind == "sysfs":
            return self._file(rest)
        if kind == "udev":
            return self._properties.get(rest) or None
        return self.known.get(name)

    @cached_property
    def known(self) -> dict[str, str]:
        """All facts by name, except the unknown ones."""
        found = {
            "path": self.path,
            "node": self.found.rpartition("/")[2],
            "subsystem": self.tree.link(f"{self.folder}/subsystem") if self.folder else None,
            "driver": self._link("driver"),
            **self._identity(),
            **self._place(),
        }
        return {name: value for name, value in found.items() if value}

    def _identity(self) -> dict[str, str | None]:
        usb, pci, udev = self._above("idVendor"), self._pci, self._properties
        names = {
            "vendor": udev.get("ID_VENDOR_FROM_DATABASE"),
            "product": udev.get("ID_MODEL_FROM_DATABASE"),
            "serial": udev.get("ID_SERIAL_SHORT"),
        }
        if usb:
            own = {"vendor": "manufacturer", "product": "product", "serial": "serial"}
            found = {name: self.tree.text(f"{usb}/{file}") or names[name] for name, file in own.items()}
            ids = {"vendorId": self.tree.text(f"{usb}/idVendor"), "productId": self.tree.text(f"{usb}/idProduct")}
            return found | ids | {"usbPort": usb.rpartition("/")[2]}
        if not pci:
            return names
        return names | {
            "vendorId": _hex(self.tree.text(f"{pci}/vendor")),
            "productId": _hex(self.tree.text(f"{pci}/device")),
            "pciAddress": pci.rpartition("/")[2],
            "pciClass": _hex(self.tree.text(f"{pci}/class")),
        }

    def _place(self) -> dict[str, str | None]:
        root = _PCIE_ROOT.match(f"{self._pci}/") if self._pci else None
        numa = self.tree.text(f"{self._pci}/numa_node") if self._pci else None
        return {
            "pcieRoot": root[1] if root else None,
            "numaNode": numa if numa and numa.isdecimal() else None,
            "iommuGroup": self._link("iommu_group"),
        }

    @cached_property
    def _pci(self) -> str | None:
        for folder in self.tree.upwards(self.folder or ""):
            if self.tree.link(f"{folder}/subsystem") == "pci":
                return folder
        return None

    @cached_property
    def _properties(self) -> dict[str, str]:
        """Of udev, its own; those of the PCI device count as well, unless it is the controller of a USB device."""
        pci = self._pci if not self._above("idVendor") else None
        return (self._udev_of(pci) if pci else {}) | (self._udev_of(self.folder) if self.folder else {})

    def _udev_of(self, folder: str) -> dict[str, str]:
        subsystem, number = self.tree.link(f"{folder}/subsystem"), self.tree.text(f"{folder}/dev")
        if number:
            return self.tree.udev(f"{'b' if subsystem == 'block' else 'c'}{number}")
        return self.tree.udev(f"+{subsystem}:{folder.rpartition('/')[2]}")

    def _above(self, file: str) -> str | None:
        """The nearest folder that has the file."""
        folders = self.tree.upwards(self.folder or "")
        return next((folder for folder in folders if self.tree.text(f"{folder}/{file}")), None)

    def _file(self, file: str) -> str | None:
        folder = self._above(file)
        return self.tree.text(f"{folder}/{file}") if folder else None

    def _link(self, name: str) -> str | None:
        links = (self.tree.link(f"{folder}/{name}") for folder in self.tree.upwards(self.folder or ""))
        return next((link for link in links if link), None)


def _hex(text: str | None) -> str | None:
    return text.removeprefix("0x") if text else None
