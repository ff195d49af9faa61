"""Network interfaces that move into pods: the node keeps what it needs, and a claim keeps what it has.

The second half runs in a network namespace of its own, where veth pairs are moved as a container runtime moves them. It
needs root and ``ip`` of iproute2.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import shutil
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Self

import msgspec
import pytest
from dra_kubeletplugin import ClaimRef, KubeletPlugin, PluginSettings
from dra_kubeletplugin.drivers.hostdev.config import HostdevConfig
from dra_kubeletplugin.drivers.hostdev.driver import HostdevDriver
from dra_kubeletplugin.drivers.hostdev.facts import HostTree
from dra_kubeletplugin.drivers.hostdev.hotplug import Hotplug, Looking, replugged
from dra_kubeletplugin.drivers.hostdev.interfaces import MOST_ABSENT_NAMES, InPods, Interfaces, kernel_uplinks
from dra_kubeletplugin.drivers.hostdev.scan import scan
from dra_kubeletplugin.testing import FakeKubelet
from dra_kubeletplugin.testing.api import PluginApi
from fake_host import FakeHost
from node_world import MakeClaim
from waiting import becomes

INSIDE = "KOPF_DRA_TESTS_IN_NAMESPACE"
ENTRY = {"name": "nic", "sysfs": ["/sys/class/net/*"], "container": {"netDevices": [{}]}}
CONFIG = msgspec.convert({"driverName": "nic.example.com", "nodeName": "n", "devices": [ENTRY]}, HostdevConfig)


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    """A host with one interface that nothing needs."""
    host = FakeHost(tmp_path, addresses=("192.0.2.7", "2001:db8::7"))
    host.interface("eth1", ifindex="3", iflink="3", flags="0x1003")
    return host


def route(host: FakeHost, interface: str, *, six: bool = False) -> None:
    """Give the interface the default route."""
    path = host.at("/proc/net/ipv6_route" if six else "/proc/net/route")
    path.parent.mkdir(parents=True, exist_ok=True)
    if six:
        none = "0" * 32
        reject = f"{none} 00 {none} 00 {none} ffffffff 00000001 00000000 00200200       lo\n"
        path.write_text(f"{reject}{none} 00 {none} 00 fe80{none[4:]} 00000400 00000001 00000000 00000003 {interface}\n")
    else:
        path.write_text(
            "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
            f"{interface}\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
            "eth1\t000A0A0A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
        )


def routes(host: FakeHost, *lines: tuple[str, str, str, str]) -> None:
    """Give interfaces routes of IPv4: target, router and mask as the kernel prints them."""
    path = host.at("/proc/net/route")
    path.parent.mkdir(parents=True, exist_ok=True)
    head = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
    made = (f"{name}\t{target}\t{router}\t0003\t0\t0\t0\t{mask}\t0\t0\t0\n" for name, target, router, mask in lines)
    path.write_text(head + "".join(made))


def below(host: FakeHost, upper: str, lower: str) -> None:
    """Let one interface stand on another one."""
    host.at(f"/sys/class/net/{upper}/lower_{lower}").symlink_to(f"../{lower}")


def _loopback(host: FakeHost) -> None:
    host.interface("x", ifindex="2", iflink="2", flags="0x9")


def _uplink(host: FakeHost) -> None:
    host.interface("x", ifindex="2", iflink="2")
    route(host, "x")


def _uplink_six(host: FakeHost) -> None:
    host.interface("x", ifindex="2", iflink="2")
    route(host, "x", six=True)


def _tunnel(host: FakeHost) -> None:
    """Two routes to half of all addresses win over the default route, which stays."""
    host.interface("x", ifindex="2", iflink="2")
    routes(host, ("x", "00000000", "010200C0", "00000080"), ("x", "00000080", "010200C0", "00000080"))


def _address(host: FakeHost) -> None:
    """No route leads to other networks; a wider one of another interface has the address as well."""
    host.interface("x", ifindex="2", iflink="2")
    routes(host, ("eth1", "000000C0", "00000000", "0000FFFF"), ("x", "000200C0", "00000000", "00FFFFFF"))


def _address_six(host: FakeHost) -> None:
    host.interface("x", ifindex="2", iflink="2")
    path = host.at("/proc/net/if_inet6")
    path.parent.mkdir(parents=True)
    path.write_text(
        "20010db8000000000000000000000008 03 40 00 80     eth1\n20010db8000000000000000000000007 02 40 00 80        x\n"
    )


def _below_the_uplink(host: FakeHost) -> None:
    """An interface below a bond, below the VLAN with the route."""
    for name in ("x", "bond7", "vlan7"):
        host.interface(name, ifindex=name, iflink=name)
    below(host, "vlan7", "bond7")
    below(host, "bond7", "x")
    route(host, "vlan7")


def _bridge(host: FakeHost) -> None:
    host.interface("x", ifindex="2", iflink="2", uevent="DEVTYPE=bridge")


def _bond(host: FakeHost) -> None:
    host.interface("x", ifindex="2", iflink="2")
    host.at("/sys/devices/virtual/net/x/bonding").mkdir()


def _overlay(host: FakeHost) -> None:
    host.interface("x", ifindex="2", iflink="2", uevent="INTERFACE=x\nDEVTYPE=vxlan")


def _port(host: FakeHost) -> None:
    host.interface("x", ifindex="2", iflink="2")
    host.at("/sys/devices/virtual/net/x/master").symlink_to("../br7")


def _end_of_a_pod(host: FakeHost) -> None:
    host.interface("x", ifindex="2", iflink="3")  # in the pod; eth1 has that number here


def _divided(host: FakeHost) -> None:
    host.card("x", "0000:3b:00.0", functions=2)


def _representor(host: FakeHost) -> None:
    host.card("x", "0000:3b:00.0", phys_port_name="c1pf0vf3")


NEVER: list[tuple[Callable[[FakeHost], None], str]] = [
    (_loopback, "it is the loopback interface"),
    (_uplink, "the node's network needs it: it has a default route of IPv4"),
    (_uplink_six, "the node's network needs it: it has a default route of IPv6"),
    (_tunnel, "the node's network needs it: it has a default route of IPv4"),
    (_address, "the node's network needs it: it has the node's address 192.0.2.7"),
    (_address_six, "the node's network needs it: it has the node's address 2001:db8::7"),
    (_below_the_uplink, "the node's network needs it: vlan7, which stands on it, has a default route of IPv4"),
    (_bridge, "it is a bridge, which carries traffic of others"),
    (_bond, "it is a bond, which carries traffic of others"),
    (_overlay, "it is an overlay, which carries traffic of others"),
    (_port, "it is a port of br7"),
    (_divided, "its card is divided into 2 virtual functions, which are devices of their own"),
    (_representor, "it is the node's end of a virtual function"),
    (_end_of_a_pod, "its other end is in another network namespace, such as a pod's"),
]


@pytest.mark.parametrize(("make", "why"), NEVER, ids=[make.__name__ for make, _ in NEVER])
def test_an_interface_that_the_node_needs_is_never_offered(
    host: FakeHost, make: Callable[[FakeHost], None], why: str
) -> None:
    make(host)
    found = scan(CONFIG, host)
    assert "nic-eth1" in found.devices
    assert "nic-x" not in found.devices
    assert f"entry 'nic', device /sys/class/net/x: the interface x is never offered: {why}" in found.problems


def test_what_the_node_needed_once_is_not_offered_while_its_route_is_away(host: FakeHost) -> None:
    """A link that is down for a moment has no routes, and a bond that is made anew no ports."""
    _below_the_uplink(host)
    looking = Looking(CONFIG, host)
    assert list(looking.thoroughly().devices) == ["nic-eth1"]
    host.at("/proc/net/route").unlink()
    for upper, lower in (("vlan7", "bond7"), ("bond7", "x")):
        host.at(f"/sys/class/net/{upper}/lower_{lower}").unlink()
    found = looking.thoroughly()
    assert list(found.devices) == ["nic-eth1"]
    why = "(vlan7, which stands on it, has a default route of IPv4): start the driver again if that is over"
    assert f"the node's network needed it a while ago {why}" in "\n".join(found.problems)
    assert "nic-x" in Looking(CONFIG, host).thoroughly().devices


def test_the_ports_of_pods_that_came_and_went_are_not_remembered_for_ever(host: FakeHost) -> None:
    needed = {f"veth{number}": "it was a port" for number in range(1000)} | {"eth1": "it has a default route of IPv4"}
    found = Interfaces(host, needed).needed
    assert found.keys() == {"eth1", *(f"veth{number}" for number in range(1000 - MOST_ABSENT_NAMES, 1000))}


def test_virtual_functions_are_offered_while_the_node_uses_their_card(host: FakeHost) -> None:
    host.card("up", "0000:3b:00.0", functions=2, phys_port_name="p0")
    host.card("up-v0", "0000:3b:02.0", of="0000:3b:00.0")
    host.card("up-v1", "0000:3b:02.1", of="0000:3b:00.0")
    host.card("whole", "0000:3b:00.1", functions=0)
    route(host, "up")
    found = scan(CONFIG, host)
    assert sorted(found.devices) == ["nic-eth1", "nic-up-v0", "nic-up-v1", "nic-whole"]
    assert "the interface up is never offered: the node's network needs it" in found.problems[0]
    entry = {**ENTRY, "match": {"physicalFunction": "0000:3b:00.*"}}
    chosen = scan(msgspec.convert({"driverName": "d.io", "nodeName": "n", "devices": [entry]}, HostdevConfig), host)
    assert sorted(chosen.devices) == ["nic-up-v0", "nic-up-v1"]


def test_an_interface_is_known_by_its_name_wherever_the_entry_found_the_device(host: FakeHost) -> None:
    """An entry for another device could name the uplink."""
    host.simple("kvm", "10:232")
    _uplink(host)
    entry = {"name": "k", "paths": ["/dev/kvm"], "container": {"netDevices": [{"hostInterfaceName": "x"}]}}
    config = msgspec.convert({"devices": [entry]}, HostdevConfig)
    assert scan(config, host).devices == {}


def test_the_network_plugins_own_are_never_offered(host: FakeHost) -> None:
    for name in ("cilium_host", "cilium_wg0", "docker0", "cni0", "ovn-k8s-mp0", "br-int", "antrea-gw0", "nodelocaldns"):
        host.interface(name, ifindex="9", iflink="9")
        assert Interfaces(host).why_not(name) == "it belongs to the node's network plugin"


def test_both_ends_of_a_pair_on_the_node_can_be_offered(host: FakeHost) -> None:
    host.interface("a", ifindex="7", iflink="8")
    host.interface("b", ifindex="8", iflink="7")
    assert [Interfaces(host).why_not(name) for name in ("a", "b", "missing")] == ["", "", ""]


# --- a real network namespace ---

_TOOLS = os.geteuid() == 0 and shutil.which("ip") is not None
inside = pytest.mark.skipif(INSIDE not in os.environ, reason="runs in a network namespace, started by another test")


def ip(*words: str) -> None:
    """Run the tool of that name."""
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=30)


@pytest.fixture
def namespaces() -> Iterator[str]:
    """A namespace that stands for a node's; the machine's own network stays as it is."""
    if not _TOOLS:
        pytest.skip("NOT TRIED: moving interfaces for real needs root and ip of iproute2")
    name = f"kopf-dra-{os.getpid()}"
    ip("netns", "add", name)
    try:
        ip("-n", name, "link", "set", "lo", "up")
        yield name
    finally:
        ip("netns", "del", name)


def test_interfaces_move_for_real(namespaces: str) -> None:
    """``ip netns exec`` mounts the sysfs of the namespace."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        __file__,
        "-k",
        "real_namespace",
    ]
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, INSIDE: "1"}
    words = ["ip", "netns", "exec", namespaces, *command]
    done = subprocess.run(words, cwd=root, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout, done.stdout


class Node:
    """A hostdev plugin on this namespace, and the kubelet."""

    def __init__(self, kubelet: FakeKubelet, plugin: KubeletPlugin, api: PluginApi, settings: PluginSettings) -> None:
        self.kubelet, self.plugin, self._api, self._settings = kubelet, plugin, api, settings

    async def prepare(self, name: str) -> str:
        """Return the error of the claim, empty if it is prepared."""
        return str((await self.kubelet.prepare([_ref(name)]))[f"uid-of-{name}"].error)

    async def unprepare(self, name: str) -> str:
        """Return the error of the claim, empty if it is unprepared."""
        return str((await self.kubelet.unprepare([_ref(name)]))[f"uid-of-{name}"].error)

    def published(self) -> dict[str, bool]:
        """Return the devices in slices, and whether each has a taint."""
        devices = [device for item in self._api.slices() for device in item["spec"].get("devices", ())]
        return {device["name"]: "taints" in device for device in devices}

    def cdi_files(self) -> list[str]:
        """Return the CDI files of claims."""
        return sorted(path.name for path in Path(self._settings.cdi_dir).glob("*.json"))


def _ref(name: str) -> ClaimRef:
    return ClaimRef("default", name, f"uid-of-{name}")


@asynccontextmanager
async def running(settings: PluginSettings, api: PluginApi) -> AsyncIterator[Node]:
    """Run the plugin, looking often."""
    content = {"driverName": settings.driver_name, "nodeName": settings.node_name, "devices": [ENTRY]}
    config, tree = msgspec.convert(content, HostdevConfig), HostTree()
    looking, in_pods = Looking(config, tree), InPods(tree)
    hotplug = Hotplug(config, looking, 0.02, in_pods)
    driver = HostdevDriver(settings.driver_name, looking.thoroughly, hotplug.health, in_pods)

    async def publish(plugin: KubeletPlugin) -> None:
        async for resources in hotplug.resources():
            await plugin.publish(resources)

    async with (
        KubeletPlugin(driver, settings, api.client) as plugin,
        FakeKubelet(settings) as kubelet,
        replugged(hotplug, plugin),
    ):
        task = asyncio.create_task(publish(plugin))
        try:
            yield Node(kubelet, plugin, api, settings)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def pod() -> Iterator[str]:
    """A pod's namespace, and a pair of interfaces on the node, of which the claim gets one."""
    name = f"kopf-dra-pod-{os.getpid()}"
    ip("netns", "add", name)
    ip("link", "add", "data0", "type", "veth", "peer", "name", "data1")
    try:
        yield name
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True, timeout=30)
        subprocess.run(["ip", "link", "del", "data1"], check=False, capture_output=True, timeout=30)


