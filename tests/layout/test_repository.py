"""What a repository's hosts and tools read: hooks, workflow, templates."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
TEMPLATES = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
WORKFLOW = ROOT / ".github/workflows/ci.yaml"
HEADLAMP = WORKFLOW.with_name("headlamp.yaml")
TOP = {
    ".ci", ".dockerignore", ".github", ".gitignore", ".pre-commit-config.yaml", "CHANGELOG.md",
    "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "Dockerfile", "LICENSE", "Makefile", "README.md", "SECURITY.md",
    "benchmarks", "cel", "conformance", "devcluster", "docs", "examples", "hatch_build.py", "headlamp", "kube",
    "kubeletplugin", "ledger", "manifests", "mkdocs.yml", "operator", "proto", "pyproject.toml",
    "requirements-audit.lock", "requirements-build.lock", "requirements-image.lock", "requirements-uv.lock",
    "requirements.lock", "simulator", "supply", "tests",
}  # fmt: skip
"""Files and folders at the top of the repository."""


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def test_hooks_call_programs_of_the_environment() -> None:
    (repository,) = load(ROOT / ".pre-commit-config.yaml")["repos"]
    programs = {Path(hook["entry"].split()[0]) for hook in repository["hooks"]}
    assert {program.parent for program in programs} == {Path(".venv/bin")}
    assert {program for program in programs if not (Path(sys.executable).parent / program.name).exists()} == set()


def test_the_workflow_runs_what_ci_runs_on_the_pythons_that_it_asks_for() -> None:
    steps = load(WORKFLOW)["jobs"]["run"]["steps"]
    (pythons,) = [step["with"]["python-version"].split() for step in steps if "setup-python" in step.get("uses", "")]
    script = (ROOT / ".ci/run").read_text()
    assert [version for version in pythons if f".ci/python {version}" not in script] == []
    assert script.count(".ci/python ") == len(pythons)
    assert [step["run"] for step in steps if "run" in step] == [".ci/run"]


def test_the_plugin_for_headlamp_is_built_from_its_lock_and_without_scripts_of_others() -> None:
    commands = [step["run"] for step in load(HEADLAMP)["jobs"]["build"]["steps"] if "run" in step]
    assert commands[0].startswith("npm ci --ignore-scripts")
    package = json.loads((ROOT / "headlamp/package.json").read_text())
    lock = json.loads((ROOT / "headlamp/package-lock.json").read_text())["packages"]
    assert {command.split()[-1] for command in commands[1:]} == package["scripts"].keys()
    assert lock[""]["devDependencies"] == package["devDependencies"]
    assert [name for name, one in lock.items() if name and not one.get("integrity", "").startswith("sha512-")] == []
    assert all(version[0].isdigit() for version in package["devDependencies"].values())


def test_nothing_unexpected_stands_at_the_top() -> None:
    """A script that takes a flag for the name of its output leaves a file named ``--help`` there.

    Files that are not tracked may be those of whoever runs the tests, such as a log.
    """
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    found = {name.partition("/")[0] for name in listed.split("\0") if name and (ROOT / name).exists()}
    assert found == TOP


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_a_template_has_what_the_host_asks_for(path: Path) -> None:
    template = load(path)
    if path.name == "config.yml":
        assert {key for link in template["contact_links"] for key in link} == {"name", "url", "about"}
        return
    assert {"name", "description", "body"} <= set(template)
    ids = [field["id"] for field in template["body"]]
    assert len(set(ids)) == len(ids)
    assert all(field["type"] in {"input", "textarea"} and field["attributes"]["label"] for field in template["body"])
