"""``hostdev``: what it finds on a host, how it publishes that, and what containers get."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack, aclosing
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from dra_api.codec import decode, encode, to_dict
from dra_api.resource import Device, ResourceClaim
from dra_kubeletplugin import (
    ClaimError,
    ClaimRef,
    KubeletPlugin,
    PluginSettings,
    PreparedDevice,
    Resources,
    SettingsError,
)
from dra_kubeletplugin.cli import main
from dra_kubeletplugin.drivers.hostdev.config import Found, GoneConfig, HostdevConfig, read_config
from dra_kubeletplugin.drivers.hostdev.driver import HostdevDriver, edits_of, owned
from dra_kubeletplugin.drivers.hostdev.facts import FACTS, HostTree, Number
from dra_kubeletplugin.drivers.hostdev.hotplug import MOST_WITHDRAWN_DEVICES, Hotplug, Inventory, Looking
from dra_kubeletplugin.drivers.hostdev.interfaces import InPods
from dra_kubeletplugin.drivers.hostdev.scan import scan
from dra_kubeletplugin.testing.api import PluginApi
from fake_host import FakeHost

DRIVER = "hostdev.dra.kopf.dev"
EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples/hostdev").glob("*.yaml"))
Read = Callable[[str], HostdevConfig]


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    """An empty host."""
    (tmp_path / "host/dev").mkdir(parents=True)
    return FakeHost(tmp_path / "host")


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Reads a configuration from its text."""

    def reading(text: str) -> HostdevConfig:
        path = tmp_path / "hostdev.yaml"
        path.write_text(text)
        return read_config(path)

    return reading


def driver_of(config: HostdevConfig, host: HostTree) -> HostdevDriver:
    """A driver that looks at the host."""
    return HostdevDriver(DRIVER, lambda: scan(config, host), Hotplug(config, Found).health)


def attributes(device: Device) -> dict[str, Any]:
    """Plain values by name."""
    return {name: next(iter(value.values())) for name, value in to_dict(device)["attributes"].items()}


def one(found: Found) -> Device:
    """The only device."""
    assert not found.problems
    (made,) = found.devices.values()
    return made.published


# --- what is found ---


def test_a_serial_adapter_with_all_that_sysfs_says(host: FakeHost, read: Read) -> None:
    host.serial_adapter("ttyUSB0")
    found = one(scan(read("devices: [{name: serial, paths: ['/dev/ttyUSB*']}]"), host))
    assert found.name == "serial-ttyusb0"
    assert attributes(found) == {
        "entry": "serial",
        "path": "/dev/ttyUSB0",
        "node": "ttyUSB0",
        "subsystem": "tty",
        "driver": "ftdi_sio",
        "vendorId": "0403",
        "productId": "6001",
        "vendor": "FTDI",
        "product": "FT232R",
        "serial": "A1",
        "usbPort": "1-2",
        "resource.kubernetes.io/pcieRoot": "pci0000:00",
        "resource.kubernetes.io/numaNode": 1,
    }


def test_a_gpu_by_its_pci_class_with_what_udev_knows(host: FakeHost, read: Read) -> None:
    host.gpu()
    host.controller()
    text = "devices: [{name: gpu, sysfs: ['/sys/bus/pci/devices/*'], nodes: ['drm/*'], match: {pciClass: '03*'}}]"
    found = scan(read(text.replace("]}]", "], container: {path: '/dev/dri/{node}'}}]")), host)
    assert attributes(one(found)) == {
        "entry": "gpu",
        "node": "0000:3b:00.0",
        "subsystem": "pci",
        "driver": "amdgpu",
        "vendorId": "1002",
        "productId": "744c",
        "vendor": "AMD",
        "product": "Navi 31",
        "resource.kubernetes.io/pciBusID": "0000:3b:00.0",
        "pciClass": "030000",
        "resource.kubernetes.io/pcieRoot": "pci0000:3a",
        "iommuGroup": "17",
    }


def test_a_device_without_hardware_has_few_facts(host: FakeHost, read: Read) -> None:
    host.simple("fuse", "10:229")
    found = one(scan(read("devices: [{name: fuse, paths: [/dev/fuse]}]"), host))
    assert attributes(found) == {"entry": "fuse", "path": "/dev/fuse", "node": "fuse", "subsystem": "misc"}


def test_a_link_is_followed_but_gives_the_name(host: FakeHost, read: Read) -> None:
    host.serial_adapter("ttyUSB0")
    folder = host.at("/dev/serial/by-id")
    folder.mkdir(parents=True)
    (folder / "usb-FTDI_A1").symlink_to(host.at("/dev/ttyUSB0"))
    config = read("devices: [{name: serial, paths: ['/dev/serial/by-id/*', '/dev/ttyUSB*']}]")
    found = one(scan(config, host))
    assert found.name == "serial-usb-ftdi-a1"
    assert attributes(found)["path"] == "/dev/ttyUSB0"


MATCHES = [
    ("{vendorId: '0403'}", True),
    ("{vendorId: ['1a86', '04*']}", True),
    ("{vendorId: '04*', product: 'ft232*'}", True),
    ("{vendorId: '04*', product: 'ch340'}", False),
    ("{driver: ftdi_sio, subsystem: tty}", True),
    ("{serial: '?1'}", True),
    ("{pciAddress: '*'}", False),
    ("{sysfs.idProduct: '6001'}", True),
    ("{sysfs.bInterfaceClass: '*'}", False),
    ("{udev.ID_MODEL: '*'}", False),
]


@pytest.mark.parametrize(("match", "found"), MATCHES)
def test_facts_are_matched_by_patterns(host: FakeHost, read: Read, match: str, found: bool) -> None:
    host.serial_adapter("ttyUSB0")
    config = read(f"devices: [{{name: s, paths: [/dev/ttyUSB0], match: {match}}}]")
    assert bool(scan(config, host).devices) is found


def test_what_is_no_device_node_is_no_device(host: FakeHost, read: Read) -> None:
    host.at("/dev/shm").mkdir()
    host.at("/dev/notes").write_text("shopping")
    host.at("/dev/dangling").symlink_to("nowhere")
    host.at("/dev/loop").symlink_to("loop")
    assert scan(read("devices: [{name: x, paths: ['/dev/*']}]"), host) == Found()


DISK = "/sys/devices/pci0000:00/0000:00:17.0/ata1"


def disk(host: FakeHost, name: str, number: str, *partitions: str) -> None:
    """A disk, with the node that takes SCSI commands for it."""
    folder = f"{DISK}/{name}/block/{name}"
    host.node(name, number, folder, "block", kind="b")
    for count, part in enumerate(partitions, start=1):
        host.node(part, f"8:{int(number[2:]) + count}", f"{folder}/{part}", "block", kind="b")
        host.folder(f"{folder}/{part}", partition=str(count))
    command = f"{DISK}/{name}/scsi_generic/sg{name}"
    host.node(f"sg{name}", number.replace("8:", "21:"), command, "scsi_generic")
    host.at(f"{command}/device").symlink_to(host.at(f"{DISK}/{name}"))
    link = host.at(f"/sys/class/block/{name}")
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(host.at(folder))


