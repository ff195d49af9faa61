"""The commands on the pages do what the pages say: typed in one after the other, in an empty folder."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pages import BY_NAME, ROOT, Line

STORIES = {  # page, its blocks, and what must be true in the end
    "a cluster to play with": (
        "README.md",
        slice(1, 4),
        "kubectl wait pod --all --for=jsonpath='{.status.phase}'=Running --timeout=60s",
    ),
    "a driver in an afternoon": ("docs/driver-author.md", slice(0, 4), "kubectl get pod hello"),
}
LASTING = re.compile(r"(dra-devcluster up|kopf run|dra-operator run|\d+_\w+\.py)\b")
SECONDS = 100


def script(lines: list[Line], check: str) -> str:
    """A shell script of the lines: what lasts runs in the background, and ends with the script."""
    steps = ["set -eu -o pipefail", "trap 'kill $(jobs -p); wait' EXIT"]
    for line in lines:
        # The folder of the node is the only thing that a reader has to fill in: `up` printed it.
        command = re.sub(r"/tmp/dra-\.\.\.\S*", r"$(sed -n 's/^ *node-1: //p' up.log)", line.command)
        if not LASTING.search(command):
            steps.append(command)
        elif kubeconfig := re.search(r"dra-devcluster up .*--kubeconfig (\S+)", command):
            steps.append(f"{command} >up.log 2>&1 &")
            # The kubeconfig comes before the folders of the nodes are printed.
            ready = f"[ -s {kubeconfig[1]} ] && grep -q 'Ctrl-C ends' up.log"
            steps.append(f"until {ready}; do kill -0 $! && sleep 0.1; done")
        else:
            steps.append(f"{command.removesuffix('&').strip()} >>servers.log 2>&1 &")
    return "\n".join([*steps, check])


@pytest.mark.parametrize("story", STORIES)
def test_the_commands_of_a_page_work(story: str, tmp_path: Path) -> None:
    if not shutil.which("kubectl"):
        pytest.skip("kubectl is not installed: the commands of the documentation are NOT run")
    name, blocks, check = STORIES[story]
    lines = [line for block in BY_NAME[name].console()[blocks] for line in block]
    for folder in ("operator", "manifests", "examples"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    programs = Path(sys.executable).parent
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/bin").symlink_to(programs)
    shell = subprocess.Popen(
        ["bash", "-c", script(lines, check)],
        cwd=tmp_path,
        env={"HOME": str(tmp_path), "PATH": f"{programs}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = shell.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(shell.pid, signal.SIGTERM)
        output, _ = shell.communicate()
    logs = [log.read_text() for log in tmp_path.glob("*.log")]
    assert shell.returncode == 0, "\n".join([output, *logs])
    for line in lines:
        assert all(said in output for said in line.prints), output
