"""Network interfaces: which of them a claim may have, and which a pod has.

A container runtime moves an interface into the network namespace of the pod. That takes it from the node, so the
driver never offers an interface that the node's own network needs: loopback, one with a default route or with an
address of the node, a bridge, bond or overlay, and the interfaces below these. Nor does it offer the node's end of a
pod's veth pair. DRANET leaves out fewer: the interfaces with the best default route, their ports, and loopback.

The routes come from the kernel (``kernel_uplinks``): its files show the first interface of a route with several next
hops only, and of IPv4 no table but the main one. A host in a data centre has its default route over two cards, and one
with several uplinks has a table for each. The files are read as well: a sandbox may forbid such sockets.

Routes vanish for a moment when a link goes down or a network manager starts again. What the node needed at any look
is therefore not offered until the driver starts again.

A network card may be divided into virtual functions (SR-IOV), each with an interface of its own. These are offered,
also if the node's network needs the card's own interface. That one is not: with it a pod could set addresses, VLANs and
links of other pods' functions. Nor is the node's end of a function, its representor in a software switch.

While a pod has an interface, the node's sysfs lacks it. A claim holds it then, so it is not gone, unless its hardware
was pulled. When the pod's namespace ends, the kernel moves hardware back to the node, down and with the name that it
had in the pod; a virtual interface ends with the namespace.

All of this is about the network namespace of this process: the DaemonSet runs with ``hostNetwork``.
"""

from __future__ import annotations

import re
import socket
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_address
from pathlib import Path
from types import MappingProxyType

from dra_kubeletplugin import ClaimRef, PreparedDevice
from dra_kubeletplugin.drivers.hostdev.config import Found

from .facts import HostTree, raise_if_lacking

OWNS = "network interface "
"""Begins the entry of an interface in what a device owns."""

MOST_ABSENT_NAMES = 64
"""Names of interfaces that are remembered although they are gone: the node's network needed them."""

_CLASS = "/sys/class/net"
_LOOPBACK_FLAG = 0x8
_ROUTE_UP_FLAG, _ROUTE_REJECT_FLAG = 0x1, 0x200
_LONGEST_DEFAULT_MASK = 3
"""Bits: a route to half of all addresses, as VPNs set two of, or to ``2000::/3`` is a default route too."""
_OF_THE_NODE = {
    "bridge": "a bridge",
    "bond": "a bond",
    "team": "a team",
    "vxlan": "an overlay",
    "geneve": "an overlay",
    "wireguard": "an overlay",
}
"""Kinds of interfaces (``DEVTYPE`` of sysfs) that carry traffic of others, in words."""
_OF_NETWORK_PLUGINS = re.compile(
    r"cilium_(net|host|wg\d*|vxlan|geneve)|docker0|cni0|tunl0|kube-ipvs0|bpf(in|out)\.cali|antrea-\w+|ovn-k8s-mp\d+|"
    r"ovs-system|br-(int|ex)|nodelocaldns|kube-dummy-if"
)
_REPRESENTOR = re.compile(r"(c\d+)?pf\d+(vf|sf)\d+", re.ASCII)
_LINK_TO_NET = re.compile(r"/sys/devices/(?!virtual/).+(?=/net/[^/]+$)")


_GET_ROUTES_CODE, _ALL_FLAG = 26, 0x301
_ROUTE_CODE, _DONE_CODE, _ERROR_CODE = 24, 3, 2
_UNICAST_CODE = 1
_LINK_CODE, _SEVERAL_LINKS_CODE = 4, 9
_HEAD_BYTES = 16
_MESSAGE_BYTES = 1 << 16
_KERNEL_SECONDS = 5.0


def kernel_uplinks() -> dict[str, str]:
    """Return the interfaces of default routes in any table of the kernel, each with what it has.

    Empty where the kernel does not answer. Raises OSError if this process lacks descriptors or memory.
    """
    found: dict[str, str] = {}
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
            kernel.settimeout(_KERNEL_SECONDS)
            kernel.sendto(struct.pack("=IHHII", 28, _GET_ROUTES_CODE, _ALL_FLAG, 1, 0) + bytes(12), (0, 0))
            while (part := kernel.recv(_MESSAGE_BYTES)) and _take_routes(part, found):
                pass
    except (AttributeError, OSError) as error:  # not Linux, or a sandbox without such sockets
        if isinstance(error, OSError):
            raise_if_lacking(error)
    return found