def _mounted(host: FakeHost) -> None:
    host.folder("/sys/fs/ext4/sda1")


def _mounted_btrfs(host: FakeHost) -> None:
    host.folder("/sys/fs/btrfs/5e1f/devices/sda")


def _swap(host: FakeHost) -> None:
    host.folder("/proc")
    lines = "Filename\t\t\t\tType\t\tSize\n/dev/sda1                               partition\t2097148\n"
    host.at("/proc/swaps").write_text(lines)


def _volume(host: FakeHost) -> None:
    host.folder(f"{DISK}/sda/block/sda/sda1/holders/dm-0")


def _zfs(host: FakeHost) -> None:
    host.folder("/run/udev/data", **{"b8:1": "E:ID_FS_TYPE=zfs_member", "b8:17": "E:ID_FS_TYPE=ext4"})
    host.folder("/proc/spl/kstat/zfs/rpool", state="ONLINE")


def _loop(host: FakeHost) -> None:
    host.folder(f"{DISK}/sda/block/sda/loop", backing_file="/var/lib/snapd/snaps/core.snap")


USERS: list[tuple[Callable[[FakeHost], None], str]] = [
    (_mounted, "sda1 has a mounted file system (ext4)"),
    (_mounted_btrfs, "sda has a mounted file system (btrfs)"),
    (_swap, "sda1 has swap space"),
    (_volume, "dm-0 is on sda1"),
    (_zfs, "sda1 is of ZFS"),
    (_loop, "sda shows /var/lib/snapd/snaps/core.snap"),
]


@pytest.mark.parametrize(("use", "user"), USERS, ids=[use.__name__ for use, _ in USERS])
def test_a_disk_that_the_node_uses_is_never_offered(
    host: FakeHost, read: Read, use: Callable[[FakeHost], None], user: str
) -> None:
    disk(host, "sda", "8:0", "sda1")
    disk(host, "sdb", "8:16", "sdb1")
    use(host)
    for node in ("sd", "sgsd"):
        config = read(f"devices: [{{name: d, paths: ['/dev/{node}?']}}]")
        found = scan(config, host)
        assert list(found.devices) == [f"d-{node}b"]
        assert found.problems == (
            f"entry 'd', device /dev/{node}a: a disk that the node uses is never offered: {user}",
        )
        held = [f"d-{node}a"]
        assert list(scan(config, host, held=partial(list, held)).devices) == [*held, f"d-{node}b"], "a pod mounted it"


def test_a_pattern_finds_no_other_partition_of_a_disk_that_the_node_uses(host: FakeHost, read: Read) -> None:
    """The EFI partition is mounted as FAT, which leaves no trace in sysfs; an entry may name a partition to spare."""
    disk(host, "sda", "8:0", "sda1", "sda2", "sda3")
    disk(host, "sdb", "8:16", "sdb1", "sdb2")
    host.folder("/sys/fs/ext4/sda2")
    host.folder("/sys/fs/ext4/sdb1")
    config = read("devices: [{name: d, paths: ['/dev/sd?*']}]")
    assert list(scan(config, host, held=lambda: ["d-sdb1"]).devices) == ["d-sdb1", "d-sdb2"]
    config = read("devices: [{name: d, paths: [/dev/sda3, /dev/sda2]}]")
    assert list(scan(config, host).devices) == ["d-sda3"]


def test_the_boot_loaders_area_of_an_emmc_belongs_to_its_disk(host: FakeHost, read: Read) -> None:
    for number, name in enumerate(("mmcblk0", "mmcblk0boot0")):
        host.node(name, f"179:{number}", f"{DISK}/block/{name}", "block", kind="b")
        host.folder("/sys/class/block")
        host.at(f"/sys/class/block/{name}").symlink_to(host.at(f"{DISK}/block/{name}"))
    config = read("devices: [{name: d, paths: ['/dev/mmcblk*']}]")
    assert list(scan(config, host).devices) == ["d-mmcblk0", "d-mmcblk0boot0"]
    host.folder("/sys/fs/ext4/mmcblk0")
    assert scan(config, host).devices == {}


def test_what_is_on_a_disk_belongs_to_its_claim(host: FakeHost, read: Read) -> None:
    """Partitions that a pod makes on its disk, a volume on one of these, and the node that takes commands for it."""
    disk(host, "sdb", "8:16")
    text = "devices: [{name: part, paths: ['/dev/sd??', '/dev/dm-*']}, {name: d, paths: ['/dev/sd?', '/dev/sg*']}]"
    assert list(scan(read(text), host).devices) == ["d-sdb"]
    host.node("sdb1", "8:17", f"{DISK}/sdb/block/sdb/sdb1", "block", kind="b")
    host.folder(f"{DISK}/sdb/block/sdb/sdb1", partition="1")
    host.node("dm-0", "252:0", "/sys/devices/virtual/block/dm-0", "block", kind="b")
    host.folder(f"{DISK}/sdb/block/sdb/sdb1/holders")
    host.at(f"{DISK}/sdb/block/sdb/sdb1/holders/dm-0").symlink_to(host.at("/sys/devices/virtual/block/dm-0"))
    found = scan(read(text), host, held=lambda: ["d-sdb"])
    assert list(found.devices) == ["d-sdb"]
    assert found.owned["d-sdb"] == ("/dev/sdb", "b 8:16", "b 8:17", "b 252:0")


def test_a_usb_device_as_a_whole_has_the_nodes_of_its_drivers(host: FakeHost, read: Read) -> None:
    """No second claim gets its serial port; nobody gets the hub, and with it all that is plugged in."""
    host.serial_adapter("ttyUSB0", "1-2.1")
    usb = host.at("/dev/ttyUSB0").parents[1] / "sys/devices"
    (adapter,) = (f"/sys/devices/{path.relative_to(usb)}" for path in usb.glob("**/1-2.1"))
    host.node("bus/usb/001/003", "189:2", adapter, "usb")
    host.node("bus/usb/001/002", "189:1", adapter.removesuffix("/1-2.1"), "usb")
    host.folder(adapter.removesuffix("/1-2.1"), bDeviceClass="09")
    found = scan(read("devices: [{name: u, paths: ['/dev/bus/usb/*/*']}, {name: s, paths: ['/dev/tty*']}]"), host)
    assert list(found.devices) == ["u-003"]
    assert [problem.partition(": ")[2] for problem in found.problems] == [
        "a USB hub is never offered: who has it, has all that is plugged into it",
        "u-003 has its node already; match each once",
    ]


