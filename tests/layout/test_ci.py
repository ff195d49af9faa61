"""CI finds the interpreters that it needs, or says which one is missing."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "python"


def python(path: Path, version: str) -> Path:
    """A program that answers like a Python of this version; without version, like a shim that starts nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho {version}\n" if version else "#!/bin/sh\nexit 127\n")
    path.chmod(0o755)
    return path


def find(folder: Path, version: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": f"{folder / 'bin'}:{os.defpath}", "HOME": str(folder), "PYENV_ROOT": str(folder / "pyenv")}
    return subprocess.run([SCRIPT, version], env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        pytest.param({"bin/python3.98": "3.98"}, "bin/python3.98", id="on PATH"),
        pytest.param({"pyenv/versions/3.98.1/bin/python": "3.98"}, "pyenv/versions/3.98.1/bin/python", id="of pyenv"),
        pytest.param(
            {"bin/python3.98": "", "pyenv/versions/3.98.1/bin/python": "3.98"},
            "pyenv/versions/3.98.1/bin/python",
            id="behind a shim that does not start",
        ),
        pytest.param(
            {"pyenv/versions/3.98.0/bin/python": "", "pyenv/versions/3.98.1/bin/python": "3.98"},
            "pyenv/versions/3.98.1/bin/python",
            id="the one that starts",
        ),
    ],
)
def test_an_interpreter_is_found(tmp_path: Path, there: dict[str, str], expected: str) -> None:
    for name, version in there.items():
        python(tmp_path / name, version)
    found = find(tmp_path, "3.98")
    assert (found.returncode, found.stdout.strip()) == (0, str(tmp_path / expected))


@pytest.mark.parametrize("there", [{}, {"bin/python3.98": "3.97"}, {"bin/python3.98": ""}])
def test_a_missing_interpreter_is_named_with_a_remedy(tmp_path: Path, there: dict[str, str]) -> None:
    for name, version in there.items():
        python(tmp_path / name, version)
    missing = find(tmp_path, "3.98")
    assert (missing.returncode, missing.stdout) == (1, "")
    assert "CI needs Python 3.98" in missing.stderr
    assert "pyenv install 3.98" in missing.stderr