@inside
async def test_a_moved_interface_is_not_gone_in_a_real_namespace(
    pod: str, settings: PluginSettings, api: PluginApi, claim: MakeClaim
) -> None:
    await claim("a", device="nic-data0")
    async with running(settings, api) as node:
        await becomes(lambda: node.published() == {"nic-data0": False, "nic-data1": False})
        assert await node.prepare("a") == ""
        files = node.cdi_files()
        ip("link", "set", "data0", "netns", pod)  # what the runtime does
        await becomes(lambda: "nic-data1" not in [name for name, gone in node.published().items() if not gone])
        await asyncio.sleep(1.0)  # fifty looks
        assert node.published()["nic-data0"] is False, "a claim holds it"
        assert node.cdi_files() == files
        assert await node.prepare("a") == "", "a kubelet that restarts asks again"
    async with running(settings, api) as node:  # a new instance, which never saw it
        await asyncio.sleep(0.5)
        assert node.cdi_files() == files
        assert await node.prepare("a") == ""
        ip("-n", pod, "link", "set", "data0", "netns", str(os.getpid()))  # what the kernel does with hardware
        await becomes(lambda: node.published() == {"nic-data0": False, "nic-data1": False})
        assert await node.unprepare("a") == ""
        assert node.cdi_files() == []


