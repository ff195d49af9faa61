"""The files of the host, and what sysfs and udev say about one device.

The kernel has a folder in sysfs for each device, below that of the device it is plugged into. A device node leads to
its folder by its number: ``/sys/dev/char/188:0``. A file that vanishes while it is read counts as missing. For want of
descriptors or memory nothing is known of a file, so the look ends with the error.

A device is looked at from its own folder upwards. The nearest USB device and the nearest PCI device above a serial
adapter are the adapter and the controller it is plugged into: vendor, product and serial are those of the nearest, NUMA
node and PCIe root those of the controller.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

_LACKING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
_PROPERTY = re.compile(r"E:([^=]+)=(.*)")
_STARS = re.compile(r"\*\*+")
_DIGITS = re.compile(r"(\d+)")


class Number(NamedTuple):
    """What tells device nodes apart: ``c`` or ``b``, and two numbers."""

    type: str
    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}:{self.minor}"


@dataclass(frozen=True)
class HostTree:
    """The host's files; ``root`` is where its root folder is mounted, ``addresses`` those of the node."""

    root: Path = Path("/")
    addresses: tuple[str, ...] = ()

    def glob(self, pattern: str) -> list[str]:
        """Paths on the host that match, those with numbers in the order of the numbers.

        As in a shell, several stars within a name mean the same as one.
        """
        parts = (part if part == "**" else _STARS.sub("*", part) for part in pattern.strip("/").split("/"))
        found = sorted((self._on_host(path) for path in self.root.glob("/".join(parts))), key=_natural)
        with os.scandir(self.root):  # glob takes a folder that it has no descriptor for as empty, since Python 3.13
            return found

    def resolved(self, path: str) -> str | None:
        """The path without links, or None."""
        try:
            return self._on_host(self.at(path).resolve(strict=True))
        except (ValueError, RuntimeError):
            return None
        except OSError as error:
            raise_if_lacking(error)
            return None

    def number(self, path: str) -> Number | None:
        """The number of a device node; None for anything else."""
        try:
            found = self.at(path).stat()
        except OSError as error:
            raise_if_lacking(error)
            return None
        if not (stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode)):
            return None
        kind = "c" if stat.S_ISCHR(found.st_mode) else "b"
        return Number(kind, os.major(found.st_rdev), os.minor(found.st_rdev))

    def identity(self, path: str) -> tuple[int, ...]:
        """Differs when another file has taken the name; empty if there is none."""
        try:
            found = self.at(path).stat()
        except OSError as error:
            raise_if_lacking(error)
            return ()
        return found.st_ino, found.st_rdev, found.st_ctime_ns

    def folder_of(self, number: Number) -> str | None:
        """The folder in sysfs of a device node."""
        return self.resolved(f"/sys/dev/{'char' if number.type == 'c' else 'block'}/{number}")

    def text(self, path: str) -> str | None:
        """What a small file says, or None."""
        try:
            return self.at(path).read_bytes()[:4096].decode(errors="replace").strip() or None
        except OSError as error:
            raise_if_lacking(error)
            return None

    def whole_text(self, path: str) -> str | None:
        """Return all that a file says, or None; for tables of the kernel, which may be long."""
        try:
            return self.at(path).read_bytes().decode(errors="replace")
        except OSError as error:
            raise_if_lacking(error)
            return None

    def link(self, path: str) -> str | None:
        """The last part of where a link leads, or None."""
        try:
            return self.at(path).readlink().name
        except OSError as error:
            raise_if_lacking(error)
            return None

    def node_in(self, folder: str) -> str | None:
        """The device node of a folder in sysfs."""
        for line in (self.text(f"{folder}/uevent") or "").splitlines():
            if line.startswith("DEVNAME="):
                return "/dev/" + line.removeprefix("DEVNAME=").removeprefix("/dev/")
        return None

    def udev(self, key: str) -> dict[str, str]:
        """The properties that udev found out, under its key of the device (``c188:0``, ``+pci:0000:3b:00.0``)."""
        lines = (self.text(f"/run/udev/data/{key}") or "").splitlines()
        return {match[1]: match[2] for line in lines if (match := _PROPERTY.fullmatch(line))}

    def upwards(self, folder: str) -> Iterator[str]:
        """The folder, and those of the devices that it is plugged into."""
        while folder.startswith("/sys/devices/"):
            yield folder
            folder = folder.rpartition("/")[0]

    def at(self, path: str) -> Path:
        """Where a path of the host is for this process."""
        return self.root / path.lstrip("/")

    def _on_host(self, path: Path) -> str:
        return "/" + str(path.relative_to(self.root))


def raise_if_lacking(error: OSError) -> None:
    """Raise the error again if this process lacks descriptors or memory, so that nothing is known of the file."""
    if error.errno in _LACKING:
        raise error


def _natural(path: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in _DIGITS.split(path)]


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
    "physicalFunction": "PCI address of the card that a virtual function (SR-IOV) is a part of",
    "pciClass": "six hex digits: `030200` is a GPU",
    "pcieRoot": "`pci0000:3a`, also of what is plugged into a PCI device",
    "numaNode": "number of the NUMA node; missing if the machine does not number them",
    "iommuGroup": "group for VFIO",
    "rdmaDevice": "`mlx5_0`: the RDMA device of a network card, if it has one",
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
            "physicalFunction": self.tree.link(f"{pci}/physfn"),
            "pciClass": _hex(self.tree.text(f"{pci}/class")),
        }

    def _place(self) -> dict[str, str | None]:
        root = _PCIE_ROOT.match(f"{self._pci}/") if self._pci else None
        numa = self.tree.text(f"{self._pci}/numa_node") if self._pci else None
        return {
            "pcieRoot": root[1] if root else None,
            "numaNode": numa if numa and numa.isdecimal() else None,
            "iommuGroup": self._link("iommu_group"),
            "rdmaDevice": self._rdma_device,
        }

    @cached_property
    def _rdma_device(self) -> str | None:
        """The RDMA device below the PCI device; of several, as two ports of one function have, none can be told."""
        found = self.tree.glob(f"{self._pci}/infiniband/*") if self._pci and not self._above("idVendor") else []
        return found[0].rpartition("/")[2] if len(found) == 1 else None

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
