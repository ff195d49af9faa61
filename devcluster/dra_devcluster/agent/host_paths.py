"""Which folders of this machine stand for those of a node.

Several nodes share the machine, so each has a folder of its own for what a kubelet and a container runtime keep in
fixed places. Paths that containers and plugins know are the fixed ones.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

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
