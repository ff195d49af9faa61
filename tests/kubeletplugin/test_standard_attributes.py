"""Standard attributes from a sysfs that the test makes, and from that of this machine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from dra_kubeletplugin import AttributeUnknown, device, numa_node, pci_attributes, pci_bus_id, pcie_root

REAL = sorted(Path("/sys/bus/pci/devices").glob("*"))


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """A machine with a GPU behind a bridge on NUMA node 1, a card without NUMA node, and a device of a hypervisor."""
    links = tmp_path / "bus/pci/devices"
    links.mkdir(parents=True)
    for address, place, node in (
        ("0000:3b:00.0", "devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0", "1\n"),
        ("0000:00:1f.a", "devices/pci0000:00/0000:00:1f.a", "-1\n"),
        ("c05e:00:00.0", "devices/LNXSYSTM:00/VMBUS:00/c05e:00:00.0", "many\n"),
    ):
        folder = tmp_path / place
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(node)
        (links / address).symlink_to(folder)
    (links / "0000:01:00.0").symlink_to(tmp_path / "nowhere")
    return tmp_path


def test_a_device_behind_a_bridge_has_the_root_complex_above_it(sysfs: Path) -> None:
    assert pci_attributes("0000:3B:00.0", sysfs) == {
        "resource.kubernetes.io/pciBusID": "0000:3b:00.0",
        "resource.kubernetes.io/pcieRoot": "pci0000:3a",
        "resource.kubernetes.io/numaNode": 1,
    }


@pytest.mark.rule("K37-NUMA-01", "K37-NUMA-03")
def test_a_machine_that_does_not_number_its_memory_gives_no_numa_node(sysfs: Path) -> None:
    assert numa_node("0000:00:1f.a", sysfs) is None
    assert "resource.kubernetes.io/numaNode" not in pci_attributes("0000:00:1f.a", sysfs)


@pytest.mark.parametrize(
    "address", ["", "3b:00.0", "0000:3b:00", "0000:3g:00.0", "0000:3b:00.0 ", "/etc/passwd", "../x"]
)
def test_what_is_no_pci_address_is_refused(address: str, sysfs: Path) -> None:
    with pytest.raises(AttributeUnknown, match="is not a PCI address: write"):
        pci_bus_id(address)
    with pytest.raises(AttributeUnknown):
        pci_attributes(address, sysfs)


UNKNOWN = [
    ("0000:02:00.0", "cannot resolve .*0000:02:00.0: No such file", "cannot read .*0000:02:00.0/numa_node"),
    ("0000:01:00.0", "cannot resolve .*0000:01:00.0: No such file", "cannot read"),
    ("c05e:00:00.0", "below no PCIe root complex: leave the attribute out", "cannot read .*invalid literal"),
]


@pytest.mark.parametrize(("address", "root", "node"), UNKNOWN)
def test_what_sysfs_does_not_say_is_no_guess(sysfs: Path, address: str, root: str, node: str) -> None:
    with pytest.raises(AttributeUnknown, match=root):
        pcie_root(address, sysfs)
    with pytest.raises(AttributeUnknown, match=node):
        numa_node(address, sysfs)


@pytest.mark.skipif(not REAL, reason="this machine has no PCI devices")
def test_the_devices_of_this_machine_have_attributes_that_a_slice_can_hold() -> None:
    for link in REAL:
        attributes = pci_attributes(link.name)
        assert re.fullmatch(r"pci[0-9a-f]{4}:[0-9a-f]{2}", str(attributes["resource.kubernetes.io/pcieRoot"]))
        device("gpu-0", attributes=attributes)
