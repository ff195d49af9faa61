"""Prints an answer in the format of ``-o``. Colours only on a terminal, and not with ``NO_COLOR`` (no-color.org)."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import yaml
from dra_api.codec import to_dict
from dra_api.console import printable

from dra_operator.kubectl.answer import Answer

from .table import lines


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
            yield from lines(answer.table, wide=output == "wide", coloured=coloured)


def _value(answer: Answer) -> Any:
    if answer.value is not None:
        return to_dict(answer.value)
    items = answer.table.items if answer.table is not None else ()
    return {"items": to_dict(list(items)), "notes": list(answer.notes)}
