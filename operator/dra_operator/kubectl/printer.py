"""Prints an answer in the format of ``-o``, once or again and again.

Tables have aligned columns, as kubectl prints them. On a terminal cells are shortened with an ellipsis until a line
fits; ``-o wide`` has them whole. Colours only on a terminal, and not with ``NO_COLOR`` (no-color.org). With ``--watch``
a terminal is drawn anew in place; other outputs get each answer that is new. Lines beyond the screen are cut, and
counted: a longer text would scroll, and the next one could not be drawn over it. A question that fails after the first
time is told, and asked again: a server that restarts ends no watch.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from html import escape
from typing import Any, Final

import yaml
from dra_api.codec import to_dict
from dra_api.console import printable

from dra_operator.kubectl.answer import Answer, Column, ExitCode, Problem, Table


def svg_document(width: int, height: int, label: str, letter_pixels: int, drawn: Iterable[str]) -> Iterator[str]:
    """The lines of the document: ``drawn`` on white, of a size in pixels. The label is escaped here."""
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="{escape(label)}" font-family="system-ui, sans-serif" font-size="{letter_pixels}">'
    )
    yield f'<rect width="{width}" height="{height}" fill="#ffffff"/>'
    yield from drawn
    yield "</svg>"


INKS: Final = {
    "green": ("#d7f0dc", "#1a6b2f"),
    "blue": ("#d9e4f7", "#1d4a8f"),
    "yellow": ("#fdf0cd", "#7a5200"),
    "red": ("#fbdcdc", "#9c1c1c"),
    "grey": ("#e4e4e7", "#4b4b52"),
}
"""Background and text of tiles, with a contrast of at least 4.5."""


def svg_tile(
    place: tuple[int, int], size: tuple[int, int], colour: str, label: str, words: tuple[str, str], most_letters: int
) -> Iterator[str]:
    """The lines of a tile with two lines of text, cut to ``most_letters``; ``label`` is told in full."""
    (x, y), (width, height), (ground, ink) = place, size, INKS[colour]
    yield f"<g><title>{escape(label)}</title>"
    yield f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="4" fill="{ground}" stroke="{ink}"/>'
    first, second = words
    yield svg_text(x + 8, y + height * 2 // 5, first, ink, most_letters, bold=True)
    yield svg_text(x + 8, y + height * 4 // 5, second, ink, most_letters) + "</g>"


def svg_text(x: int, y: int, text: str, ink: str, most_letters: int = 1000, *, bold: bool = False) -> str:
    """A text, cut to a number of letters and escaped."""
    shown = text if len(text) <= most_letters else f"{text[: most_letters - 1]}…"
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x}" y="{y}" fill="{ink}"{weight}>{escape(shown)}</text>'


GAP: Final = "   "
API_VERSION: Final = "dra.kopf.dev/v1"
"""``apiVersion`` of the items of tables, in JSON and YAML."""
SHORTEST_CELL_LETTERS: Final = 8
_CODES: Final = {"red": "38;5;160", "green": "38;5;28", "yellow": "38;5;130", "grey": "38;5;243"}
"""Of the 256 colours of terminals those that can be read on white and on black: the plain yellow cannot."""
_DIGITS: Final = re.compile(r"(\d+)")


@dataclass(frozen=True, slots=True)
class Style:
    """How an answer is printed, by the options and the terminal's abilities."""

    output: str | None = None
    """The value of ``-o``, or None for a table or text."""
    coloured: bool = False
    width: int | None = None
    """Letters of a line, beyond which cells are shortened; None: they never are."""
    has_headers: bool = True
    shows_labels: bool = False
    sort_by: str = ""
    """The path of ``--sort-by``, or empty."""

    @classmethod
    def of(cls, options: argparse.Namespace) -> Style:
        """Return the style by the options, and by the terminal if standard output is one."""
        output, is_terminal = getattr(options, "output", None), sys.stdout.isatty()
        return cls(
            output,
            coloured=is_terminal and not os.environ.get("NO_COLOR"),
            width=shutil.get_terminal_size().columns if is_terminal and output is None else None,
            has_headers=not getattr(options, "no_headers", False),
            shows_labels=getattr(options, "show_labels", False),
            sort_by=getattr(options, "sort_by", None) or "",
        )

    @property
    def is_for_people(self) -> bool:
        """Whether lines and tables are printed."""
        return self.output in (None, "wide")


def show(answer: Answer, style: Style) -> None:
    """Print the answer, and its notes to standard error."""
    if answer.table is not None and not answer.table.items and style.is_for_people:
        print(printable(answer.table.none), file=sys.stderr)
    for line in rendered(answer, style):
        print(line)
    for note in answer.notes:
        print(printable(note), file=sys.stderr)


_YAML: Final = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
"""Four to fifteen times as fast: the devices of a large fleet took half a minute."""


def rendered(answer: Answer, style: Style) -> Iterator[str]:
    if answer.table is not None and style.sort_by:
        answer = replace(answer, table=_sorted(answer.table, style.sort_by))
    output, _, rest = (style.output or "").partition("=")
    if output == "json":
        yield json.dumps(_value(answer), indent=2)  # in ASCII: what a terminal would obey is escaped
    elif output == "yaml":
        yield yaml.dump(_value(answer), Dumper=_YAML, sort_keys=False, allow_unicode=True).rstrip("\n")
    elif output == "jsonpath":
        from dra_operator.kubectl.jsonpath import Template

        text = Template(rest).filled(_value(answer))
        yield from map(printable, text.removesuffix("\n").split("\n"))
    elif output == "custom-columns":
        columns = [_custom(part) for part in rest.split(",")]
        value = _value(answer)
        items = value["items"] if isinstance(value, dict) and isinstance(value.get("items"), list) else [value]
        yield from table_lines(Table(columns, items, str), style)
    elif output == "name":
        yield from map(printable, answer.names)
        if answer.table is not None:
            yield from (printable(answer.table.name(item)) for item in answer.table.items)
    else:
        yield from map(printable, answer.lines)
        if answer.table is not None and answer.table.items:
            yield from table_lines(answer.table, style)


