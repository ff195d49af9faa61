"""What ``kubectl dra`` says about the cluster in ``cluster.yaml``: a file in ``answers`` is a command and its answer.

To take over new words: ``ANSWERS=write pytest tests/kubectl``, and read the difference.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dra_operator.kubectl import room, snapshot
from dra_operator.kubectl.cli import main
from dra_operator.kubectl.observed import Observed

HERE = Path(__file__).parent
FILES = sorted((HERE / "answers").glob("*.txt"))


@pytest.fixture(params=["whole", "brief"])
def held(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Objects of the file are held whole, or in their brief form until their turn comes, however short they are."""
    if request.param == "brief":
        monkeypatch.setattr(room, "ALWAYS_WHOLE_BYTES", 0)
        monkeypatch.setattr(snapshot, "load", _in_brief(snapshot.load))
    return str(request.param)


def _in_brief(load: Callable[[str], Observed]) -> Callable[..., Observed]:
    def loaded(path: str, *_: object) -> Observed:
        seen, cut = load(path), room.ObjectRoom(whole=0)
        whole = {(type(obj), obj.key): obj for obj in seen.objects}

        def reread(objects: Sequence[Any]) -> Sequence[Any]:
            return [whole[type(obj), obj.key] if room.is_brief(obj) else obj for obj in objects]

        objects = list(map(cut.kept, seen.objects))
        return replace(seen, objects=objects, reread=reread, pods_cut=cut.pods_cut)

    return loaded


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_answer_is_as_recorded(
    file: Path, held: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if held == "brief" and os.environ.get("ANSWERS") == "write":
        pytest.skip("written from whole objects")
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
