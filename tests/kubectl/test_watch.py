"""``--watch``: a terminal is drawn in place, everything else gets what is new, and errors end nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from dra_devcluster.apiserver import DevApiServer
from dra_operator.kubectl import printer as watching
from dra_operator.kubectl.answer import Answer, Problem
from dra_operator.kubectl.cli import main
from dra_operator.kubectl.printer import CLEAR_SCREEN, Style, fitting, follow

PROBLEM = Problem("the API server does not answer")


def asking(*answers: str | Problem) -> tuple[Callable[[], Answer], Callable[[float], None]]:
    """Questions with these answers, and a pause that is interrupted after the last."""
    left: Iterator[str | Problem] = iter(answers)
    asked = 0

    def ask() -> Answer:
        nonlocal asked
        asked += 1
        found = next(left)
        if isinstance(found, Problem):
            raise found
        return Answer(lines=[found], notes=["a note"])

    def sleep(_: float) -> None:
        if asked == len(answers):
            raise KeyboardInterrupt

    return ask, sleep


def test_a_pipe_gets_each_answer_that_differs_from_the_last(capsys: pytest.CaptureFixture[str]) -> None:
    ask, sleep = asking("one", "one", PROBLEM, PROBLEM, "two")
    with pytest.raises(KeyboardInterrupt):
        follow(ask, Style, sleep)
    told = ["one\na note", f"kubectl dra: {PROBLEM}", "two\na note"]
    assert capsys.readouterr().out == "\n\n".join(told) + "\n"


def test_a_first_question_that_fails_ends_the_watch() -> None:
    ask, sleep = asking(PROBLEM)
    with pytest.raises(Problem):
        follow(ask, Style, sleep)


def test_a_terminal_is_cleared_once_and_then_drawn_over(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("shutil.get_terminal_size", lambda *_, **__: (80, 24))
    ask, sleep = asking("one", "two")
    with pytest.raises(KeyboardInterrupt):
        follow(ask, Style, sleep)
    first, second = capsys.readouterr().out.split("two")[0].split("one")
    assert first.startswith(CLEAR_SCREEN)
    assert CLEAR_SCREEN not in second
    assert watching.HOME in second


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        (["a", "b", "c"], ["a", "b", "c"]),
        (["a", "b", "c", "d"], ["a", "b", "… 2 more lines: make the window larger"]),
        (["a" * 21, "b", "c"], ["a" * 21, "… 2 more lines: make the window larger"]),
        (["\x1b[31m" + "a" * 10 + "\x1b[0m", "b", "c"], ["\x1b[31m" + "a" * 10 + "\x1b[0m", "b", "c"]),
    ],
)
def test_a_frame_is_as_high_as_the_screen_at_most(lines: list[str], shown: list[str]) -> None:
    cut = fitting(lines, 20, 3)
    assert cut == shown


async def test_a_live_cluster_is_watched_until_ctrl_c(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(watching, "follow", partial(follow, sleep=pause))
    async with DevApiServer() as server:
        server.write_kubeconfig(kubeconfig)
        code = await asyncio.to_thread(main, ["claims", "--watch", "--kubeconfig", str(kubeconfig)])
    assert (code, len(pauses), min(pauses) >= watching.REDRAW_SECONDS) == (130, 2, True)
    assert capsys.readouterr().out == "No claims found in namespace default\n"


@pytest.mark.parametrize("words", [["top"], ["claims"], ["why", "pod/big"]])
def test_a_snapshot_cannot_be_watched(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "-w", "--from", "cluster.yaml"]) == 2
    assert "a snapshot does not change" in capsys.readouterr().err