@inside
async def test_an_interface_that_ends_with_its_pod_is_gone_in_a_real_namespace(
    pod: str, settings: PluginSettings, api: PluginApi, claim: MakeClaim
) -> None:
    await claim("a", device="nic-data0")
    async with running(settings, api) as node:
        await becomes(lambda: "nic-data0" in node.published())
        assert await node.prepare("a") == ""
        ip("link", "set", "data0", "netns", pod)
        await asyncio.sleep(0.3)
        ip("netns", "del", pod)
        await asyncio.sleep(0.3)
        assert node.published()["nic-data0"] is False, "until the kubelet unprepares the claim"
        assert await node.unprepare("a") == ""
        await becomes(lambda: node.published().get("nic-data0") is not False)


@inside
async def test_the_uplink_is_never_offered_in_a_real_namespace(pod: str) -> None:
    ip("link", "set", "data0", "up")
    ip("link", "set", "data1", "up")
    ip("address", "add", "192.0.2.2/24", "dev", "data0")
    ip("route", "add", "default", "via", "192.0.2.1", "dev", "data0")
    ip("link", "add", "br7", "type", "bridge")
    ip("link", "set", "data1", "master", "br7")
    try:
        found = scan(CONFIG, HostTree())
        why = {
            problem.split(":")[0].rpartition("/")[2]: problem.rpartition("never offered: ")[2]
            for problem in found.problems
        }
        assert found.devices == {}
        assert why == {
            "br7": "it is a bridge, which carries traffic of others",
            "data0": "the node's network needs it: it has a default route of IPv4",
            "data1": "it is a port of br7",
            "lo": "it is the loopback interface",
        }
    finally:
        ip("link", "del", "br7")


