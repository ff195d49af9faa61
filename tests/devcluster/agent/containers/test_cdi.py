"""CDI edits on a host without containers: what the host lacks, and what a plain process cannot have."""

from __future__ import annotations

from pathlib import Path

import pytest
from dra_cdi import ContainerEdits, DeviceNode, Hook, IntelRdt, Mount, NetDevice
from dra_devcluster.agent.containers.container import missing_on_host, not_carried_out

NODES: dict[str, tuple[DeviceNode, list[str]]] = {
    "a character device": (DeviceNode("/dev/null"), []),
    "of the type it says": (DeviceNode("/dev/null", type="c"), []),
    "elsewhere on the host": (DeviceNode("/dev/gpu", "/dev/zero"), []),
    "missing": (DeviceNode("/dev/none"), ["device node /dev/none: No such file or directory"]),
    "missing, but described in full": (DeviceNode("/dev/none", type="c", major=195), []),
    "a missing FIFO, which is made": (DeviceNode("/dev/none", type="p"), []),
    "of another type": (DeviceNode("/dev/null", type="b"), ["device node /dev/null has the type c, not b"]),
    "no device node": (DeviceNode("/dev/gpu", "/etc/passwd"), ["/etc/passwd is not a device node"]),
}


@pytest.mark.parametrize("case", NODES)
def test_a_device_node_comes_from_the_host_unless_it_is_described_in_full(case: str) -> None:
    node, missing = NODES[case]
    assert missing_on_host(ContainerEdits(device_nodes=(node,))) == missing


def test_what_is_mounted_exists_unless_the_mount_makes_it(tmp_path: Path) -> None:
    mounts = (Mount("/none", "/x"), Mount(str(tmp_path), "/y"), Mount("tmpfs", "/z", type="tmpfs"))
    assert missing_on_host(ContainerEdits(mounts=mounts)) == ["mount /none: No such file or directory"]


def test_what_a_plain_process_cannot_have_is_named() -> None:
    everything = ContainerEdits(
        env=("A=1",),
        hooks=(Hook("prestart", "/bin/true"),),
        net_devices=(NetDevice("eth1", "net0"),),
        intel_rdt=IntelRdt(),
        additional_gids=(44,),
    )
    assert not_carried_out(everything) == ["CDI hooks", "CDI netDevices", "CDI intelRdt", "CDI additionalGids"]
    assert not_carried_out(ContainerEdits(env=("A=1",))) == []
