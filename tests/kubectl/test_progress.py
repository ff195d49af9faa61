"""The line that says how far the reads of a cluster are."""

from __future__ import annotations

import io

import pytest
from dra_operator.kubectl import live as told


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_is_told_how_much_is_read_and_the_line_is_gone_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(told, "QUIET_SECONDS", 0.0)
    stream = Terminal()
    with told.progress(22, stream) as line:
        assert line is not None
        line.add(5000)
        line.add(1)
    assert stream.getvalue().split("\r\x1b[K") == [
        "",
        "reading the cluster: 1 of 22 kinds, 5000 objects",
        "reading the cluster: 2 of 22 kinds, 5001 objects",
        "",
    ]


def test_reads_that_are_quick_and_streams_that_are_no_terminal_show_nothing() -> None:
    stream = Terminal()
    with told.progress(1, stream) as line:
        assert line is not None
        line.add(1)
    assert stream.getvalue() == "\r\x1b[K"
    with told.progress(1, io.StringIO()) as none:
        assert none is None