@inside
async def test_each_next_hop_of_each_table_is_an_uplink_in_a_real_namespace() -> None:
    """The files of the kernel show the first next hop only, and of IPv4 the main table only."""
    names = [f"up{number}" for number in range(5)]
    try:
        for number, name in enumerate(names):
            ip("link", "add", name, "type", "veth", "peer", "name", f"far{number}")
            ip("link", "set", name, "up")
            ip("link", "set", f"far{number}", "up")
            ip("address", "add", f"198.51.100.{number * 8 + 1}/29", "dev", name)
        ip("route", "add", "10.0.0.0/8", "via", "198.51.100.34", "dev", "up4")
        assert not set(Interfaces(HostTree()).needed) & set(names)
        hops = [word for at in (2, 10) for word in ("nexthop", "via", f"198.51.100.{at}", "dev", f"up{at // 8}")]
        ip("route", "add", "default", "metric", "7", *hops)
        ip("route", "add", "default", "via", "198.51.100.18", "dev", "up2", "table", "100")
        ip("-6", "address", "add", "2001:db8::1/64", "dev", "up3", "nodad")
        ip("-6", "route", "add", "default", "via", "2001:db8::2", "dev", "up3", "table", "101")
        ip("route", "add", "blackhole", "default", "metric", "900")
        needed = Interfaces(HostTree()).needed
        assert {name: needed[name] for name in names if name in needed} == {
            **dict.fromkeys(names[:3], "it has a default route of IPv4"),
            "up3": "it has a default route of IPv6",
        }
    finally:
        ip("route", "del", "blackhole", "default", "metric", "900")
        for name in names:
            ip("link", "del", name)