def table_lines(table: Table[Any], style: Style) -> Iterator[str]:
    """Yield the title line, and one line for each item."""
    is_wide = style.output == "wide"
    columns = [
        column
        for column in table.columns
        if is_wide or not (column.wide or (table.items and all(map(column.repeats, table.items))))
    ]
    if style.shows_labels and table.labels is not None:
        columns.append(Column("LABELS", partial(_labels, table.labels)))
    rows = [[printable(str(column.text(item))) for column in columns] for item in table.items]
    titles = [column.title for column in columns]
    shown = (titles, *rows) if style.has_headers else rows
    widths = [max((len(row[place]) for row in shown), default=0) for place in range(len(columns))]
    if style.width is not None:
        widths = _fitting_widths(titles, widths, style.width)
        rows = [
            [_shortened(cell, width, column) for cell, width, column in zip(row, widths, columns, strict=True)]
            for row in rows
        ]
    if style.has_headers:
        yield GAP.join(title.ljust(width) for title, width in zip(titles, widths, strict=True)).rstrip()
    for item, row in zip(table.items, rows, strict=True):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        cells[-1] = row[-1]
        if style.coloured:
            cells = [painted(cell, column.colour(item)) for cell, column in zip(cells, columns, strict=True)]
        yield GAP.join(cells).rstrip()


def _fitting_widths(titles: Sequence[str], widths: Sequence[int], most: int) -> list[int]:
    """Take letters from the widest columns, until a line fits or all are as narrow as they may be."""
    found = list(widths)
    least = [min(width, max(len(title), SHORTEST_CELL_LETTERS)) for title, width in zip(titles, widths, strict=True)]
    while sum(found) + len(GAP) * (len(found) - 1) > most:
        spare = [place for place, width in enumerate(found) if width > least[place]]
        if not spare:
            break
        found[max(spare, key=lambda place: found[place])] -= 1
    return found


def _shortened(cell: str, width: int, column: Column[Any]) -> str:
    if len(cell) <= width:
        return cell
    return f"…{cell[len(cell) - width + 1 :]}" if column.keeps_end else f"{cell[: width - 1]}…"


def _labels(labels_of: Callable[[Any], Mapping[str, str] | None], item: Any) -> str:
    return ",".join(f"{name}={value}" for name, value in sorted((labels_of(item) or {}).items())) or "<none>"


def _sorted(table: Table[Any], text: str) -> Table[Any]:
    """Items without a value come first, as in kubectl; numbers in names count as numbers. Raises Problem."""
    from dra_operator.kubectl.jsonpath import Path, text_of

    path = Path.of_text(text)

    def key(item: Any) -> tuple[Any, ...]:
        value = next(iter(path.of(to_dict(item))), None)
        if value is None:
            return (0,)
        if isinstance(value, bool | int | float):
            return 1, value
        parts = _DIGITS.split(text_of(value))
        return 2, [(int(part), "") if number % 2 else (0, part) for number, part in enumerate(parts)]

    keys = {id(item): key(item) for item in table.items}
    if keys and all(found == (0,) for found in keys.values()):
        raise Problem(f"--sort-by: no item has the field {text}; -o json shows the fields", ExitCode.USAGE)
    return replace(table, items=sorted(table.items, key=lambda item: keys[id(item)]))


def _custom(text: str) -> Column[Any]:
    from dra_operator.kubectl.jsonpath import Path, text_of

    title, _, path = text.partition(":")
    found = Path.of_text(path)
    return Column(title, lambda it: ",".join(map(text_of, found.of(it))) or "<none>")


def painted(text: str, colour: str) -> str:
    """Return the text in a colour of the terminal, or as it is without one."""
    return f"\x1b[{_CODES[colour]}m{text}\x1b[0m" if colour else text


def _value(answer: Answer) -> Any:
    """What programs get: the answer's own value, or a list of the table's items, each with its kind."""
    if answer.value is not None:
        return to_dict(answer.value)
    kind = answer.table.kind if answer.table is not None else "Item"
    items = answer.table.items if answer.table is not None else ()
    about = {"apiVersion": API_VERSION, "kind": kind}
    return {
        "apiVersion": API_VERSION,
        "kind": f"{kind}List",
        "items": [{**about, **value} if isinstance(value := to_dict(item), dict) else value for item in items],
        "notes": list(answer.notes),
    }


REDRAW_SECONDS: Final = 2.0
"""Between two questions at least; as long as the last one took, if that is more."""
HOME, CLEAR_LINE, CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
CLEAR_SCREEN: Final = "\x1b[2J"
_COLOUR: Final = re.compile(r"\x1b\[[\d;]+m")


def follow(ask: Callable[[], Answer], style: Callable[[], Style], sleep: Callable[[float], None] = time.sleep) -> None:
    """Answer until interrupted, in the style of each moment. Raises Problem if the first question fails."""
    shown: list[str] | None = None
    is_terminal = sys.stdout.isatty()
    while True:
        began = time.monotonic()
        try:
            lines = list(_told(ask(), style()))
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


def _told(answer: Answer, style: Style) -> Iterator[str]:
    """The answer, with what else goes to standard error."""
    if answer.table is not None and not answer.table.items and style.is_for_people:
        yield printable(answer.table.none)
    yield from rendered(answer, style)
    if style.is_for_people:
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
