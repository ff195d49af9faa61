"""What one look at the host finds: devices that can be published, with their nodes."""

from __future__ import annotations

import glob
from dataclasses import dataclass, field
from functools import cached_property

from dra_api.resource import Device

from .config import Entry
from .facts import Facts


@dataclass(frozen=True)
class HostDevice:
    """A device that can be published: its entry, and the device nodes (or folders in sysfs) that belong to it."""

    entry: Entry
    parts: tuple[Facts, ...]
    published: Device

    @property
    def name(self) -> str:
        """Its name in the pool."""
        return self.published.name

    @cached_property
    def nodes(self) -> tuple[Facts, ...]:
        """Its device nodes: each with the facts of its part, as the node that was found."""
        found = {
            path: Facts(part.tree, path, part.folder, path, part.number)
            for part in self.parts
            for path in self._paths(part)
        }
        return tuple(found.values())

    def _paths(self, part: Facts) -> list[str]:
        folders = [
            folder
            for pattern in self.entry.nodes
            for folder in part.tree.glob(f"{glob.escape(part.folder or '')}/{pattern}")
        ]
        below = [part.tree.node_in(folder) for folder in folders]
        return list(dict.fromkeys(path for path in (part.path, *below) if path))


@dataclass(frozen=True)
class Found:
    """One look at the host.

    ``owned`` says by device what of the host belonged to it alone when it was looked at: read later, the number of a
    node that was pulled meanwhile would be missing, and the device would seem to be another one.
    """

    devices: dict[str, HostDevice] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    owned: dict[str, tuple[str, ...]] = field(default_factory=dict)
