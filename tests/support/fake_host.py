"""A Linux host made of plain files: devices that can be plugged in and out, below a folder of the test."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from dra_kubeletplugin.drivers.hostdev.facts import HostTree, Number


def open_files() -> set[str]:
    """Return the descriptors of this process that lead to files or folders, each with its path.

    Sockets and pipes are left out: in a process of many tests, threads of earlier ones may open and close some.
    """
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # that of the look itself
            path = os.readlink(f"/proc/self/fd/{number}")
            if path.startswith("/") and not path.startswith("/proc/"):
                found.add(f"{number} {path}")
    return found


_CONTROLLER = "/sys/devices/pci0000:00/0000:00:14.0"


class FakeHost(HostTree):
    """Device nodes are files such as ``c 188:0``, since only root may make real ones."""

    def number(self, path: str) -> Number | None:
        """The number that the file says."""
        kind, _, numbers = (self.text(path) or "").partition(" ")
        if kind not in ("c", "b"):
            return None
        major, _, minor = numbers.partition(":")
        return Number(kind, int(major), int(minor))

    # --- what tests do ---

    def folder(self, path: str, subsystem: str = "", *, driver: str = "", **files: str) -> Path:
        """A folder in sysfs with these files, and links to its subsystem and driver."""
        folder = self.at(path)
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(f"{text}\n")
        for name, target in (("subsystem", subsystem), ("driver", driver)):
            if target and not (folder / name).is_symlink():
                (folder / name).symlink_to(f"/sys/class/{target}")
        return folder

    def node(self, name: str, number: str, folder: str, subsystem: str, kind: str = "c") -> None:
        """A device node, with its folder in sysfs and the link from its number."""
        path = self.at(f"/dev/{name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{kind} {number}")
        made = self.folder(folder, subsystem, dev=number, uevent=f"DEVNAME={name}")
        link = self.at(f"/sys/dev/{'char' if kind == 'c' else 'block'}/{number}")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(made)

    def controller(self) -> None:
        files = {"vendor": "0x8086", "device": "0xa0ed", "class": "0x0c0330", "numa_node": "1"}
        self.folder(_CONTROLLER, "pci", driver="xhci_hcd", **files)

    def serial_adapter(self, name: str, port: str = "1-2", serial: str = "A1", vendor: str = "0403") -> None:
        self.controller()
        usb = f"{_CONTROLLER}/usb1/{port}"
        self.folder(usb, "usb", idVendor=vendor, idProduct="6001", manufacturer="FTDI", product="FT232R", serial=serial)
        self.folder(f"{usb}/{port}:1.0", "usb", driver="ftdi_sio")
        self.node(name, f"188:{name[-1]}", f"{usb}/{port}:1.0/{name}/tty/{name}", "tty")

    def camera(self, *names: str, port: str = "1-3", serial: str = "C1") -> None:
        """Plug in a camera with several nodes."""
        self.controller()
        usb = f"{_CONTROLLER}/usb1/{port}"
        self.folder(usb, "usb", idVendor="046d", idProduct="0825", manufacturer="Acme", product="Cam", serial=serial)
        self.folder(f"{usb}/{port}:1.0", "usb", driver="uvcvideo")
        for name in names:
            self.node(name, f"81:{name[-1]}", f"{usb}/{port}:1.0/video4linux/{name}", "video4linux")

    def gpu(self, address: str = "0000:3b:00.0", card: int = 0) -> None:
        """A GPU with its two nodes of the direct rendering manager, as udev knows it."""
        pci = f"/sys/devices/pci0000:3a/0000:3a:00.0/{address}"
        files = {"vendor": "0x1002", "device": "0x744c", "class": "0x030000", "numa_node": "-1"}
        made = self.folder(pci, "pci", driver="amdgpu", **files)
        (made / "iommu_group").symlink_to("/sys/kernel/iommu_groups/17")
        self.node(f"dri/card{card}", f"226:{card}", f"{pci}/drm/card{card}", "drm")
        self.node(f"dri/renderD{128 + card}", f"226:{128 + card}", f"{pci}/drm/renderD{128 + card}", "drm")
        self.folder(f"{pci}/drm/card{card}-DP-1")
        link = self.at(f"/sys/bus/pci/devices/{address}")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(made)
        database = self.at(f"/run/udev/data/+pci:{address}")
        database.parent.mkdir(parents=True, exist_ok=True)
        database.write_text("S:x\nE:ID_VENDOR_FROM_DATABASE=AMD\nE:ID_MODEL_FROM_DATABASE=Navi 31\nE:ID_PATH=pci-3b\n")

    def simple(self, name: str, number: str, subsystem: str = "misc") -> None:
        self.node(name, number, f"/sys/devices/virtual/{subsystem}/{name}", subsystem)

    def interface(self, name: str, **files: str) -> None:
        made = self.folder(f"/sys/devices/virtual/net/{name}", "net", operstate="up", **files)
        link = self.at(f"/sys/class/net/{name}")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(made)

    def card(self, name: str, address: str, *, functions: int = 0, of: str = "", **files: str) -> None:
        """The interface of a network card, divided into virtual functions, or of such a function of a card."""
        root = "/sys/devices/pci0000:3a/0000:3a:00.0"
        count = {} if of else {"sriov_numvfs": str(functions)}
        pci = self.folder(f"{root}/{address}", "pci", vendor="0x8086", device="0x1592", **count)
        if of:
            (pci / "physfn").symlink_to(f"../{of}")
        made = self.folder(f"{root}/{address}/net/{name}", "net", flags="0x1003", **files)
        (made / "device").symlink_to(pci)
        link = self.at(f"/sys/class/net/{name}")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(made)

    def unplug(self, name: str) -> None:
        """The node vanishes, then its number, then its folder: in the order of the kernel's ``device_del``."""
        link = self.at(f"/sys/dev/char/{self.number(f'/dev/{name}')}")
        folder = link.resolve()
        self.at(f"/dev/{name}").unlink()
        link.unlink()
        shutil.rmtree(folder)
