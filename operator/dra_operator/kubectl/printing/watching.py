"""Answers again and again: a terminal is drawn anew in place, anything else gets each answer that is new.

What does not fit on the screen is cut, and counted: a longer text would scroll, and the next one could not be drawn
over it. A question that fails after the first time is told, and asked again: a server that restarts ends no watch.
"""

from __future__ import annotations

import gc
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Final

from dra_api.console import printable

from dra_operator.kubectl.answer import Answer, Problem

from .output import rendered

REDRAW_SECONDS: Final = 2.0
"""Between two questions at least; as long as the last one took, if that is more."""
HOME, CLEAR_LINE, CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
CLEAR_SCREEN: Final = "\x1b[2J"
_COLOUR: Final = re.compile(r"\x1b\[\d+m")


def follow(ask: Callable[[], Answer], output: str | None, sleep: Callable[[float], None] = time.sleep) -> None:
    """Until it is interrupted. Raises Problem if the first question fails."""
    shown: list[str] | None = None
    is_terminal = sys.stdout.isatty()
    coloured = is_terminal and not os.environ.get("NO_COLOR")
    while True:
        began = time.monotonic()
        try:
            lines = list(_lines(ask(), output, coloured=coloured))
        except Problem as problem:
            if shown is None:
                raise
            lines = [printable(f"kubectl dra: {problem}")]
        gc.collect()
        if is_terminal:
            _draw(lines, is_first=shown is None)
        elif lines != shown:
            print(*([] if shown is None else [""]), *lines, sep="\n", flush=True)
        shown = lines
        sleep(max(REDRAW_SECONDS, time.monotonic() - began))


def _lines(answer: Answer, output: str | None, *, coloured: bool) -> Iterator[str]:
    """The answer, with what else goes to standard error."""
    if answer.table is not None and not answer.table.items and output in (None, "wide"):
        yield printable(answer.table.none)
    yield from rendered(answer, output, coloured=coloured)
    if output in (None, "wide"):
        yield from map(printable, answer.notes)


def _draw(lines: Sequence[str], *, is_first: bool) -> None:
    columns, rows = shutil.get_terminal_size()
    head = f"{datetime.now():%H:%M:%S}, every {REDRAW_SECONDS:g}s; end with Ctrl-C"
    start = CLEAR_SCREEN + HOME if is_first else HOME
    text = "".join(f"{line}{CLEAR_LINE}\n" for line in fitting([head, *lines], columns, rows - 1))
    print(f"{start}{text}{CLEAR_BELOW}", end="", flush=True)


def fitting(lines: Sequence[str], columns: int, rows: int) -> list[str]:
    """As many lines as there is room for, long ones counted as often as they wrap; the last says how many are cut."""
    needed = [max(1, -(-len(_COLOUR.sub("", line)) // max(1, columns))) for line in lines]
    if sum(needed) <= rows:
        return list(lines)
    kept, room = 0, rows - 1
    while kept < len(lines) and needed[kept] <= room:
        room -= needed[kept]
        kept += 1
    return [*lines[:kept], f"… {len(lines) - kept} more lines: make the window larger"]
