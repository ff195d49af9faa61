"""What containers with a host device get, and what of the host belongs to it alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dra_api.resource import NetworkDeviceData

from dra_kubeletplugin import ContainerEdits, DeviceNode, Mount, NetDevice

from . import template
from .config import CONTAINER_PATH, hook_of
from .device import HostDevice
from .interfaces import OWNS


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
        return template.filled_as_path(text.replace(CONTAINER_PATH, inside), first)

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
    variables = {
        name: template.filled(text.replace(CONTAINER_PATH, inside), first) for name, text in container.env.items()
    }
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
    """Paths and numbers of its nodes, and its network interfaces: what no other claim may have meanwhile.

    A further node whose path has no facts, such as /dev/vfio/vfio, is for all.
    """
    first = made.parts[0]
    texts = (node.host_path or node.path for node in made.entry.container.device_nodes)
    own = (text for text in texts if CONTAINER_PATH not in text and any(template.names(text)))
    further = (template.filled_as_path(text, first) for text in own)
    parts: list[str] = []
    for path in (*(node.path for node in made.nodes), *further):
        if path:
            number = first.tree.number(path)
            parts += [path, f"{number.type} {number}"] if number else [path]
    parts += [f"{OWNS}{device.host_interface_name}" for device in net_devices(made)]
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
        inside = template.filled_as_path(path, node) or node.found
        yield DeviceNode(
            path=inside,
            host_path=node.found if inside != node.found else "",
            permissions=made.entry.container.permissions,
        )


def net_devices(made: HostDevice) -> Iterator[NetDevice]:
    """Yield the interfaces that move into a container with the device. Raises CdiError or ValueError."""
    first = made.parts[0]
    for device in made.entry.container.net_devices:
        interface, name = (template.filled_as_path(text, first) for text in (device.host_interface_name, device.name))
        if interface and (name or not device.name):
            yield NetDevice(host_interface_name=interface, name=name or interface)


def network_of(made: HostDevice) -> NetworkDeviceData | None:
    """Return how the first interface of a device is called in the container, and its hardware address."""
    for device in net_devices(made):
        address = made.parts[0].tree.text(f"/sys/class/net/{device.host_interface_name}/address")
        return NetworkDeviceData(interface_name=device.name, hardware_address=address or "")
    return None


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")
