"""The script of docs/driver-test.md for CI: its commands, with the files that ``dra-kubelet-plugin new`` writes."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

from dra_devcluster.cli import parser as devcluster_parser
from dra_kubeletplugin.commands.subcommands import create
from pages import PAGES

PAGE = next(page for page in PAGES if page.name == "docs/driver-test.md")
(SCRIPT,) = PAGE.blocks("bash")


def test_the_commands_are_as_the_programs_have_them() -> None:
    subprocess.run(["bash", "-n", "-c", SCRIPT], check=True)
    ours = [line.removesuffix(" &") for line in SCRIPT.splitlines() if line.startswith("dra-devcluster ")]
    assert ours
    for line in ours:
        devcluster_parser().parse_args(shlex.split(line)[1:])  # ends the test if it is wrong


def test_the_files_are_those_of_a_new_driver(tmp_path: Path) -> None:
    written = {path.name: path.read_text() for path in create("gpu.example.com", tmp_path / "gpu")}
    named = re.findall(r"\b(?:gpu_driver|pod)\.\w+", SCRIPT)
    assert named
    for name in named:
        assert name in written
    manifests = written["gpu_driver.yaml"] + written["pod.yaml"]
    for name in ("gpu-driver", "gpu-test"):
        assert f"name: {name}\n" in manifests
        assert name in SCRIPT
