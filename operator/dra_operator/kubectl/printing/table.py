"""A table as lines with aligned columns, as kubectl prints one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from dra_api.console import printable

from dra_operator.kubectl.answer import Table

GAP: Final = "   "
_CODES: Final = {"red": "31", "green": "32", "yellow": "33", "grey": "90"}


def lines(table: Table[Any], *, wide: bool, coloured: bool) -> Iterator[str]:
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
