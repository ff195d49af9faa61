"""Commands whose reader leaves, or that are interrupted, end quietly."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from dra_api.console import CLOSED_EXIT_CODE, INTERRUPTED_EXIT_CODE, UNWRITTEN_EXIT_CODE, finish, needing

CASE = '[{"expression": "true", "device": {"driver": "a"}, "name": "%s"}]'
CEL = [sys.executable, "-m", "dra_operator.cli", "cel"]


def test_the_exit_code_of_a_command_is_handed_on() -> None:
    assert [finish(lambda code=code: code) for code in (0, 1, 2)] == [0, 1, 2]  # type: ignore[misc]


def test_an_error_that_is_not_about_the_output_is_not_hidden() -> None:
    def read() -> int:
        raise OSError(errno.ENOSPC, "no space", "/some/file")

    def use() -> int:
        raise OSError(errno.ECONNREFUSED, "refused")

    def load() -> int:
        raise ModuleNotFoundError("no module", name="dra_operator.missing")

    for command in (read, use):
        with pytest.raises(OSError, match=r"no space|refused"):
            finish(command)
    with pytest.raises(ModuleNotFoundError):
        needing("operator", "dra-operator", load)


def test_an_interrupted_command_ends_without_a_traceback() -> None:
    def command() -> int:
        signal.raise_signal(signal.SIGINT)
        return 0

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores the signal
    try:
        assert finish(command) == INTERRUPTED_EXIT_CODE
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path) -> None:
    cases = tmp_path / "cases.json"
    cases.write_text(CASE % "one")
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run([*CEL, cases], stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (CLOSED_EXIT_CODE, "")


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    cases = tmp_path / "cases.json"
    cases.write_text(CASE % "one")
    with open("/dev/full", "w") as full:
        done = subprocess.run([*CEL, cases], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    said = "cannot write the answer: No space left on device; it is incomplete\n"
    assert (done.returncode, done.stderr) == (UNWRITTEN_EXIT_CODE, said)


def test_text_that_the_output_cannot_show_is_escaped(tmp_path: Path) -> None:
    printing = "from dra_api.console import finish; raise SystemExit(finish(lambda: print('a\\ud800b') or 0))"
    done = subprocess.run([sys.executable, "-c", printing], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "a\\ud800b\n", "")


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_a_stream_that_is_closed_is_no_error(closed: str) -> None:
    reading = (
        "import sys; from dra_api.console import finish; "
        "raise SystemExit(finish(lambda: print(len(sys.stdin.read())) or print('note', file=sys.stderr) or 0))"
    )
    words = ["bash", "-c", f'exec "$@" {closed}', "-", sys.executable, "-c", reading]
    done = subprocess.run(words, input="", capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ("" if ">&-" in closed.split() else "0\n")
    assert done.stderr == ("" if "2>&-" in closed else "note\n")
