"""The checks as tests of a driver's own test-suite."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONFTEST = f"""
import sys
import pytest
from dra_driver_test.kit import Target

pytest_plugins = ["dra_driver_test.pytest_plugin"]

@pytest.fixture(scope="session")
def dra_target():
    bad = {str(ROOT / "tests/support/bad_driver_process.py")!r}
    return Target(command=(sys.executable, bad, "{{kubelet}}", "it lends a device twice"))
"""
TEST = """
def test_driver(dra_check):
    dra_check()
"""


def suite(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_driver.py").write_text(TEST)
    call = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", *arguments, str(folder)]
    return subprocess.run(call, capture_output=True, text=True, cwd=folder, check=False)


def test_each_check_is_a_test(tmp_path: Path) -> None:
    patterns = ["prepare.answers-a-claim", "configuration.that-is-bad-is-refused", "claims.do-not-take-a-device-in-use"]
    done = suite(tmp_path, *(word for pattern in patterns for word in ("--dra-check", pattern)))
    assert done.returncode == 0, done.stdout
    assert "PASSED test_driver.py::test_driver[prepare.answers-a-claim]" in done.stdout
    assert "SKIPPED" in done.stdout
    assert "no bad parameters are known" in done.stdout
    assert "Recommended: claims.do-not-take-a-device-in-use" in done.stdout
