"""The workflow of docs/driver-test.md: its commands, with the files that ``dra-kubelet-plugin new`` writes."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

from dra_api import yaml_text
from dra_devcluster.cli import parser as devcluster_parser
from dra_driver_test.cli import parser as kit_parser
from dra_kubeletplugin.commands.subcommands import create
from pages import PAGES

PAGE = next(page for page in PAGES if page.name == "docs/driver-test.md")
WORKFLOW = yaml_text.load(PAGE.blocks("yaml")[0])
SCRIPT = PAGE.blocks("bash")[0]


def test_the_commands_are_as_the_programs_have_them() -> None:
    steps = [step["run"] for step in WORKFLOW["jobs"]["driver"]["steps"] if "run" in step]
    for text in (*steps, SCRIPT):
        subprocess.run(["bash", "-n", "-c", text], check=True)
    lines = [line for text in (*steps, SCRIPT) for line in text.replace("\\\n", " ").splitlines()]
    parsers = {"dra-driver-test": kit_parser(), "dra-devcluster": devcluster_parser()}
    used = set()
    for words in (shlex.split(line.removesuffix(" &")) for line in lines):
        if parser := parsers.get(words[0] if words else ""):
            parser.parse_args(words[1:])  # ends the test if it is wrong
            used.add(words[0])
    assert used == parsers.keys()


def test_the_files_are_those_of_a_new_driver(tmp_path: Path) -> None:
    written = {path.name: path.read_text() for path in create("gpu.example.com", tmp_path / "gpu")}
    text = f"{WORKFLOW}{SCRIPT}"
    for name in re.findall(r"\b(?:gpu_driver|pod)\.\w+", text):
        assert name in written
    manifests = written["gpu_driver.yaml"] + written["pod.yaml"]
    for name in ("gpu-driver", "gpu-test"):
        assert f"name: {name}\n" in manifests
        assert name in SCRIPT