def test_a_disk_stays_while_a_claim_has_it_and_goes_to_the_node_afterwards(host: FakeHost, read: Read) -> None:
    """After a start of the driver as well: its pod may have mounted it."""
    disk(host, "sda", "8:0")
    host.folder("/sys/fs/ext4/sda")
    in_pods = InPods(host)
    looking = Looking(read("devices: [{name: d, paths: [/dev/sda]}]"), host, held=in_pods.all_devices)
    in_pods.claims = lambda: [
        ClaimRef("default", "claim", "u", devices=(PreparedDevice(pool="worker-1", device="d-sda", requests=("r",)),))
    ]
    assert list(looking.thoroughly().devices) == ["d-sda"]
    in_pods.claims = tuple
    assert looking.thoroughly().devices == {}


def test_a_controller_reaches_the_disks_behind_it(host: FakeHost, read: Read) -> None:
    """With two paths to its disks, as servers have them, the disk is not below the controller."""
    nvme = "/sys/devices/pci0000:00/0000:01:00.0/nvme/nvme0"
    host.node("nvme0", "240:0", nvme, "nvme")
    host.folder(f"{nvme}/nvme0c0n1", "block")
    host.folder("/sys/class/block/nvme0n1")
    config = read("devices: [{name: n, paths: ['/dev/nvme0']}]")
    assert list(scan(config, host).devices) == ["n-nvme0"]
    host.folder("/sys/fs/xfs/nvme0n1")
    assert scan(config, host).devices == {}
    host.node("ng0n1", "241:0", f"{nvme}/ng0n1", "nvme-generic")
    assert scan(read("devices: [{name: n, paths: ['/dev/ng*']}]"), host).devices == {}


def test_an_adapter_reaches_the_disks_behind_it(host: FakeHost, read: Read) -> None:
    folder = "/sys/devices/platform/ufshc/host0/target0:0:0/0:0:0:0/block/sda"
    host.folder(folder, "block")
    host.folder("/sys/class/block")
    host.at("/sys/class/block/sda").symlink_to(host.at(folder))
    host.node("bsg/ufs-bsg0", "250:0", "/sys/devices/platform/ufshc/ufs-bsg0", "bsg")
    host.at("/sys/devices/platform/ufshc/ufs-bsg0/device").symlink_to(host.at("/sys/devices/platform/ufshc"))
    config = read("devices: [{name: b, paths: ['/dev/bsg/*']}]")
    assert list(scan(config, host).devices) == ["b-ufs-bsg0"]
    host.folder("/sys/fs/ext4/sda")
    assert scan(config, host).devices == {}


def test_the_nodes_console_is_never_offered(host: FakeHost, read: Read) -> None:
    for minor, name in enumerate(("ttyS0", "ttyS1"), start=64):
        host.node(name, f"4:{minor}", f"/sys/devices/platform/serial8250/tty/{name}", "tty")
    host.folder("/sys/class/tty/console", active="tty0 ttyS0")
    found = scan(read("devices: [{name: s, paths: ['/dev/ttyS*']}]"), host)
    assert list(found.devices) == ["s-ttys1"]
    (problem,) = found.problems
    assert problem.endswith(
        "/dev/ttyS0: the terminal ttyS0 is never offered: it is the node's console, where people log in"
    )


def test_a_usb_device_as_a_whole_is_not_offered_while_the_node_uses_what_is_in_it(host: FakeHost, read: Read) -> None:
    """A stick that the node has mounted, an adapter with the node's uplink, and a device of neither kind."""
    bus = "/sys/devices/pci0000:00/0000:00:14.0/usb1"
    for number, port in enumerate(("1-1", "1-2", "1-3"), start=1):
        host.node(f"bus/usb/001/{number:03}", f"189:{number}", f"{bus}/{port}", "usb")
    stick = f"{bus}/1-1/1-1:1.0/host3/target3:0:0/3:0:0:0/block/sdx"
    host.folder(stick, "block")
    host.folder("/sys/class/block")
    host.at("/sys/class/block/sdx").symlink_to(host.at(stick))
    host.folder("/sys/fs/ext4/sdx")
    host.folder(f"{bus}/1-2/1-2:1.0/net/enx0", "net", flags="0x1003")
    host.folder("/sys/class/net")
    host.at("/sys/class/net/enx0").symlink_to(host.at(f"{bus}/1-2/1-2:1.0/net/enx0"))
    host.folder("/proc/net", route="Iface\nenx0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0")
    found = scan(read("devices: [{name: u, paths: ['/dev/bus/usb/001/*']}]"), host)
    assert list(found.devices) == ["u-003"]
    assert [problem.partition("never offered: ")[2] for problem in found.problems] == [
        "the node's network needs it: it has a default route of IPv4",
        "sdx has a mounted file system (ext4)",
    ]


def test_an_interface_that_a_hook_moves_is_not_the_nodes_uplink(host: FakeHost, read: Read) -> None:
    host.folder("/sys/class/net")
    for name in ("eth0", "eth1"):
        host.at(f"/sys/class/net/{name}").symlink_to(host.folder(f"{DISK}/net/{name}", "net", flags="0x1003"))
    host.folder("/proc/net", route="Iface\neth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0")
    hook = "hooks: [{hookName: createRuntime, path: /bin/mv-nic, args: [mv-nic, '{node}']}]"
    text = f"devices: [{{name: n, sysfs: ['/sys/class/net/*'], container: {{{hook}}}, shares: 1}}]"
    found = scan(read(text), host)
    assert list(found.devices) == ["n-eth1"]
    assert found.owned == {"n-eth1": ("network interface eth1",)}
    shared = scan(read(text.replace("shares: 1", "shares: unlimited")), host)
    assert list(shared.devices) == ["n-eth0", "n-eth1"], "such as for interfaces on top of it"


def test_nodes_of_one_camera_become_one_device(host: FakeHost, read: Read) -> None:
    host.camera("video0", "video1", port="1-3", serial="C1")
    host.camera("video2", "video3", port="1-4", serial="C2")
    text = (
        "devices: [{name: camera, paths: ['/dev/video*'], groupBy: '{usbPort}', id: '{serial}', "
        "container: {path: '/dev/camera/{node}'}}]"
    )
    found = scan(read(text), host)
    assert list(found.devices) == ["camera-c1", "camera-c2"]
    nodes = edits_of(found.devices["camera-c2"]).device_nodes
    assert [(node.path, node.host_path) for node in nodes] == [
        ("/dev/camera/video2", "/dev/video2"),
        ("/dev/camera/video3", "/dev/video3"),
    ]


def test_devices_are_in_the_order_of_entries_and_numbers(host: FakeHost, read: Read) -> None:
    host.simple("fuse", "10:229")
    for number in (10, 9, 1):
        host.simple(f"loop{number}", f"7:{number}", "loop")
    found = scan(read("devices: [{name: l, paths: ['/dev/loop*']}, {name: f, paths: [/dev/fuse]}]"), host)
    assert list(found.devices) == ["l-loop1", "l-loop9", "l-loop10", "f-fuse"]