def test_routes_are_known_from_the_files_where_the_kernel_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr("dra_kubeletplugin.drivers.hostdev.interfaces.socket.socket", forbidden)
    assert kernel_uplinks() == {}


def test_without_a_free_descriptor_nothing_is_said_about_routes(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("dra_kubeletplugin.drivers.hostdev.interfaces.socket.socket", full)
    with pytest.raises(OSError, match="Too many open files"):
        kernel_uplinks()


def test_half_an_answer_of_the_kernel_is_no_route(monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(7)
    for _ in range(2000):
        part = bytearray(dice.randbytes(dice.randrange(120)))
        part[:6] = struct.pack("=IH", dice.choice([0, 16, 28, 60, len(part), 2**31]), 24)
        if len(part) > 40:  # a route to all addresses, with some attribute
            part[17], part[23], part[30] = 0, 1, dice.choice([4, 9])
        monkeypatch.setattr("dra_kubeletplugin.drivers.hostdev.interfaces.socket.socket", partial(_Kernel, bytes(part)))
        kernel_uplinks()


class _Kernel:
    """Answers with these bytes, and then with nothing."""

    def __init__(self, answer: bytes, *_: object) -> None:
        self._answers = [answer]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def settimeout(self, _: float) -> None: ...

    def sendto(self, *_: object) -> None: ...

    def recv(self, _: int) -> bytes:
        return self._answers.pop() if self._answers else b""
