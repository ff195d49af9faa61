"""The driver: containers get the nodes of a host device, and the additions of its entry in the configuration.

The host is looked at again for each claim, so that a device that was plugged in again is given with its present number.
A claim may say where the node is to be, with the configuration ``{"containerPath": "/dev/modem"}``. What of the host
belongs to a device alone is named (``owned``), so that no other claim gets it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace

import msgspec
from dra_api.resource import DeviceRequestAllocationResult, NetworkDeviceData, ResourceClaim

from dra_kubeletplugin import (
    CdiError,
    ClaimError,
    ContainerEdits,
    DeviceHealth,
    DeviceNode,
    Driver,
    Mount,
    NetDevice,
    Prepared,
    PreparedDevice,
    configs_for,
    results_for,
)
from dra_kubeletplugin.drivers.hostdev.config import (
    CONTAINER_PATH,
    Found,
    HostDevice,
    facts_in,
    filled,
    filled_as_path,
    hook_of,
)
from dra_kubeletplugin.drivers.hostdev.disks import reached
from dra_kubeletplugin.drivers.hostdev.facts import HostTree
from dra_kubeletplugin.drivers.hostdev.interfaces import OWNS, InPods


def edits_of(made: HostDevice, container_path: str = "") -> ContainerEdits:
    """What containers with the device get. Raises CdiError, and ValueError for a path that cannot be."""
    container = made.entry.container
    if container_path:
        _check(container_path, made)
    nodes = list(_nodes(made, _escaped(container_path) or container.path))
    first = made.parts[0]

    inside = _escaped(nodes[0].path if nodes else "")

    def fill(text: str) -> str | None:
        """A path in the container."""
        return filled_as_path(text.replace(CONTAINER_PATH, inside), first)

    def fill_on_host(text: str) -> str | None:
        """A path on the host, or an argument of a program there."""
        if container_path and CONTAINER_PATH in text:
            entry = f"the entry {made.entry.name!r} uses it on the host, in {text!r}"
            raise ValueError(f"containerPath {container_path!r}: a claim cannot choose it, since {entry}")
        return fill(text)

    for node in container.device_nodes:
        path, host_path = (fill if node.host_path else fill_on_host)(node.path), fill_on_host(node.host_path)
        if path and (host_path or not node.host_path):
            nodes.append(DeviceNode(path=path, host_path=host_path or "", permissions=node.permissions))
    _check_places(nodes)
    variables = {name: filled(text.replace(CONTAINER_PATH, inside), first) for name, text in container.env.items()}
    return ContainerEdits(
        env=tuple(f"{name}={value}" for name, value in variables.items() if value is not None),
        device_nodes=tuple(nodes),
        net_devices=tuple(net_devices(made)),
        mounts=tuple(_mounts(made, fill, fill_on_host)),
        hooks=tuple(hook_of(hook, tuple(fill_on_host(text) or "" for text in hook.args)) for hook in container.hooks),
        additional_gids=container.additional_gids,
    )


def _mounts(
    made: HostDevice, fill: Callable[[str], str | None], fill_on_host: Callable[[str], str | None]
) -> Iterator[Mount]:
    """Those whose facts the device has."""
    for mount in made.entry.container.mounts:
        source, target = fill_on_host(mount.host_path), fill(mount.container_path)
        if source and (target or not mount.container_path):
            yield Mount(host_path=source, container_path=target or source, options=mount.options)


def owned(made: HostDevice) -> tuple[str, ...]:
    """Paths and numbers of its nodes and of those to the same hardware, and its network interfaces.

    No other claim may have these meanwhile. A further node whose path has no facts, such as /dev/vfio/vfio, is for all.
    """
    first = made.parts[0]
    texts = (node.host_path or node.path for node in made.entry.container.device_nodes)
    own = (text for text in texts if CONTAINER_PATH not in text and any(facts_in(text)))
    further = (filled_as_path(text, first) for text in own)
    parts: list[str] = []
    for path in (*(node.path for node in made.nodes), *further):
        if path:
            number = first.tree.number(path)
            numbers = [number, *reached(number, first.tree)] if number else []
            parts += [path, *(f"{each.type} {each}" for each in numbers)]
    parts += [f"{OWNS}{interface}" for interface in moved_interfaces(made)]
    return tuple(dict.fromkeys(parts))


def _check(container_path: str, made: HostDevice) -> None:
    parts = container_path.split("/")
    if (
        len(made.nodes) > 1
        or parts[0]
        or ".." in parts
        or not container_path.isprintable()
        or not any(part not in ("", ".") for part in parts)
    ):
        raise ValueError(
            f"containerPath {container_path!r}: must begin with '/', name a file and have no '..', and the device must "
            "have one node"
        )


def _check_places(nodes: list[DeviceNode]) -> None:
    """Raise ValueError if two nodes of the host would be one in the container."""
    seen: dict[str, str] = {}
    for node in nodes:
        if seen.setdefault(node.path, node.source) != node.source:
            raise ValueError(
                f"its nodes {seen[node.path]} and {node.source} are both {node.path} in containers: write {{node}} "
                "into container.path"
            )


def _nodes(made: HostDevice, path: str) -> Iterator[DeviceNode]:
    for node in made.nodes:
        inside = filled_as_path(path, node) or node.found
        yield DeviceNode(
            path=inside,
            host_path=node.found if inside != node.found else "",
            permissions=made.entry.container.permissions,
        )


def net_devices(made: HostDevice) -> Iterator[NetDevice]:
    """Yield the interfaces that move into a container with the device. Raises CdiError or ValueError."""
    first = made.parts[0]
    for device in made.entry.container.net_devices:
        interface, name = (filled_as_path(text, first) for text in (device.host_interface_name, device.name))
        if interface and (name or not device.name):
            yield NetDevice(host_interface_name=interface, name=name or interface)


def moved_interfaces(made: HostDevice) -> list[str]:
    """Return the interfaces that a pod takes from the node, by CDI or by a hook. A hook may move what was found."""
    names = [device.host_interface_name for device in net_devices(made)]
    if made.entry.container.hooks and made.entry.shares == 1:
        names += [part.known["node"] for part in made.parts if part.known.get("subsystem") == "net"]
    return list(dict.fromkeys(names))


def network_of(made: HostDevice) -> NetworkDeviceData | None:
    """Return how the first interface of a device is called in the container, and its hardware address."""
    for device in net_devices(made):
        address = made.parts[0].tree.text(f"/sys/class/net/{device.host_interface_name}/address")
        return NetworkDeviceData(interface_name=device.name, hardware_address=address or "")
    return None


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


class Parameters(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The configuration that a claim or a class may have for a device."""

    container_path: str = ""