def test_of_two_devices_of_one_name_none_is_given_unless_one_had_it_before(host: FakeHost, read: Read) -> None:
    host.serial_adapter("ttyUSB0", "1-2", serial="SAME")
    host.serial_adapter("ttyUSB1", "1-4", serial="SAME")
    host.serial_adapter("ttyUSB2", "1-5", serial="OTHER")
    config = read("devices: [{name: s, paths: ['/dev/ttyUSB*'], id: '{serial}'}]")
    both = "/dev/ttyUSB0 and /dev/ttyUSB1 would all have the name 's-same', so none gets it; make the id differ, or"
    found = scan(config, host)
    assert list(found.devices) == ["s-other"]
    assert found.problems == tuple(
        f"entry 's', device /dev/ttyUSB{number}: {both} group them with groupBy" for number in (0, 1)
    )
    host.unplug("ttyUSB1")
    before = scan(config, host)
    host.serial_adapter("ttyUSB1", "1-4", serial="SAME")
    found = scan(config, host, before)
    assert list(found.devices) == ["s-same", "s-other"]
    assert found.problems == (
        "entry 's', device /dev/ttyUSB1: /dev/ttyUSB0 has the name 's-same' already; make the id differ, or group them "
        "with groupBy",
    )


def test_a_value_that_no_slice_can_hold_costs_only_its_device(host: FakeHost, read: Read) -> None:
    host.serial_adapter("ttyUSB0", "1-2", serial="x" * 65)
    host.serial_adapter("ttyUSB1", "1-4")
    found = scan(read("devices: [{name: s, paths: ['/dev/ttyUSB*']}]"), host)
    assert list(found.devices) == ["s-ttyusb1"]
    (problem,) = found.problems
    assert problem.startswith("entry 's', device /dev/ttyUSB0: device 's-ttyusb0', attribute 'serial': ")
    assert "more than 64 bytes" in problem


def test_an_id_that_a_device_lacks_becomes_its_node(host: FakeHost, read: Read) -> None:
    host.simple("fuse", "10:229")
    assert one(scan(read("devices: [{name: f, paths: [/dev/fuse], id: '{serial}'}]"), host)).name == "f-fuse"


def test_attributes_of_the_file_come_on_top(host: FakeHost, read: Read) -> None:
    host.serial_adapter("ttyUSB0")
    own = "room: lab, speed: 115200, slow: true, model: '{vendor} {product}'"
    text = f"{{{own}, usb: '{{sysfs.idVendor}}', none: '{{pciClass}}'}}"
    found = attributes(one(scan(read(f"devices: [{{name: s, paths: [/dev/ttyUSB0], attributes: {text}}}]"), host)))
    assert found["room"] == "lab"
    assert found["speed"] == 115200
    assert found["slow"] is True
    assert found["model"] == "FTDI FT232R"
    assert found["usb"] == "0403"
    assert "none" not in found, "a text that asks for a fact that the device lacks is left out"


def test_an_attribute_can_be_an_integer(host: FakeHost, read: Read) -> None:
    host.interface("eth7", mtu="9000", speed="-1")
    text = "devices: [{name: net, sysfs: ['/sys/class/net/*'], attributes: {mtu: {int: '{sysfs.mtu}'}, %s}}]"
    found = attributes(one(scan(read(text % "speed: {int: '{sysfs.speed}'}, none: {int: '{numaNode}'}"), host)))
    assert (found["mtu"], found["speed"]) == (9000, -1)
    assert "none" not in found
    (problem,) = scan(read(text % "state: {int: '{sysfs.operstate}'}"), host).problems
    assert "'up', which is not an integer" in problem


def test_a_network_interface_moves_into_the_container(host: FakeHost, read: Read) -> None:
    host.interface("eth7")
    text = "devices: [{name: net, sysfs: ['/sys/class/net/*'], container: {netDevices: [%s]}}]"
    for given, name in (("{}", "eth7"), ("{name: data}", "data")):
        (made,) = scan(read(text % given), host).devices.values()
        assert to_dict(edits_of(made)) == {"netDevices": [{"hostInterfaceName": "eth7", "name": name}]}
        assert owned(made) == ("network interface eth7",)


async def test_a_container_is_told_what_its_network_card_is(host: FakeHost, read: Read) -> None:
    """Attributes as in the slice, the standard ones included, and the interface as the container sees it."""
    pci = "/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.1"
    files = {"vendor": "0x15b3", "device": "0x1021", "class": "0x020000", "numa_node": "1"}
    made = host.folder(pci, "pci", driver="mlx5_core", **files)
    host.folder(f"{pci}/infiniband/mlx5_1")
    host.node("infiniband/uverbs1", "231:193", f"{pci}/infiniband_verbs/uverbs1", "infiniband_verbs")
    port = host.folder(f"{pci}/net/ens1", "net", address="02:00:00:00:00:07", ifindex="3", iflink="3", flags="0x1003")
    (port / "device").symlink_to(made)
    host.at("/sys/class/net").mkdir(parents=True)
    host.at("/sys/class/net/ens1").symlink_to(port)
    config = read(
        "devices: [{name: nic, sysfs: ['/sys/class/net/*'], nodes: ['device/infiniband_verbs/*'], "
        "container: {netDevices: [{name: data}]}}]"
    )
    (found,) = scan(config, host).devices.values()
    (prepared,) = await driver_of(config, host).prepare(claim_of(found.name))
    assert prepared.attributes == found.published.attributes
    assert {name: to_dict(value) for name, value in prepared.attributes.items()} == {
        "entry": {"string": "nic"},
        "node": {"string": "ens1"},
        "subsystem": {"string": "net"},
        "vendorId": {"string": "15b3"},
        "productId": {"string": "1021"},
        "pciClass": {"string": "020000"},
        "driver": {"string": "mlx5_core"},
        "rdmaDevice": {"string": "mlx5_1"},
        "resource.kubernetes.io/pciBusID": {"string": "0000:3b:00.1"},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:3a"},
        "resource.kubernetes.io/numaNode": {"int": 1},
    }
    assert prepared.network is not None
    assert to_dict(prepared.network) == {"interfaceName": "data", "hardwareAddress": "02:00:00:00:00:07"}
    assert prepared.edits is not None
    assert [node.path for node in prepared.edits.device_nodes] == ["/dev/infiniband/uverbs1"]
    host.folder(f"{pci}/infiniband/mlx5_2")
    (found,) = scan(config, host).devices.values()
    assert "rdmaDevice" not in (found.published.attributes or {})


ONE = {"default": "1", "validRange": {"min": "1", "step": "1"}}
SHARES: list[tuple[str, dict[str, Any]]] = [
    ("1", {}),
    ("unlimited", {"allowMultipleAllocations": True}),
    ("3", {"allowMultipleAllocations": True, "capacity": {"shares": {"value": "3", "requestPolicy": ONE}}}),
]


@pytest.mark.parametrize(("shares", "fields"), SHARES)
def test_sharing(host: FakeHost, read: Read, shares: str, fields: dict[str, Any]) -> None:
    host.simple("fuse", "10:229")
    found = to_dict(one(scan(read(f"devices: [{{name: f, paths: [/dev/fuse], shares: {shares}}}]"), host)))
    assert {name: found[name] for name in found if name not in ("name", "attributes")} == fields


