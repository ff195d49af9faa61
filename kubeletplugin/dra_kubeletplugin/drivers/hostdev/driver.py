"""What a container gets of a host device: its nodes, and what the entry of the configuration adds.

The host is looked at again for each claim, so that a device that was plugged in again is given with its present number.
A claim may say where the node is to be, with the configuration ``{"containerPath": "/dev/modem"}``.
"""

from __future__ import annotations

import asyncio
import glob
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

import msgspec
from dra_api.resource import DeviceRequestAllocationResult, ResourceClaim

from dra_kubeletplugin import (
    CdiError,
    ClaimError,
    ContainerEdits,
    DeviceHealth,
    DeviceNode,
    Driver,
    Mount,
    Prepared,
    PreparedDevice,
    configs_for,
    results_for,
)

from . import template
from .config import CONTAINER_PATH, hook_of
from .facts import Facts
from .scan import Found, HostDevice


class Parameters(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The configuration that a claim or a class may have for a device."""

    container_path: str = ""


class HostdevDriver(Driver):
    """Prepares the devices that ``look`` finds, which blocks; ``health`` tells which are there."""

    def __init__(
        self, name: str, look: Callable[[], Found], health: Callable[[], AsyncIterator[Sequence[DeviceHealth]]]
    ) -> None:
        self._name = name
        self._look = look
        self._health = health

    def health(self) -> AsyncIterator[Sequence[DeviceHealth]]:
        """A device that is gone is unhealthy."""
        return self._health()

    async def prepare(self, claim: ResourceClaim) -> Prepared:
        """Give the nodes of each device. Raises ClaimError for a device that is gone."""
        results = results_for(self._name, claim)
        found = await asyncio.to_thread(self._look)
        return [self._prepared(claim, result, found) for result in results]

    def _prepared(self, claim: ResourceClaim, result: DeviceRequestAllocationResult, found: Found) -> PreparedDevice:
        made = found.devices.get(result.device)
        if made is None:
            why = "; ".join(problem for problem in found.problems) or "plug it in again, or delete the pod"
            raise ClaimError(f"device {result.device} is not there any more: {why}")
        path = ""
        for config in configs_for(self._name, claim, result, Parameters):
            path = config.parameters.container_path or path
        try:
            return PreparedDevice.of(result, edits=edits_of(made, path))
        except (CdiError, ValueError) as error:
            raise ClaimError(f"device {result.device}: {error}") from error


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
    variables = {
        name: template.filled(text.replace(CONTAINER_PATH, inside), first) for name, text in container.env.items()
    }
    mounts = [(fill_on_host(mount.host_path), fill(mount.container_path), mount) for mount in container.mounts]
    return ContainerEdits(
        env=tuple(f"{name}={value}" for name, value in variables.items() if value is not None),
        device_nodes=tuple(nodes),
        mounts=tuple(
            Mount(host_path=source, container_path=target or source, options=mount.options)
            for source, target, mount in mounts
            if source and (target or not mount.container_path)
        ),
        hooks=tuple(hook_of(hook, tuple(fill_on_host(text) or "" for text in hook.args)) for hook in container.hooks),
        additional_gids=container.additional_gids,
    )


def _check(container_path: str, made: HostDevice) -> None:
    parts = container_path.split("/")
    if len(made.parts) > 1 or parts[0] or ".." in parts or not any(part not in ("", ".") for part in parts):
        raise ValueError(
            f"containerPath {container_path!r}: must begin with '/', name a file and have no '..', and the device must "
            "have one node"
        )


def _nodes(made: HostDevice, path: str) -> Iterator[DeviceNode]:
    for part in made.parts:
        for node in _node_paths(made, part):
            facts = Facts(part.tree, node, part.folder, node, part.number)
            inside = template.filled_as_path(path, facts) or node
            yield DeviceNode(
                path=inside,
                host_path=node if inside != node else "",
                permissions=made.entry.container.permissions,
            )


def _node_paths(made: HostDevice, part: Facts) -> list[str]:
    folders = [
        folder
        for pattern in made.entry.nodes
        for folder in part.tree.glob(f"{glob.escape(part.folder or '')}/{pattern}")
    ]
    below = [part.tree.node_in(folder) for folder in folders]
    return list(dict.fromkeys(path for path in (part.path, *below) if path))


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")
