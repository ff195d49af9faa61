"""What ``kubectl dra`` says about the cluster in ``cluster.yaml``: a file in ``answers`` is a command and its answer.

To take over new words: ``ANSWERS=write pytest tests/kubectl``, and read the difference.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
from dra_operator.kubectl.cli import main

HERE = Path(__file__).parent
FILES = sorted((HERE / "answers").glob("*.txt"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_answer_is_as_recorded(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(HERE)
    command = file.read_text().splitlines()[0]
    words = shlex.split(command.removeprefix("$ kubectl dra "))
    has_source = "--from" in words or words[0] == "lint"
    code = main(words if has_source else [*words, "--from", "cluster.yaml"])
    captured = capsys.readouterr()
    answer = f"{command}\n{captured.out}{captured.err}exit code {code}\n"
    if os.environ.get("ANSWERS") == "write":
        file.write_text(answer)
    assert answer == file.read_text()