def test_every_fact_is_documented() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/hostdev.md").read_text()
    for name, meaning in FACTS.items():
        assert f"| `{name}` | {meaning} |" in page


# --- what containers get ---

CONTAINER = """
devices:
  - name: vfio
    sysfs: ["/sys/bus/pci/devices/*"]
    container:
      permissions: rwm
      deviceNodes: [{path: "/dev/vfio/{iommuGroup}"}, {path: /dev/vfio/vfio, permissions: rw}]
      env: {ADDRESS: "{pciAddress}", BRACE: "{{x}}", NO_SERIAL: "{serial}"}
      mounts: [{hostPath: /opt/amd}, {hostPath: /etc/x, containerPath: "/x/{productId}", options: [rw, bind]}]
      hooks: [{hookName: createContainer, path: /usr/bin/tool, args: [tool, "{pciAddress}"], timeout: 5}]
      additionalGids: [44]
"""


def test_everything_that_the_file_says_reaches_the_container(host: FakeHost, read: Read) -> None:
    host.gpu()
    (made,) = scan(read(CONTAINER), host).devices.values()
    assert to_dict(edits_of(made)) == {
        "env": ["ADDRESS=0000:3b:00.0", "BRACE={x}"],
        "deviceNodes": [{"path": "/dev/vfio/17"}, {"path": "/dev/vfio/vfio", "permissions": "rw"}],
        "mounts": [
            {"hostPath": "/opt/amd", "containerPath": "/opt/amd", "options": ["ro", "nosuid", "nodev", "bind"]},
            {"hostPath": "/etc/x", "containerPath": "/x/744c", "options": ["rw", "bind"]},
        ],
        "hooks": [
            {"hookName": "createContainer", "path": "/usr/bin/tool", "args": ["tool", "0000:3b:00.0"], "timeout": 5}
        ],
        "additionalGids": [44],
    }  # fmt: skip


def test_a_gpu_gives_the_nodes_below_it(host: FakeHost, read: Read) -> None:
    host.gpu()
    text = "devices: [{name: gpu, sysfs: ['/sys/bus/pci/devices/*'], nodes: ['drm/*'], container: {permissions: rw}}]"
    (made,) = scan(read(text), host).devices.values()
    assert to_dict(edits_of(made))["deviceNodes"] == [
        {"path": "/dev/dri/card0", "permissions": "rw"},
        {"path": "/dev/dri/renderD128", "permissions": "rw"},
    ]


def claim_of(device: str, parameters: str = "", more: tuple[str, ...] = ()) -> ResourceClaim:
    """A claim that holds a device, perhaps with a configuration, and more devices."""
    config = {"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": msgspec.Raw(parameters.encode())}}
    devices = {
        "results": [{"request": "r", "driver": DRIVER, "pool": "n", "device": name} for name in (device, *more)],
        "config": [config] if parameters else [],
    }
    body = {"metadata": {"namespace": "ns", "name": "c", "uid": "u"}, "status": {"allocation": {"devices": devices}}}
    return decode(ResourceClaim, encode(body))


async def test_a_claim_may_say_where_the_node_is_to_be(host: FakeHost, read: Read) -> None:
    host.serial_adapter("ttyUSB0")
    text = (
        "devices: [{name: s, paths: ['/dev/ttyUSB*'], container: {path: /dev/serial, env: {PORT: '{containerPath}'}}}]"
    )
    config = read(text)
    driver = driver_of(config, host)
    for parameters, path in (("", "/dev/serial"), ('{"containerPath": "/dev/modem{}"}', "/dev/modem{}")):
        (prepared,) = await driver.prepare(claim_of("s-ttyusb0", parameters))
        assert prepared.edits is not None
        assert to_dict(prepared.edits) == {
            "env": [f"PORT={path}"],
            "deviceNodes": [{"path": path, "hostPath": "/dev/ttyUSB0", "permissions": "rw"}],
        }


async def test_a_device_plugged_in_again_is_given_with_its_present_node(host: FakeHost, read: Read) -> None:
    host.serial_adapter("ttyUSB0")
    config = read("devices: [{name: s, paths: ['/dev/ttyUSB*'], id: '{serial}', container: {path: /dev/s}}]")
    driver = driver_of(config, host)
    host.unplug("ttyUSB0")
    host.serial_adapter("ttyUSB1")
    (prepared,) = await driver.prepare(claim_of("s-a1"))
    assert prepared.edits is not None
    assert prepared.edits.device_nodes[0].host_path == "/dev/ttyUSB1"


async def test_a_container_sees_all_devices_of_a_claim_in_its_variables(host: FakeHost, read: Read) -> None:
    host.serial_adapter("ttyUSB0", "1-2")
    host.serial_adapter("ttyUSB1", "1-4")
    driver = driver_of(read("devices: [{name: s, paths: ['/dev/ttyUSB*'], container: {env: {PORT: '{path}'}}}]"), host)
    both = await driver.prepare(claim_of("s-ttyusb0", more=("s-ttyusb1",)))
    variables: dict[str, str] = {}
    for device in both:
        assert device.edits is not None
        variables |= device.edits.environment()
    assert variables == {"PORT": "/dev/ttyUSB1", "PORT_0": "/dev/ttyUSB0", "PORT_1": "/dev/ttyUSB1"}


BAD_CLAIMS = [
    ("s-gone", "", "device s-gone is gone: plug it in again, or delete the pod"),
    ("s-ttyusb0", '{"containerPaht": "/x"}', "claim ns/c: .*unknown field `containerPaht`"),
    ("s-ttyusb0", '{"containerPath": "x"}', "device s-ttyusb0: containerPath 'x': must begin with '/'"),
    ("s-ttyusb0", '{"containerPath": "/"}', "device s-ttyusb0: containerPath '/': must begin with '/', name a file"),
    ("s-ttyusb0", '{"containerPath": "/dev/../etc/x"}', "have no '..'"),
]


async def test_what_belongs_to_a_device_is_as_it_was_when_it_was_looked_at(host: FakeHost, read: Read) -> None:
    def look() -> Found:
        found = scan(config, host)
        host.unplug("ttyUSB0")
        return found

    config = read("devices: [{name: s, paths: ['/dev/ttyUSB*']}]")
    host.serial_adapter("ttyUSB0")
    (made,) = await HostdevDriver(DRIVER, look, Hotplug(config, Found).health).prepare(claim_of("s-ttyusb0"))
    assert made.owns == ("/dev/ttyUSB0", "c 188:0")


@pytest.mark.parametrize(("name", "parameters", "text"), BAD_CLAIMS)
async def test_a_claim_that_cannot_be_prepared(
    host: FakeHost, read: Read, name: str, parameters: str, text: str
) -> None:
    host.serial_adapter("ttyUSB0")
    config = read("devices: [{name: s, paths: ['/dev/ttyUSB*']}]")
    with pytest.raises(ClaimError, match=text):
        await driver_of(config, host).prepare(claim_of(name, parameters))


