"""Tests that the pages show pass as pasted: in a fresh folder, by a plain ``pytest`` that is configured by nothing.

Where a test imports a module of the reader, the page names its file: it holds the page's other Python before the test.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pages import PAGES, Page, is_test
from rounds import LONG


def files(page: Page) -> dict[str, str]:
    """What a reader of the page has in the folder, by name."""
    blocks = page.blocks("python")
    tests = {f"test_{number}.py": block for number, block in enumerate(blocks) if is_test(block)}
    before = [block for block in blocks[: last_test(blocks)] if not is_test(block)]
    imported = {name for block in tests.values() for name in re.findall(r"^from (\w+) import", block, re.MULTILINE)}
    own = {name for name in imported if f"`{name}.py`" in page.text}
    return tests | {f"{name}.py": "\n".join(before) for name in own}


def last_test(blocks: list[str]) -> int:
    return max(number for number, block in enumerate(blocks) if is_test(block))


def plain_pytest(folder: Path) -> str:
    """What it says about the folder; its own environment has no option and no result of the run around it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [str(Path(sys.executable).with_name("pytest"))]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    return done.stdout + done.stderr


SHOWING = [page for page in PAGES if any(map(is_test, page.blocks("python"))) and page.name != "docs/driver-test.md"]
"""The page of the test kit shows a test that needs a driver; tests/drivertest/test_pytest_plugin.py runs it."""


@LONG
@pytest.mark.parametrize("page", SHOWING, ids=lambda page: page.name)
def test_the_tests_of_a_page_pass_as_pasted(page: Page, tmp_path: Path) -> None:
    shown = files(page)
    for name, text in shown.items():
        (tmp_path / name).write_text(text)
    said = plain_pytest(tmp_path)
    count = sum(text.count("def test_") for text in shown.values())
    assert re.search(rf"= {count} passed in ", said), said
