"""What a repository's hosts and tools read: hooks, workflow, templates."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
TEMPLATES = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
WORKFLOW = ROOT / ".github/workflows/ci.yaml"


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
