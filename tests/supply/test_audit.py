"""An audit that looked nothing up is never taken for one that found nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from dra_api import yaml_text

ROOT = Path(__file__).resolve().parents[2]
GOOD = {"name": "kopf", "version": "1.45.2", "vulns": []}
FLAW = {"id": "PYSEC-2026-1", "fix_versions": ["3.0", "3.1"], "aliases": [], "description": "x"}
BAD = {"name": "jinja2", "version": "2.4.1", "vulns": [FLAW]}
UNFIXED = {"name": "old", "version": "1.0", "vulns": [FLAW | {"fix_versions": []}]}
UNKNOWN = {"name": "private", "skip_reason": "Dependency not found on PyPI and could not be audited: private (1.0)"}


def audit(tmp_path: Path, stdout: str, stderr: str, code: int) -> tuple[int, str]:
    """Our exit code and words when pip-audit prints and ends like this."""
    program = tmp_path / "pip-audit"
    for name, text in (("out", stdout), ("err", stderr)):
        (tmp_path / name).write_text(text)
    program.write_text(f"#!/bin/sh\ncat {tmp_path}/out\ncat {tmp_path}/err >&2\nexit {code}\n")
    program.chmod(0o755)
    done = subprocess.run(
        [sys.executable, ROOT / "supply/audit.py", program], capture_output=True, text=True, check=False
    )
    assert bool(done.stdout) == (done.returncode == 0)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("packages", "theirs", "ours", "said"),
    [
        pytest.param([GOOD], 0, 0, ["1 of 1 packages have no known vulnerability"], id="clean"),
        pytest.param([GOOD, BAD], 1, 1, ["VULNERABLE: jinja2 2.4.1: PYSEC-2026-1, fixed in 3.0, 3.1"], id="vulnerable"),
        pytest.param([UNFIXED], 1, 1, ["old 1.0: PYSEC-2026-1, fixed in no version yet"], id="not fixed"),
        pytest.param(
            [UNKNOWN], 0, 75, ["NOT AUDITED: the service does not know 1 of 1 packages: private"], id="none known"
        ),
        pytest.param([GOOD, UNKNOWN], 0, 75, ["NOT AUDITED", "1 of 2 packages have no known"], id="one not known"),
        pytest.param([BAD, UNKNOWN], 1, 1, ["VULNERABLE: jinja2", "NOT AUDITED"], id="vulnerable, and one not known"),
        pytest.param([], 0, 2, ["the report names no package"], id="nothing"),
    ],
)
def test_a_report_is_judged(tmp_path: Path, packages: list[Any], theirs: int, ours: int, said: list[str]) -> None:
    code, words = audit(tmp_path, json.dumps({"dependencies": packages, "fixes": []}), "", theirs)
    assert code == ours
    assert [part for part in said if part not in words] == []


@pytest.mark.parametrize(
    ("stdout", "stderr", "ours"),
    [
        pytest.param(
            "", "Traceback:\nConnectionError: Max retries exceeded with url: /pypi/x/json", 75, id="no network"
        ),
        pytest.param(
            "", "cause: Failed to fetch: https://pypi.org/\n  cause: Connection refused", 75, id="no pip-audit"
        ),
        pytest.param("", "ERROR:pip_audit._cli:requirement x==1 does not contain a hash", 2, id="a broken lock"),
        pytest.param("", "", 2, id="no words"),
        pytest.param("{}", "", 2, id="another shape"),
        pytest.param('{"dependencies": [{"name": "x"}]}', "", 2, id="a package without verdict"),
        pytest.param('{"dependencies": ["x"]}', "", 2, id="a package that is a text"),
    ],
)
def test_an_audit_without_report_is_no_success(tmp_path: Path, stdout: str, stderr: str, ours: int) -> None:
    code, words = audit(tmp_path, stdout, stderr, 1)
    assert code == ours
    assert words.startswith("audit: NOT AUDITED: nothing was looked up" if ours == 75 else "audit: FAILED: ")
    assert stderr.rpartition("\n")[2].strip() in words


def test_a_missing_pip_audit_is_no_vulnerability() -> None:
    command = [sys.executable, str(ROOT / "supply/audit.py"), "/no/such/program"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "FAILED" in done.stderr, "Traceback" in done.stderr) == (2, True, False)


@pytest.mark.parametrize(("code", "expected", "warned"), [(0, 0, False), (1, 1, False), (2, 2, False), (75, 0, True)])
def test_ci_warns_of_a_skipped_audit_and_fails_on_all_else(
    tmp_path: Path, code: int, expected: int, warned: bool
) -> None:
    steps = yaml_text.load((ROOT / ".github/workflows/audit.yaml").read_text())["jobs"]["audit"]["steps"]
    (script,) = [step["run"] for step in steps if step.get("name") == "audit"]
    stub = tmp_path / ".ci" / "audit"
    stub.parent.mkdir()
    stub.write_text(f"#!/bin/sh\nexit {code}\n")
    stub.chmod(0o755)
    done = subprocess.run(["bash", "-e", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, "::warning" in done.stdout) == (expected, warned)


def test_both_locks_are_audited_by_their_hashes() -> None:
    script = (ROOT / ".ci/audit").read_text()
    assert all(f"--requirement {lock}" in script for lock in ("requirements-image.lock", "requirements-build.lock"))
    assert "--require-hashes" in script