class HostdevDriver(Driver):
    """Prepares the devices that ``look`` finds, which blocks; ``health`` tells which are there."""

    def __init__(
        self,
        name: str,
        look: Callable[[], Found],
        health: Callable[[], AsyncIterator[Sequence[DeviceHealth]]],
        in_pods: InPods | None = None,
    ) -> None:
        self._name = name
        self._in_pods = in_pods or InPods(HostTree())
        self._look = look
        self._health = health

    def health(self) -> AsyncIterator[Sequence[DeviceHealth]]:
        """A device that is gone is unhealthy."""
        return self._health()

    async def prepare(self, claim: ResourceClaim) -> Prepared:
        """Give the nodes of each device. Raises ClaimError for a device that is gone."""
        results = results_for(self._name, claim)
        found = await asyncio.to_thread(self._look)
        return _numbered([self._prepared(claim, result, found) for result in results])

    def _prepared(self, claim: ResourceClaim, result: DeviceRequestAllocationResult, found: Found) -> PreparedDevice:
        made = found.devices.get(result.device)
        if made is None:
            for uid, device in self._in_pods.devices():
                if uid == claim.metadata.uid and (device.device, device.requests) == (result.device, (result.request,)):
                    return device  # the claim's own pod has the interface
            why = "; ".join(problem for problem in found.problems) or "plug it in again, or delete the pod"
            raise ClaimError(f"device {result.device} is gone: {why}")
        path = ""
        for config in configs_for(self._name, claim, result, Parameters):
            path = config.parameters.container_path or path
        try:
            return PreparedDevice.of(
                result,
                edits=edits_of(made, path),
                attributes=made.published.attributes,
                network=network_of(made),
                owns=found.owned[made.name],
            )
        except (CdiError, ValueError) as error:
            raise ClaimError(f"device {result.device}: {error}") from error


def _numbered(prepared: list[PreparedDevice]) -> list[PreparedDevice]:
    """With a number for each device in the names of variables that several of them have: ``PORT_0`` beside ``PORT``.

    A container that gets them all sees of ``PORT`` the last one only.
    """
    edits = [device.edits or ContainerEdits() for device in prepared]
    counts = Counter(name for each in edits for name in each.environment())
    seen: Counter[str] = Counter()
    numbered = []
    for device, each in zip(prepared, edits, strict=True):
        more = []
        for name, value in each.environment().items():
            if counts[name] > 1:
                more.append(f"{name}_{seen[name]}={value}")
                seen[name] += 1
        numbered.append(replace(device, edits=each + ContainerEdits(env=tuple(more))) if more else device)
    return numbered