ON_HOST = [
    "deviceNodes: [{path: '{containerPath}'}]",
    "deviceNodes: [{path: /dev/x, hostPath: '{containerPath}'}]",
    "mounts: [{hostPath: '{containerPath}'}]",
    "hooks: [{hookName: createContainer, path: /usr/bin/tool, args: [tool, '{containerPath}']}]",
]


@pytest.mark.parametrize("field", ON_HOST, ids=[text.partition(":")[0] for text in ON_HOST])
async def test_a_claim_chooses_nothing_on_the_host(host: FakeHost, read: Read, field: str) -> None:
    """A device node without ``hostPath`` is that of the host of the same name: with /dev/sda, its disk."""
    host.serial_adapter("ttyUSB0")
    driver = driver_of(read(f"devices: [{{name: s, paths: ['/dev/ttyUSB*'], container: {{{field}}}}}]"), host)
    await driver.prepare(claim_of("s-ttyusb0"))
    with pytest.raises(ClaimError, match="containerPath '/dev/sda': a claim cannot choose it, since the entry 's'"):
        await driver.prepare(claim_of("s-ttyusb0", '{"containerPath": "/dev/sda"}'))


@pytest.mark.parametrize("serial", ["../../sda", "..", "a/b", "--root", "a\x07b"])
@pytest.mark.parametrize("field", ["deviceNodes: [{path: '/dev/x/{serial}'}]", *(
    text.replace("containerPath", "serial") for text in ON_HOST[2:]
)])  # fmt: skip
async def test_what_hardware_says_of_itself_leads_nowhere_else(
    host: FakeHost, read: Read, field: str, serial: str
) -> None:
    host.serial_adapter("ttyUSB0", serial=serial)
    config = read(f"devices: [{{name: s, paths: ['/dev/ttyUSB*'], container: {{{field}}}}}]")
    with pytest.raises(ClaimError, match=r"the device says .* for serial, which must not be part of a path"):
        await driver_of(config, host).prepare(claim_of("s-ttyusb0"))


def test_a_host_path_whose_fact_is_missing_leaves_the_node_out(host: FakeHost, read: Read) -> None:
    """Without ``hostPath`` the container would get the host's node of the same name."""
    host.simple("x", "10:1")
    nodes = "deviceNodes: [{path: /dev/sda, hostPath: '/dev/disk/{serial}'}]"
    text = f"container: {{{nodes}, mounts: [{{hostPath: /opt, containerPath: '/x/{{serial}}'}}]}}"
    (made,) = scan(read(f"devices: [{{name: s, paths: [/dev/x], {text}}}]"), host).devices.values()
    assert to_dict(edits_of(made)) == {"deviceNodes": [{"path": "/dev/x", "permissions": "rw"}]}


def test_hardware_whose_text_would_lead_elsewhere_is_not_offered(host: FakeHost, read: Read) -> None:
    host.serial_adapter("ttyUSB0", "1-2", serial="../../sda")
    host.serial_adapter("ttyUSB1", "1-4", serial="B")
    mounts = "mounts: [{hostPath: '/srv/{serial}'}]"
    found = scan(read(f"devices: [{{name: s, paths: ['/dev/ttyUSB*'], container: {{{mounts}}}}}]"), host)
    assert list(found.devices) == ["s-ttyusb1"]
    (problem,) = found.problems
    assert "the device says '../../sda' for serial" in problem


def test_nodes_that_would_be_one_in_the_container_are_refused(host: FakeHost, read: Read) -> None:
    """Of two nodes at one place the container would see the second one only."""
    host.camera("video0", "video1", port="1-3", serial="C1")
    text = "devices: [{name: c, paths: ['/dev/video*'], groupBy: '{usbPort}', container: {path: '/dev/cam/{serial}'}}]"
    (problem,) = scan(read(text), host).problems
    assert "its nodes /dev/video0 and /dev/video1 are both /dev/cam/C1 in containers: write {node}" in problem


