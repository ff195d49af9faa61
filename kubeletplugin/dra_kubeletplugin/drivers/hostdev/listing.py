"""``--list``: what the file finds on this host, as YAML for a person."""

from __future__ import annotations

from collections.abc import Iterator

import yaml
from dra_api.codec import to_dict

from .config import HostdevConfig
from .device import Found
from .edits import edits_of
from .tree import HostTree


def listing(config: HostdevConfig, tree: HostTree, found: Found) -> str:
    """The devices as they would be published, with what containers get, and why others are left out.

    ``foundNothing`` has the patterns that match nothing, and the entries without devices.
    """
    devices = [
        {"device": to_dict(made.published), "containerEdits": to_dict(edits_of(made))}
        for made in found.devices.values()
    ]
    listed = {"devices": devices, "leftOut": list(found.problems), "foundNothing": list(_nothing(config, tree, found))}
    return yaml.safe_dump(listed, sort_keys=False, width=120)


def _nothing(config: HostdevConfig, tree: HostTree, found: Found) -> Iterator[str]:
    for entry in config.devices:
        empty = [pattern for pattern in (*entry.paths, *entry.sysfs) if not tree.glob(pattern)]
        yield from (f"entry {entry.name!r}: {pattern} matches nothing on this host" for pattern in empty)
        is_used = any(made.entry is entry for made in found.devices.values())
        if not is_used and len(empty) < len(entry.paths + entry.sysfs):
            kind = "folder of a device" if entry.sysfs else "device node"
            facts = f" with the facts {', '.join(entry.match)} that match asks for" if entry.match else ""
            yield f"entry {entry.name!r}: its patterns match no {kind}{facts}, or only some that are left out"
