"""What of CDI edits a plain process gets, and what the host lacks for them.

A container here is a process of the host: variables apply to it, and the device nodes and mounts that the edits name
are the host's own. Everything else needs a container, and is reported as not carried out.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from dra_cdi import ContainerEdits, DeviceNode, Mount

_TYPES = {stat.S_IFBLK: "b", stat.S_IFCHR: "c", stat.S_IFIFO: "p"}


def not_carried_out(edits: ContainerEdits) -> list[str]:
    """Fields that ask for what a plain process cannot have."""
    left_out = {
        "hooks": edits.hooks,
        "netDevices": edits.net_devices,
        "intelRdt": edits.intel_rdt,
        "additionalGids": edits.additional_gids,
    }
    return [f"CDI {name}" for name, value in left_out.items() if value]


def missing_on_host(edits: ContainerEdits) -> list[str]:
    """Why a container runtime could not carry out the edits on this host, one text for each entry."""
    return [*_missing_nodes(edits.device_nodes), *_missing_mounts(edits.mounts)]


def _missing_nodes(nodes: tuple[DeviceNode, ...]) -> Iterator[str]:
    """A node with type and number is made as described; of others, the host's node says what they are."""
    for node in nodes:
        if node.type and (node.major or node.type == "p"):
            continue
        try:
            mode = os.lstat(node.source).st_mode
        except OSError as error:
            yield f"device node {node.source}: {error.strerror}"
            continue
        found = _TYPES.get(stat.S_IFMT(mode))
        if found is None:
            yield f"{node.source} is not a device node"
        elif node.type not in ("", found):
            yield f"device node {node.source} has the type {found}, not {node.type}"


def _missing_mounts(mounts: tuple[Mount, ...]) -> Iterator[str]:
    for mount in mounts:
        if mount.type in ("", "bind") and not os.path.exists(mount.host_path):
            yield f"mount {mount.host_path}: No such file or directory"