def test_what_is_not_on_the_host_leads_nowhere(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").write_text("c 1:3")
    for path in ("/nowhere", "/loop", "/nul\0"):
        assert tree.resolved(path) is None
    for path in ("/nowhere", "/loop"):
        assert (tree.number(path), tree.identity(path)) == (None, ())
    assert tree.number("/file") is None
    assert HostTree().number("/dev/null") == Number("c", 1, 3)


def test_several_stars_mean_one(host: FakeHost, read: Read) -> None:
    host.serial_adapter("ttyUSB0")
    assert one(scan(read("devices: [{name: s, paths: ['/dev/tty**']}]"), host)).name == "s-ttyusb0"


# --- coming and going ---


def test_the_health_of_what_is_gone_for_good_is_forgotten_one_day(host: FakeHost, read: Read) -> None:
    config = read("gone: {withdrawAfterSeconds: 0}\ndevices: [{name: s, paths: ['/dev/ttyUSB*'], id: '{serial}'}]")
    inventory = Inventory(DRIVER, config.gone)
    for number in range(MOST_WITHDRAWN_DEVICES + 20):
        host.serial_adapter("ttyUSB0", serial=f"A{number}")
        inventory.update(scan(config, host).devices, 10.0 * number)
        host.unplug("ttyUSB0")
        inventory.update({}, 10.0 * number + 1)
        inventory.update({}, 10.0 * number + 5)
    told = [report.device for report in inventory.health()]
    assert len(told) == MOST_WITHDRAWN_DEVICES
    assert f"s-a{MOST_WITHDRAWN_DEVICES + 19}" in told
    assert "s-a0" not in told


def test_a_device_that_vanished_is_tainted_then_withdrawn_and_welcome_back(host: FakeHost, read: Read) -> None:
    config = read("devices: [{name: s, paths: ['/dev/ttyUSB*']}]")
    inventory = Inventory(DRIVER, GoneConfig(withdraw_after_seconds=60.0))

    def shown(now: float, *held: str) -> dict[str, list[str]]:
        published = inventory.update(scan(config, host).devices, now, held)
        return {entry.name: [f"{taint.key}:{taint.effect}" for taint in entry.taints or ()] for entry in published}

    gone = [f"{DRIVER}/gone:NoSchedule"]
    host.serial_adapter("ttyUSB0", "1-2", serial="A")
    host.serial_adapter("ttyUSB1", "1-4", serial="B")
    assert shown(0.0) == {"s-ttyusb0": [], "s-ttyusb1": []}
    host.unplug("ttyUSB0")
    assert shown(10.0) == {"s-ttyusb0": gone, "s-ttyusb1": []}
    assert shown(69.9) == {"s-ttyusb0": gone, "s-ttyusb1": []}
    host.serial_adapter("ttyUSB0", "1-2", serial="A")
    assert shown(70.0) == {"s-ttyusb0": [], "s-ttyusb1": []}
    host.unplug("ttyUSB0")
    assert list(shown(71.0)) == ["s-ttyusb0", "s-ttyusb1"]
    assert shown(131.0) == {"s-ttyusb1": []}
    assert {report.device: report.healthy for report in inventory.health()} == {"s-ttyusb0": False, "s-ttyusb1": True}
    host.serial_adapter("ttyUSB0", "1-2", serial="A")
    assert list(shown(132.0)) == ["s-ttyusb1", "s-ttyusb0"], "a place that was given up is at the end"
    assert all(report.healthy for report in inventory.health())
    host.unplug("ttyUSB0")
    assert shown(140.0) == {"s-ttyusb1": [], "s-ttyusb0": gone}
    assert shown(199.9, "s-ttyusb0") == {"s-ttyusb1": [], "s-ttyusb0": []}, "it is in a pod"
    assert shown(200.0) == {"s-ttyusb1": [], "s-ttyusb0": gone}, "and the time since it was gone begins anew"


# --- the file ---

X = "devices: [{name: s, paths: [/dev/x], "
BAD_FILES = [
    ("a key twice", "devices: []\ndevices: []\n", "hostdev.yaml has devices twice in one place, again in line 2"),
    ("no YAML", "a: [", "hostdev.yaml is neither YAML nor JSON"),
    ("nothing", "", "devices: there is no entry, so nothing would be published; add one"),
    ("an unknown field", "devices: [{name: s, path: /dev/x}]",
     r"unknown field `path` - at `\$\.devices\[0\]` \(the entry 's'\); the fields there are name, paths, sysfs"),
    ("an unknown field of the file", "device: []", "unknown field `device`; the fields there are .*devices"),
    ("an unknown field within", X + "container: {mounts: [{from: /x}]}}]",
     "unknown field `from` .*; the fields there are hostPath, containerPath, options$"),
    ("an attribute of a wrong kind", X + "attributes: {a: {integer: 1}}}]", "the fields there are int$"),
    ("a wrong type", "devices: [{name: s, paths: /dev/x}]", r"Expected `array`, got `str`.*paths` \(the entry 's'\)"),
    ("a name in capitals", "devices: [{name: S, paths: [/dev/x]}]",
     r"devices\[0\] \('S'\)\.name: use lower-case letters"),
    ("a name twice", "devices: [{name: s, paths: [/dev/x]}, {name: s, paths: [/dev/y]}]",
     r"devices\[1\] .*devices\[0\] has it"),
    ("no source", "devices: [{name: s}]", r"\.paths: give either paths \(of device nodes\) or sysfs"),
    ("two sources", X + "sysfs: [/sys/x]}]", "give either paths"),
    ("a path elsewhere", "devices: [{name: s, paths: [/etc/passwd]}]", "'/etc/passwd' must begin with /dev/"),
    ("a path that climbs", "devices: [{name: s, paths: [/dev/../etc]}]", "have no '..'"),
    ("nodes of nodes", X + "nodes: ['*']}]", "nodes: only with sysfs"),
    ("no shares", X + "shares: 0}]", "shares: 0 is not from 1 to 10000; write unlimited"),
    ("an unknown fact", X + "match: {vendr: x}}]", "match.vendr: there is no fact 'vendr': use path, node"),
    ("an unknown fact in a text", X + "container: {env: {A: '{vendr}'}}}]", "container.env.A: there is no fact"),
    ("half a brace", X + "id: '{serial'}]", "id: .* brace without its other half"),
    ("a bad attribute", X + "attributes: {a-b: 1}}]", r"attributes\.a-b: use letters"),
    ("bad permissions", X + "container: {permissions: xyz}}]", "container.permissions: .*'xyz'.*r, w and m"),
    ("a bad hook", X + "container: {hooks: [{hookName: never, path: /x}]}}]",
     r"container\.hooks\[0\]: hookName 'never'"),
    ("several nodes at one path", X + "groupBy: '{serial}', container: {path: /dev/y}}]",
     "container.path: several nodes cannot have one path: write {node}"),
    ("a negative time", "gone: {withdrawAfterSeconds: -1}\ndevices: [{name: s, paths: [/dev/x]}]",
     "gone.withdrawAfterSeconds: must not be negative"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), [case[1:] for case in BAD_FILES], ids=[case[0] for case in BAD_FILES])
def test_a_bad_file_is_refused_naming_entry_field_and_remedy(read: Read, text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message) as caught:
        read(text)
    assert "hostdev.yaml" in str(caught.value)


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"cannot read the configuration .*nowhere\.yaml"):
        read_config(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize("example", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_the_examples_are_usable(example: Path, host: FakeHost) -> None:
    host.serial_adapter("ttyUSB0")
    host.camera("video0", "video1")
    host.gpu()
    host.simple("kvm", "10:232")
    host.simple("fuse", "10:229")
    host.simple("null", "1:3")
    host.simple("zero", "1:5")
    found = scan(read_config(example), host)
    assert not found.problems
    assert found.devices
    assert all(edits_of(made) for made in found.devices.values())


async def test_what_is_plugged_in_and_out_is_published(
    host: FakeHost, read: Read, api: PluginApi, settings: PluginSettings
) -> None:
    config = msgspec.structs.replace(read("devices: [{name: s, paths: ['/dev/ttyUSB*']}]"), node_name="worker-1")
    host.serial_adapter("ttyUSB0")
    failing = asyncio.Event()
    failed = threading.Event()

    def look() -> Found:
        if failing.is_set():
            failed.set()
            raise OSError("sysfs is not mounted")
        return scan(config, host)

    def published() -> dict[str, bool]:
        return {entry["name"]: "taints" in entry for item in api.slices() for entry in item["spec"].get("devices", ())}

    async def publish(plugin: KubeletPlugin) -> None:
        async for resources in hotplug.resources():
            await plugin.publish(resources)

    async def watch_health(driver: HostdevDriver) -> None:
        async for reports in driver.health():
            health.clear()
            health.update({report.device: report.healthy for report in reports})

    health: dict[str, bool | None] = {}
    hotplug = Hotplug(config, look, seconds=0.02)
    driver = HostdevDriver(DRIVER, look, hotplug.health)
    async with KubeletPlugin(driver, settings, api.client) as plugin, AsyncExitStack() as stack:
        for work in (publish(plugin), watch_health(driver)):
            stack.callback(asyncio.create_task(work).cancel)
        await api.until(lambda: published() == {"s-ttyusb0": False})
        host.serial_adapter("ttyUSB1", "1-4")
        await api.until(lambda: published() == {"s-ttyusb0": False, "s-ttyusb1": False})
        failing.set()
        await asyncio.to_thread(failed.wait, 30)
        assert published() == {"s-ttyusb0": False, "s-ttyusb1": False}, "what could not be looked at is not gone"
        failing.clear()
        host.unplug("ttyUSB0")
        await api.until(lambda: published() == {"s-ttyusb0": True, "s-ttyusb1": False})
        assert health == {"s-ttyusb0": False, "s-ttyusb1": True}
        host.serial_adapter("ttyUSB0")
        await api.until(lambda: published() == {"s-ttyusb0": False, "s-ttyusb1": False})
        assert health == {"s-ttyusb0": True, "s-ttyusb1": True}


async def test_a_new_device_is_offered_after_a_second_at_most(
    host: FakeHost, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page promises that it is published within two; the other one is for the API server."""
    config = msgspec.structs.replace(read("devices: [{name: s, paths: ['/dev/ttyUSB*']}]"), node_name="worker-1")
    waited, sleep, looking = [], asyncio.sleep, asyncio.current_task()

    async def wait(seconds: float) -> None:
        if asyncio.current_task() is looking:  # and not another test's thread with an event loop of its own
            waited.append(seconds)
            host.serial_adapter("ttyUSB0")
        else:
            await sleep(seconds)

    monkeypatch.setattr(asyncio, "sleep", wait)
    resources = Hotplug(config, partial(scan, config, host)).resources()
    async with aclosing(resources) as offered:  # type: ignore[type-var]  # declared as an iterator, is a generator
        assert not devices_in(await anext(offered))
        assert devices_in(await anext(offered)) == ["s-ttyusb0"]
    assert waited == [1.0]


def devices_in(resources: Resources) -> list[str]:
    """The devices of all pools."""
    return [device.name for pool in resources.values() for part in pool.slices for device in part.devices]


class Pulled(FakeHost):
    """A host whose adapter is pulled at the file that ``left`` counts down to."""

    left: int = 0

    def text(self, path: str) -> str | None:
        """What the file says, after the adapter was pulled if it is the one."""
        vars(self)["left"] = self.left - 1
        if self.left == 0:
            self.unplug("ttyUSB0")
        return super().text(path)


def test_a_look_finds_all_of_an_adapter_or_nothing_though_it_is_pulled_meanwhile(tmp_path: Path, read: Read) -> None:
    config = read("devices: [{name: s, paths: ['/dev/ttyUSB*'], id: '{serial}'}]")
    all_of_it = {"s-a1": ("/dev/ttyUSB0", "c 188:0")}
    seen = []
    for files in range(1, 100):
        (tmp_path / f"{files}/dev").mkdir(parents=True)
        host = Pulled(tmp_path / str(files))
        host.serial_adapter("ttyUSB0")
        vars(host)["left"] = files
        seen.append(Looking(config, host).thoroughly().owned)
        if host.left > 0:
            break
    assert seen[-1] == all_of_it, "the look reads fewer files than that"
    assert seen[0] == {}
    assert all(found in ({}, all_of_it) for found in seen)


def test_a_thorough_look_follows_changes_and_comes_every_ten_seconds(host: FakeHost, read: Read) -> None:
    now = 0.0
    looking = Looking(read("devices: [{name: s, paths: ['/dev/ttyUSB*'], id: '{serial}'}]"), host, lambda: now)
    serial = host.at("/sys/devices/pci0000:00/0000:00:14.0/usb1/1-2/serial")

    def says(number: str) -> list[str]:
        if serial.exists():
            serial.write_text(number)
        return list(looking().devices)

    assert says("") == []
    now = 100.0
    host.serial_adapter("ttyUSB0", serial="A")
    assert says("a") == ["s-a"], "a change is seen at once"
    now = 104.9
    assert says("b") == ["s-b"], "and what comes soon after it"
    now = 105.1
    assert says("c") == ["s-b"], "then it is quiet"
    now = 115.0
    assert says("d") == ["s-d"]
    now = 116.0
    host.unplug("ttyUSB0")
    host.serial_adapter("ttyUSB0", serial="E")
    assert says("e") == ["s-e"], "another device of the same name"
    host.unplug("ttyUSB0")
    assert says("f") == []


# --- this machine ---


def test_the_devices_of_this_machine() -> None:
    names = [name for name in ("null", "fuse", "kvm") if HostTree().number(f"/dev/{name}")]
    config = msgspec.convert({"devices": [{"name": name, "paths": [f"/dev/{name}"]} for name in names]}, HostdevConfig)
    found = scan(config, HostTree())
    assert not found.problems
    assert [made.parts[0].path for made in found.devices.values()] == [f"/dev/{name}" for name in names]
    assert "null" in found.devices
    for made in found.devices.values():
        assert to_dict(edits_of(made))["deviceNodes"] == [{"path": made.parts[0].path, "permissions": "rw"}]


LISTS: list[tuple[str, int, list[str]]] = [
    ("devices: [{name: nothing, paths: [/dev/null]}]", 0, []),
    (
        "devices: [{name: nothing, paths: [/dev/null], attributes: {a: '%s'}}]" % ("x" * 65),
        2,
        ["entry 'nothing': its patterns match no device node, or only some that are left out"],
    ),
    (
        "devices: [{name: nothing, paths: [/dev/null, '/dev/nowhere*']}, {name: x, paths: [/dev/none]}]",
        0,
        [
            "entry 'nothing': /dev/nowhere* matches nothing on this host",
            "entry 'x': /dev/none matches nothing on this host",
        ],
    ),
    (
        "devices: [{name: nothing, paths: [/dev/null]}, {name: x, paths: [/dev/zero], match: {serial: A1}}]",
        0,
        [
            "entry 'x': its patterns match no device node with the facts serial that match asks for, or only some "
            "that are left out"
        ],
    ),
]


@pytest.mark.parametrize(("text", "code", "nothing"), LISTS)
def test_the_command_lists_what_it_finds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, code: int, nothing: list[str]
) -> None:
    path = tmp_path / "hostdev.yaml"
    path.write_text(text)
    assert main(["hostdev", f"--config={path}", "--list"]) == code
    listed = yaml.safe_load(capsys.readouterr().out)
    assert len(listed["devices"]) == (0 if code else 1)
    assert len(listed["leftOut"]) == (1 if code else 0)
    assert listed["foundNothing"] == nothing


def test_a_wrong_file_ends_the_command_with_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "hostdev.yaml"
    path.write_text("devices: [{name: S, paths: [/dev/null]}]")
    assert main(["hostdev", f"--config={path}", "--node-name=n"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"dra-kubelet-plugin: error: the configuration {path} is invalid: devices[0] ('S').name: ")
    assert error.count("\n") == 1


def test_an_address_of_the_node_that_is_none_ends_the_command_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "hostdev.yaml"
    path.write_text("devices: [{name: s, paths: [/dev/null]}]")
    monkeypatch.setenv("HOST_IPS", "10.0.0.1,node-1")
    assert main(["hostdev", f"--config={path}", "--list"]) == 2
    assert capsys.readouterr().err == (
        "dra-kubelet-plugin: error: HOST_IPS: 'node-1' does not appear to be an IPv4 or IPv6 address; take the pod's "
        "field status.hostIPs\n"
    )
    monkeypatch.setenv("HOST_IPS", "10.0.0.1,fd00::1")
    assert main(["hostdev", f"--config={path}", "--list"]) == 0
