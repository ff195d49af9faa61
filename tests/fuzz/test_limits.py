"""No file is read without a limit: one that is too large is refused by name, not read until memory ends."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from dra_cdi import CdiDirectory, CdiError
from dra_devcluster.agent.checkpoint import CheckpointFile
from dra_devcluster.agent.errors import CheckpointCorrupted as NodeCheckpointCorrupted
from dra_kube import ConnectionSettingsError, connection
from dra_kubeletplugin import SettingsError
from dra_kubeletplugin.drivers import read_file
from dra_kubeletplugin.drivers.hostdev.config import HostdevConfig
from dra_kubeletplugin.errors import CheckpointCorrupted
from dra_kubeletplugin.files.checkpoint import ClaimRecords


def cdi(path: Path) -> None:
    raise CdiDirectory(path.parent).index().errors[path.name]


READERS: dict[str, tuple[Callable[[Path], object], type[Exception]]] = {
    "a CDI file": (cdi, CdiError),
    "a plugin's record of a claim": (lambda path: ClaimRecords(path.parent).read(path.stem), CheckpointCorrupted),
    "the checkpoint of the node agent": (lambda path: CheckpointFile(path).load(), NodeCheckpointCorrupted),
    "the configuration of a driver": (lambda path: read_file(path, HostdevConfig), SettingsError),
    "a kubeconfig": (connection, ConnectionSettingsError),
}


@pytest.mark.parametrize(("read", "error"), READERS.values(), ids=READERS)
def test_a_file_that_is_too_large_is_refused(
    tmp_path: Path, read: Callable[[Path], object], error: type[Exception]
) -> None:
    path = tmp_path / "claim.json"
    path.touch()
    os.truncate(path, 1 << 36)  # takes no room on the disk
    with pytest.raises(error, match=r"larger than \d+ MiB"):
        read(path)
