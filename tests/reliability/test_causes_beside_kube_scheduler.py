"""A pod waits for each cause there is: ``kubectl dra why`` names it, beside what the stock kube-scheduler says.

``CAUSES=write KUBEBUILDER_ASSETS=FOLDER pytest tests/reliability/test_causes_beside_kube_scheduler.py`` writes both
texts into ``docs/why.md``; ``CAUSES=print`` with ``-s`` prints them.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import envtest
import pytest
from beside_kube_scheduler import CONTROLLERS, Beside, Said, table
from scheduling_causes import ALL, Cause
from stock import needs_stock_control_plane

PAGE = Path(__file__).resolve().parents[2] / "docs" / "why.md"
BEGIN, END = "<!-- causes: begin -->\n", "<!-- causes: end -->\n"
CASES = [(part, cause) for part, causes in ALL.items() for cause in causes]
WANTED = os.environ.get("CAUSES", "")


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beside]:
    binaries = envtest.assets()
    assert binaries is not None
    with envtest.scheduling_api_server(binaries, tmp_path_factory.mktemp("plane"), CONTROLLERS) as kubeconfig:
        yield Beside(kubeconfig)


@pytest.fixture(scope="module")
def told() -> Iterator[list[tuple[str, Cause, Said]]]:
    """What was said, for the page."""
    found: list[tuple[str, Cause, Said]] = []
    yield found
    if WANTED == "write" and len(found) == len(CASES):
        binaries = envtest.assets()
        assert binaries is not None
        version = subprocess.run([binaries / "kube-scheduler", "--version"], capture_output=True, text=True, check=True)
        head, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(head + BEGIN + table(iter(found), version.stdout.split()[-1]) + END + rest.partition(END)[2])


@needs_stock_control_plane
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("part", "cause"), CASES, ids=lambda it: it.slug if isinstance(it, Cause) else "")
def test_why_names_what_keeps_the_pod(
    part: str, cause: Cause, beside: Beside, told: list[tuple[str, Cause, Said]]
) -> None:
    said = beside.said(cause)
    told.append((part, cause, said))
    if WANTED == "print":
        print(f"\n=== {cause.title}\n{said.scheduler or said.node or 'nothing'}\n---\n{said.why}exit code {said.code}")
    assert said.node == "", "kube-scheduler places the pod"
    assert bool(said.scheduler) == (cause.by_scheduler is not None)
    assert said.code == 3, said.why
    assert re.search(cause.names, said.why), said.why