def _take_routes(part: bytes, found: dict[str, str]) -> bool:
    """Take in the routes of a message of the kernel; return whether more follow."""
    at = 0
    while at + _HEAD_BYTES <= len(part):
        size, kind = struct.unpack_from("=IH", part, at)
        if kind in (_DONE_CODE, _ERROR_CODE) or not _HEAD_BYTES <= size <= len(part) - at:
            return False
        # A router has a million routes: all but a few are told by two bytes.
        is_default = kind == _ROUTE_CODE and size >= _HEAD_BYTES + 12 and part[at + 17] <= _LONGEST_DEFAULT_MASK
        if is_default and part[at + 23] == _UNICAST_CODE:
            what = f"a default route of IPv{6 if part[at + 16] == socket.AF_INET6 else 4}"
            for number in _links_of(part[at + _HEAD_BYTES + 12 : at + size]):
                with suppress(OSError):  # the interface is gone
                    found.setdefault(socket.if_indextoname(number), what)
        at += (size + 3) & ~3
    return True


def _links_of(attributes: bytes) -> Iterator[int]:
    """Yield the numbers of the interfaces of a route, which may have several next hops."""
    at = 0
    while at + 4 <= len(attributes):
        size, kind = struct.unpack_from("=HH", attributes, at)
        if kind == _LINK_CODE and at + 8 <= len(attributes):
            yield from struct.unpack_from("=I", attributes, at + 4)
        elif kind == _SEVERAL_LINKS_CODE:
            hop, end = at + 4, min(at + size, len(attributes))
            while hop + 8 <= end:
                length, number = struct.unpack_from("=H2xI", attributes, hop)
                yield number
                hop += max(8, (length + 3) & ~3)
        at += max(4, (size + 3) & ~3)


