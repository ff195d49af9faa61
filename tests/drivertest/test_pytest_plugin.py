"""The checks as tests of a driver's own test-suite."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pages import BY_NAME, ROOT
from rounds import LONG

CONFTEST, TEST = BY_NAME["docs/driver-test.md"].blocks("python")
MY_DRIVER = f"""
import os, sys
node, kubelet, cdi = sys.argv[1:]
bad = {str(ROOT / "tests/support/bad_driver.py")!r}
os.execv(sys.executable, [sys.executable, bad, kubelet, FAULT])
"""


def suite(folder: Path, *arguments: str, fault: str = "it lends a device twice") -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_driver.py").write_text(TEST)
    (folder / "my_driver.py").write_text(MY_DRIVER.replace("FAULT", repr(fault)))
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


@LONG
def test_a_check_that_is_not_judged_is_skipped_with_a_warning(tmp_path: Path) -> None:
    name = "claims.follow-a-new-allocation"
    done = suite(tmp_path, "--dra-check", name, fault="all its devices exclude each other")
    assert done.returncode == 0, done.stdout
    assert "not judged: the check needs 2 devices " in done.stdout
    assert f"Unjudged: {name}" in done.stdout
