"""An API server for a plugin, and the plugin's folders and settings."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from dra_kube import NODES, RESOURCE_CLAIMS
from dra_kubeletplugin import PluginSettings
from dra_kubeletplugin.testing.api import Json, PluginApi
from dra_kubeletplugin.testing.fixtures import driver_node
from node_world import MakeClaim, NodeWorld

__all__ = ["driver_node"]  # a fixture is used by its name

DRIVER = "gpu.example.com"
NODE = "worker-1"


@pytest.fixture
async def api() -> PluginApi:
    """An API server that knows the node of the tests."""
    fake = PluginApi()
    await fake.put(NODES, {"metadata": {"name": NODE, "uid": "node-uid"}})
    return fake


@pytest.fixture
def settings(short_path: Path) -> PluginSettings:
    """Settings with folders of their own; socket paths must be short."""
    return PluginSettings(
        driver_name=DRIVER, node_name=NODE, registry_dir=short_path, data_dir=short_path, cdi_dir=short_path / "cdi"
    )


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder whose sockets stay below the limit of 107 bytes, which ``tmp_path`` does not promise."""
    with tempfile.TemporaryDirectory(prefix="dra-") as folder:
        yield Path(folder)


@pytest.fixture
def claim(api: PluginApi) -> MakeClaim:
    """Makes an allocated claim: ``await claim("name", device="gpu-0", config=[...])``."""

    async def make(name: str, *, device: str = "gpu-0", request: str = "req", **changes: Any) -> Json:
        result = {"request": request, "driver": DRIVER, "pool": NODE, "device": device, **changes.get("result", {})}
        devices = {"results": [result, *changes.get("more", [])], "config": changes.get("config", [])}
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "metadata": {"namespace": "default", "name": name, "uid": changes.get("uid", f"uid-of-{name}")},
            "status": {"allocation": {"devices": devices}} if changes.get("allocated", True) else {},
        }
        return await api.put(RESOURCE_CLAIMS, body)

    return make


@pytest.fixture
def node(tmp_path: Path) -> NodeWorld:
    """The prepared claims of one node, without sockets."""
    return NodeWorld(tmp_path)


@pytest.fixture
def reboot(monkeypatch: pytest.MonkeyPatch, node: NodeWorld) -> Callable[[], None]:
    """The machine starts again, with an empty /run."""

    def boot() -> None:
        for name in ("files.checkpoint", "claims.prepared"):
            monkeypatch.setattr(f"dra_kubeletplugin.{name}.boot_id", lambda: "after-the-reboot")
        for path in (*node.cdi_files(), *node.hardware.iterdir()):
            path.unlink()
        node.start()

    return boot


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Fills the disk that has a folder: no file can be made there any more."""

    def fill(folder: Path) -> None:
        opened = os.open

        def refuse(path: Any, flags: int, *more: Any, **named: Any) -> int:
            if flags & os.O_CREAT and Path(path).is_relative_to(folder) and not os.path.exists(path):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            return opened(path, flags, *more, **named)

        monkeypatch.setattr("os.open", refuse)

    return fill