class Interfaces:
    """The interfaces of one look at the host; read once, since what is below what takes many files."""

    def __init__(self, tree: HostTree, needed: Mapping[str, str] = MappingProxyType({})) -> None:
        self._tree = tree
        self._needed_before = needed

    def why_not(self, name: str) -> str:
        """Return why a claim must not have the interface ``name``, or an empty text."""
        if not self._tree.link(f"{_CLASS}/{name}"):
            return ""  # a bond's folder lists no such interface; CDI fails for what is not there
        if self._flags(name) & _LOOPBACK_FLAG:
            return "it is the loopback interface"
        if why := self._needed_now.get(name):
            return f"the node's network needs it: {why}"
        if why := self._needed_before.get(name):
            return f"the node's network needed it a while ago ({why}): start the driver again if that is over"
        if kind := self._kind(name):
            return f"it is {kind}, which carries traffic of others"
        if master := self._tree.link(f"{_CLASS}/{name}/master"):
            return f"it is a port of {master}"
        if _OF_NETWORK_PLUGINS.fullmatch(name):
            return "it belongs to the node's network plugin"
        if (functions := self._tree.text(f"{_CLASS}/{name}/device/sriov_numvfs") or "0") != "0":
            return f"its card is divided into {functions} virtual functions, which are devices of their own"
        if _REPRESENTOR.fullmatch(self._tree.text(f"{_CLASS}/{name}/phys_port_name") or ""):
            return "it is the node's end of a virtual function"
        if self._is_end_of_a_pod(name):
            return "its other end is in another network namespace, such as a pod's"
        return ""

    @cached_property
    def _names(self) -> list[str]:
        return [path.rpartition("/")[2] for path in self._tree.glob(f"{_CLASS}/*")]

    @property
    def needed(self) -> dict[str, str]:
        """The interfaces that the node's network needs or needed, with the reason as a sentence; for the next look."""
        found = {**self._needed_before, **self._needed_now}
        # A VLAN may be made again under its name. Each pod has another name for its port of a bridge.
        away = [name for name in found if not self._tree.link(f"{_CLASS}/{name}")]
        for name in away[:-MOST_ABSENT_NAMES]:
            del found[name]
        return found

    @cached_property
    def _needed_now(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for upper, what in self._uplinks().items():
            found[upper] = f"it has {what}"
            for lower in self._below(upper):
                found.setdefault(lower, f"{upper}, which stands on it, has {what}")
        return found

    def _uplinks(self) -> dict[str, str]:
        """Return the interfaces by which the node reaches others, and is reached."""
        # The kernel knows only the routes of the network namespace that this process is in.
        found = kernel_uplinks() if self._tree.root == Path("/") else {}
        targets = list(self._targets())
        for interface, target in targets:
            if target.prefixlen <= _LONGEST_DEFAULT_MASK:
                found.setdefault(interface, "a default route of IPv4")
        for line in (self._tree.whole_text("/proc/net/ipv6_route") or "").splitlines():
            _, length, *_, flags, interface = line.split()
            if int(length, 16) <= _LONGEST_DEFAULT_MASK and _is_used(int(flags, 16)):
                found.setdefault(interface, "a default route of IPv6")
        # Without a default route, as in a network that leads nowhere else, the address tells.
        for address in map(ip_address, self._tree.addresses):
            if isinstance(address, IPv4Address):
                own = [(target.prefixlen, interface) for interface, target in targets if address in target]
                holders = [interface for length, interface in own if length == max(own)[0]]
            else:
                holders = [interface for interface, held in self._addresses_six() if held == address]
            for interface in holders:
                found.setdefault(interface, f"the node's address {address}")
        return found

    def _targets(self) -> Iterator[tuple[str, IPv4Network]]:
        """Yield the interface of each route of IPv4 that is in use, with its target."""
        for line in (self._tree.whole_text("/proc/net/route") or "").splitlines()[1:]:
            interface, target, _, flags, _, _, _, mask, *_ = line.split()
            if _is_used(int(flags, 16)):
                begin = int(target, 16).to_bytes(4, sys.byteorder)  # the kernel prints its own number
                yield interface, IPv4Network((begin, int(mask, 16).bit_count()), strict=False)

    def _addresses_six(self) -> Iterator[tuple[str, IPv6Address]]:
        for line in (self._tree.whole_text("/proc/net/if_inet6") or "").splitlines():
            address, *_, interface = line.split()
            yield interface, IPv6Address(int(address, 16))

    def _below(self, upper: str) -> set[str]:
        """Return what an interface stands on: ports of a bridge or bond, the parent of a VLAN, theirs in turn."""
        found: set[str] = set()
        todo = [upper]
        while todo:
            for path in self._tree.glob(f"{_CLASS}/{todo.pop()}/lower_*"):
                lower = path.rpartition("/lower_")[2]
                if lower not in found:
                    found.add(lower)
                    todo.append(lower)
        return found

    def _flags(self, name: str) -> int:
        return int(self._tree.text(f"{_CLASS}/{name}/flags") or "0", 16)

    def _kind(self, name: str) -> str:
        for folder, kind in (("bridge", "a bridge"), ("bonding", "a bond")):
            if self._tree.resolved(f"{_CLASS}/{name}/{folder}"):
                return kind
        for line in (self._tree.text(f"{_CLASS}/{name}/uevent") or "").splitlines():
            if line.startswith("DEVTYPE="):
                return _OF_THE_NODE.get(line.removeprefix("DEVTYPE="), "")
        return ""

    def _is_end_of_a_pod(self, name: str) -> bool:
        """Return whether a virtual interface has its other end in another namespace; numbers are per namespace."""
        if not (self._tree.resolved(f"{_CLASS}/{name}") or "").startswith("/sys/devices/virtual/"):
            return False
        own, other = self._numbers(name)
        if own == other or self._tree.glob(f"{_CLASS}/{name}/lower_*"):
            return False
        return all(self._numbers(peer) != (other, own) for peer in self._names)

    def _numbers(self, name: str) -> tuple[str | None, str | None]:
        return self._tree.text(f"{_CLASS}/{name}/ifindex"), self._tree.text(f"{_CLASS}/{name}/iflink")


def _is_used(flags: int) -> bool:
    return bool(flags & _ROUTE_UP_FLAG) and not flags & _ROUTE_REJECT_FLAG


class InPods:
    """The interfaces that pods have, by the claims that are prepared on this node.

    ``claims`` returns these; it raises ClaimError, and is set when the plugin runs.
    """

    def __init__(self, tree: HostTree) -> None:
        self._tree = tree
        self._folders: dict[str, str] = {}  # of the hardware, by interface
        self.claims: Callable[[], Sequence[ClaimRef]] = tuple

    def see(self, found: Found) -> None:
        """Take in where the interfaces belong that a look found on the host."""
        for part in (part for parts in found.owned.values() for part in parts if part.startswith(OWNS)):
            name = part.removeprefix(OWNS)
            if hardware := _LINK_TO_NET.match(self._tree.resolved(f"{_CLASS}/{name}") or ""):
                self._folders[name] = hardware[0]

    def all_devices(self) -> set[str]:
        """Return the names of all devices of prepared claims. Raises ClaimError."""
        return {device.device for claim in self.claims() for device in claim.devices}

    def devices(self) -> Iterator[tuple[str, PreparedDevice]]:
        """Yield the devices of prepared claims whose interfaces are not on the host, with the uids of the claims."""
        for claim in self.claims():
            for device in claim.devices:
                names = [part.removeprefix(OWNS) for part in device.owns if part.startswith(OWNS)]
                if names and not any(self._tree.link(f"{_CLASS}/{name}") or self._is_pulled(name) for name in names):
                    yield claim.uid, device

    def _is_pulled(self, name: str) -> bool:
        """Return whether the hardware of an interface is gone; False if the driver never saw it on the host."""
        folder = self._folders.get(name)
        return folder is not None and self._tree.resolved(folder) is None
