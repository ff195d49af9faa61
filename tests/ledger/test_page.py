"""The page for Python authors: its code runs as it stands, and so do its commands."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from dra_devcluster.cluster import DevCluster
from dra_kube import DEVICE_CLASSES, RESOURCE_SLICES, Api
from dra_ledger.cli import main
from pages import Page

PAGE = Page("docs/ledger.md")
TEN_LINES, LIVE = PAGE.blocks("python")
POOL = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
TAINTED = {"name": "gpu-1", "taints": [{"key": "broken", "effect": "NoSchedule"}]}
SLICE: dict[str, Any] = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceSlice",
    "metadata": {"name": "s"},
    "spec": {"driver": "gpu.example.com", "nodeName": "n1", "pool": POOL, "devices": [{"name": "gpu-0"}, TAINTED]},
}
RESULT = {"request": "gpu", "driver": "gpu.example.com", "pool": "n1", "device": "gpu-0"}
CLAIM = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"namespace": "ml", "name": "train"},
    "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}},
    "status": {
        "allocation": {"devices": {"results": [RESULT]}},
        "reservedFor": [{"resource": "pods", "name": "train-0", "uid": "u"}],
    },
}
CLASS = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {}}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With ``cluster.json``, as the command on the page writes it."""
    (tmp_path / "cluster.json").write_text(json.dumps({"kind": "List", "items": [SLICE, CLAIM, CLASS]}))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_ten_lines_say_who_holds_what(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len([line for line in TEN_LINES.splitlines() if line]) <= 10
    exec(compile(TEN_LINES, "docs/ledger.md", "exec"), {})  # it is the page's own
    assert capsys.readouterr().out.splitlines() == [
        "n1 gpu.example.com/n1/gpu-0 ml/train ('train-0',) {}",
        "gpu.example.com/n1/gpu-1 tainted broken:NoSchedule",
        "gpu: 0 of 2 devices are free, 1 claims hold some",
    ]


def test_the_commands_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands = [line.command for block in PAGE.console() for line in block if line.command.startswith("dra-ledger")]
    assert len(commands) == 3
    for command in commands:
        words = shlex.split(command.partition(">")[0])
        assert main(words[1:]) == 0
        assert "gpu" in capsys.readouterr().out


async def test_a_live_ledger_follows_an_api_server() -> None:
    """The ``kubernetes`` package lists and watches the development cluster."""
    asked = "\nprint([(device.id, device.state) for device in ledger.devices()])"
    with tempfile.TemporaryDirectory(prefix="l-") as made:
        async with DevCluster(Path(made), nodes=0) as cluster:
            environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
            async with Api(cluster.connection()) as api:
                for resource, obj in ((RESOURCE_SLICES, SLICE), (DEVICE_CLASSES, CLASS)):
                    await api.create(resource, obj)
            done = await asyncio.to_thread(
                subprocess.run,
                [sys.executable, "-c", LIVE + asked],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == (
        "[('gpu.example.com/n1/gpu-0', 'free'), ('gpu.example.com/n1/gpu-1', 'tainted')]"
    )
