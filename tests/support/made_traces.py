"""The traces of examples/trace, made once for a test run: nothing that a script writes is in the repository."""

from __future__ import annotations

import atexit
import runpy
import shutil
import tempfile
from functools import cache
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "examples/trace"


@cache
def made_traces() -> Path:
    """Return a folder with nodes.csv, pods.csv and week.yaml."""
    folder = Path(tempfile.mkdtemp(prefix="traces-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name in ("full.py", "week.py"):
        runpy.run_path(str(SCRIPTS / name))["main"](folder)
    return folder
