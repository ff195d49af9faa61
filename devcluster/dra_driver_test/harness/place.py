"""Where things are on the node that the bench plays: the kubelet's folders, the CDI folder, the kubeconfig."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Place:
    """The paths of one node. ``kubelet`` stands for ``/var/lib/kubelet``."""

    node: str
    kubelet: Path
    registry: Path
    cdi: Path
    kubeconfig: Path

    @classmethod
    def below(cls, folder: Path, node: str, kubeconfig: Path) -> Place:
        """A node of its own below a folder, whose path has to be short: a socket's path has at most 107 bytes."""
        return cls(node, folder, folder / "plugins_registry", folder / "cdi", kubeconfig)

    @property
    def plugins(self) -> Path:
        """Parent of the folders of drivers."""
        return self.kubelet / "plugins"

    @property
    def folders(self) -> tuple[Path, ...]:
        """Those that a node has before any driver runs."""
        return self.registry, self.plugins, self.cdi

    def create(self) -> None:
        """Make the folders that a node has before any driver runs."""
        for folder in self.folders:
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)

    def missing(self) -> list[str]:
        """Those of them that are not there any more."""
        return [str(folder) for folder in self.folders if not folder.is_dir()]

    def empty_run(self) -> None:
        """What a reboot does: ``/run``, and CDI files with it, starts empty. ``/var/lib/kubelet`` is kept."""
        _empty(self.cdi)

    def empty(self) -> None:
        """A node on which no driver ever ran."""
        for folder in self.folders:
            _empty(folder)


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
