"""The answers that the pages of kubectl dra show are recorded ones, shortened."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PAGES = ("kubectl-dra.md", "kubectl-check.md", "kubectl-fit.md", "defragment.md")
TEXT = "".join((HERE.parents[1] / "docs" / name).read_text() for name in PAGES)
RECORDED = {
    first: rest.splitlines()
    for first, _, rest in (file.read_text().partition("\n") for file in sorted((HERE / "answers").glob("*.txt")))
}
BLOCKS = re.findall(r"```console\n(\$ kubectl dra .*?)```", TEXT, flags=re.DOTALL)
SHOWN = [block.partition("\n") for block in BLOCKS if block.count("\n$ ") == 0]
"""One command with its answer; a block of several commands has no answers."""


def test_the_page_shows_answers() -> None:
    assert SHOWN


@pytest.mark.parametrize(("command", "_", "answer"), SHOWN, ids=[command for command, _, _ in SHOWN])
def test_an_answer_on_the_page_is_a_recorded_one_in_its_order(command: str, _: str, answer: str) -> None:
    left = iter(RECORDED[command])
    missing = [line for line in answer.splitlines() if line not in left]
    assert missing == []
