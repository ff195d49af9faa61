"""The line that says how far the reads of a cluster are."""

from __future__ import annotations

import asyncio
import io

import pytest
from dra_api.core import Pod
from dra_operator.kubectl import live as told
from waiting import becomes


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


async def test_a_terminal_is_told_how_much_is_read_and_the_line_is_gone_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also while a kind of very many objects is read, and no other one is over."""
    monkeypatch.setattr(told, "QUIET_SECONDS", 0.0)
    stream, progress = Terminal(), told.Progress(22)
    async with told.telling(progress, stream):
        await becomes(lambda: "0 objects" in stream.getvalue())
        progress.read, progress.objects = 1, 4999
        assert progress.came(Pod()) == Pod()
        await becomes(lambda: "5000" in stream.getvalue())
    assert list(dict.fromkeys(stream.getvalue().split("\r\x1b[K"))) == [
        "",
        "reading the cluster: 0 of 22 kinds, 0 objects",
        "reading the cluster: 1 of 22 kinds, 5000 objects",
    ]
    assert stream.getvalue().endswith("\r\x1b[K")


async def test_reads_that_are_quick_and_streams_that_are_no_terminal_show_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = Terminal()
    async with told.telling(told.Progress(1), stream):
        await asyncio.sleep(0)
    assert stream.getvalue() == "\r\x1b[K"
    monkeypatch.setattr(told, "QUIET_SECONDS", 0.0)
    none = io.StringIO()
    async with told.telling(told.Progress(1), none):
        await asyncio.sleep(0.01)
    assert none.getvalue() == ""
