"""Files and folders of a node: replaced in one step, and found below the node's own folder.

Several nodes share the machine, so each has a folder of its own for the files that a kubelet and a container runtime
keep in fixed places. Containers and plugins know the fixed paths.
"""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath


def write_whole(path: Path, content: bytes) -> None:
    """Replace the file, and make its folder if that is missing. Raises OSError; the old file stays then."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_bytes(content)
    os.replace(temporary, path)


KUBELET_ROOT = "/var/lib/kubelet"
_CDI = ("/var/run/cdi", "/run/cdi", "/etc/cdi")


class HostPaths:
    """The mapping of one node. All other paths are those of the machine."""

    def __init__(self, root: Path, cdi_root: Path) -> None:
        self._places = {KUBELET_ROOT: root.absolute()} | dict.fromkeys(_CDI, cdi_root.absolute())

    def real(self, path: str) -> Path:
        """Where a path of the node lies on this machine."""
        asked = PurePosixPath(path)
        for place, real in self._places.items():
            if asked.is_relative_to(place):
                return real / asked.relative_to(place)
        return Path(path)
