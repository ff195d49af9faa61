"""Prints an answer in the format of ``-o``, once or again and again.

Tables have aligned columns, as kubectl prints them. Colours only on a terminal, and not with ``NO_COLOR``
(no-color.org). With ``--watch`` a terminal is drawn anew in place; other outputs get each answer that is new. Lines
beyond the screen are cut, and counted: a longer text would scroll, and the next one could not be drawn over it. A
question that fails after the first time is told, and asked again: a server that restarts ends no watch.
"""

from __future__ import annotations

import gc
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from html import escape
from typing import Any, Final

import yaml
from dra_api.codec import to_dict
from dra_api.console import printable

from dra_operator.kubectl.answer import Answer, Problem, Table


def svg_document(width: int, height: int, label: str, letter_pixels: int, drawn: Iterable[str]) -> Iterator[str]:
    """The lines of the document: ``drawn`` on white, of a size in pixels. The label is escaped here."""
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="{escape(label)}" font-family="system-ui, sans-serif" font-size="{letter_pixels}">'
    )
    yield f'<rect width="{width}" height="{height}" fill="#ffffff"/>'
    yield from drawn
    yield "</svg>"


GAP: Final = "   "
_CODES: Final = {"red": "31", "green": "32", "yellow": "33", "grey": "90"}


def table_lines(table: Table[Any], *, wide: bool, coloured: bool) -> Iterator[str]:
    """The title line, and one line for each item."""
    columns = [column for column in table.columns if wide or not column.wide]
    rows = [[printable(str(column.text(item))) for column in columns] for item in table.items]
    titles = [column.title for column in columns]
    widths = [max(len(row[place]) for row in (titles, *rows)) for place in range(len(columns))]
    yield GAP.join(title.ljust(width) for title, width in zip(titles, widths, strict=True)).rstrip()
    for item, row in zip(table.items, rows, strict=True):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        cells[-1] = row[-1]
        if coloured:
            cells = [painted(cell, column.colour(item)) for cell, column in zip(cells, columns, strict=True)]
        yield GAP.join(cells).rstrip()


def painted(text: str, colour: str) -> str:
    """The text in a colour of the terminal; as it is without one."""
    return f"\x1b[{_CODES[colour]}m{text}\x1b[0m" if colour else text


def show(answer: Answer, output: str | None) -> None:
    """Print the answer, and its notes to standard error."""
    coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    if answer.table is not None and not answer.table.items and output in (None, "wide"):
        print(printable(answer.table.none), file=sys.stderr)
    for line in rendered(answer, output, coloured=coloured):
        print(line)
    for note in answer.notes:
        print(printable(note), file=sys.stderr)


def rendered(answer: Answer, output: str | None, *, coloured: bool = False) -> Iterator[str]:
    """The lines of the answer."""
    if output == "json":
        yield json.dumps(_value(answer), indent=2)  # in ASCII: what a terminal would obey is escaped
    elif output == "yaml":
        yield yaml.safe_dump(_value(answer), sort_keys=False, allow_unicode=True).rstrip("\n")
    elif output == "name":
        yield from map(printable, answer.names)
        if answer.table is not None:
            yield from (printable(answer.table.name(item)) for item in answer.table.items)
    else:
        yield from map(printable, answer.lines)
        if answer.table is not None and answer.table.items:
            yield from table_lines(answer.table, wide=output == "wide", coloured=coloured)


def _value(answer: Answer) -> Any:
    if answer.value is not None:
        return to_dict(answer.value)
    items = answer.table.items if answer.table is not None else ()
    return {"items": to_dict(list(items)), "notes": list(answer.notes)}


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
            lines = list(_told(ask(), output, coloured=coloured))
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


def _told(answer: Answer, output: str | None, *, coloured: bool) -> Iterator[str]:
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
