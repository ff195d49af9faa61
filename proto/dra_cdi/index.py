"""All devices of all files, and what ids mean together. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from .edits import ContainerEdits
from .errors import CdiError
from .spec import CdiSpec


@dataclass(slots=True)
class CdiIndex:
    """``devices`` by id; ``errors`` by the name of the file that cannot be used."""

    devices: dict[str, tuple[CdiSpec, ContainerEdits]] = field(default_factory=dict)
    conflicts: set[str] = field(default_factory=set)
    errors: dict[str, CdiError] = field(default_factory=dict)

    def add(self, spec: CdiSpec) -> None:
        """Take in a file. A device that two files describe cannot be resolved."""
        for device in spec.devices:
            key = f"{spec.kind}={device.name}"
            if key in self.devices:
                self.conflicts.add(key)
            self.devices[key] = (spec, device.container_edits)

    def resolve(self, ids: Iterable[str]) -> ContainerEdits:
        """The edits for these devices together: a file's own edits once, then each device's.

        Raises CdiError, which names the devices that cannot be resolved and the files that could not be read.
        """
        ids = list(dict.fromkeys(ids))
        missing = [key for key in ids if key not in self.devices or key in self.conflicts]
        if missing:
            broken = "".join(f"; {file}: {error}" for file, error in sorted(self.errors.items()))
            twice = [key for key in missing if key in self.conflicts]
            clash = f"; described by several files: {', '.join(twice)}" if twice else ""
            raise CdiError(f"unresolvable CDI devices {', '.join(missing)}{clash}{broken}")
        edits = ContainerEdits()
        seen: list[CdiSpec] = []
        for key in ids:
            spec, device_edits = self.devices[key]
            if not any(spec is other for other in seen):
                seen.append(spec)
                edits += spec.container_edits or ContainerEdits()
            edits += device_edits
        return edits
