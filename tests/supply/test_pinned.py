"""What others publish is taken by its hash where CI runs it: a moved tag or a replaced file changes nothing here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from dra_api import yaml_text

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yaml"))
LOCKS = sorted(ROOT.glob("requirements*.lock"))


def steps(workflow: Path) -> list[dict[str, Any]]:
    """The steps of all jobs that use an action."""
    jobs = yaml_text.load(workflow.read_text())["jobs"].values()
    return [step for job in jobs for step in job["steps"] if "uses" in step]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_name_actions_by_commit_and_keep_no_credentials(workflow: Path) -> None:
    assert steps(workflow)
    for step in steps(workflow):
        assert re.fullmatch(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}", step["uses"]), step["uses"]
        if step["uses"].startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


def test_helm_is_fetched_by_its_hash() -> None:
    script = (ROOT / ".ci/helm").read_text()
    assert "--require-hashes" in script
    assert re.search(r"sha256:[0-9a-f]{64}\b", script)


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_what_is_installed_is_locked_by_hash(lock: Path) -> None:
    lines = lock.read_text().replace("\\\n", " ").splitlines()
    assert all("--hash=sha256:" in line for line in lines if "==" in line)
    assert any("==" in line for line in lines)


def test_scripts_install_by_the_hashes_of_a_lock_and_nothing_by_name() -> None:
    """Each line that installs names a lock. uv checks the hashes of constraints; pip has to be told to."""
    texts = [path.read_text() for path in (ROOT / "Makefile", *sorted((ROOT / ".ci").iterdir()))]
    lines = [line for text in texts for line in re.sub(r"\\\n\s*", " ", text).splitlines()]
    installs = [line for line in lines if re.search(r"(pip (install|download)|\$\((UV|PIP)\)) ", line)]
    fetched = [line for line in installs if not re.match(r"\w+ =", line) and "--no-deps" not in line]
    assert fetched
    for line in fetched:
        assert re.search(r"--require-hashes|\$\(PINNED\)", line), line
    (pinned,) = [line for line in lines if line.startswith("PINNED = ")]
    assert pinned.split()[2:] == [
        *("--constraint", "requirements.lock"),
        *("--build-constraint", "requirements-build.lock"),
    ]


def test_the_program_that_draws_diagrams_is_fetched_by_its_hash_and_part_of_the_site() -> None:
    script = (ROOT / ".ci/mermaid").read_text()
    assert re.search(r"^hash=[\w+/]{86}==$", script, re.MULTILINE)
    assert "extra_javascript: [mermaid.min.js]" in (ROOT / "mkdocs.yml").read_text()
    assert ".ci/mermaid\n" in (ROOT / "Makefile").read_text().partition("\ndocs:")[2].partition("\n\n")[0]
