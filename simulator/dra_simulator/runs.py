"""What traces and replays share: runs in one process or several, and pictures as SVG.

A line on a terminal says how far the runs are.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from dra_operator.commands.object_files import BadInput

WIDTH: Final = 420
HEIGHT: Final = 260
MARGIN_PIXELS: Final = 50
COLOURS: Final = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999", "#7f3c8d",
)  # fmt: skip
"""Colour-blind people can tell them apart."""


class Tick(NamedTuple):
    """A mark on an axis."""

    place: float
    """From 0 to 1."""
    text: str


PERCENT_TICKS: Final = [Tick(percent / 100, str(percent)) for percent in range(0, 101, 20)]


class Line(NamedTuple):
    """One line; its points go from 0 to 1 in both directions."""

    name: str
    points: Sequence[tuple[float, float]]


class Chart(NamedTuple):
    """One chart."""

    title: str
    below: str
    """What is told from left to right."""
    across: Sequence[Tick]
    up: Sequence[Tick]
    lines: Sequence[Line]


def picture(charts: Sequence[Chart]) -> str:
    """The whole file. The charts have lines of the same names in the same order.

    Lines that lie on each other in all charts are drawn once, by all of their names.
    """
    charts = _merged(charts)
    width, height = len(charts) * (WIDTH + 2 * MARGIN_PIXELS), HEIGHT + 2 * MARGIN_PIXELS + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for number, chart in enumerate(charts):
        parts += _drawn(chart, MARGIN_PIXELS + number * (WIDTH + 2 * MARGIN_PIXELS))
    parts += _legend([line.name for line in charts[0].lines], height - 14)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _merged(charts: Sequence[Chart]) -> Sequence[Chart]:
    names: dict[tuple[tuple[tuple[float, float], ...], ...], list[str]] = {}
    for its in zip(*(chart.lines for chart in charts), strict=True):
        names.setdefault(tuple(tuple(line.points) for line in its), []).append(its[0].name)
    return [
        chart._replace(lines=[Line(", ".join(its), points[number]) for points, its in names.items()])
        for number, chart in enumerate(charts)
    ]


def _drawn(chart: Chart, left: int) -> Iterator[str]:
    yield f'<text x="{left}" y="{MARGIN_PIXELS - 20}" font-weight="bold">{chart.title}</text>'
    for place, text in chart.up:
        y = _y(place)
        yield f'<line x1="{left}" x2="{left + WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>'
        yield f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'
    for place, text in chart.across:
        x = left + WIDTH * place
        yield f'<text x="{x:.1f}" y="{MARGIN_PIXELS + HEIGHT + 16}" text-anchor="middle">{text}</text>'
    below = MARGIN_PIXELS + HEIGHT + 32
    yield f'<text x="{left + WIDTH}" y="{below}" text-anchor="end">{chart.below}</text>'
    for number, (name, values) in enumerate(chart.lines):
        points = " ".join(f"{left + WIDTH * x:.1f},{_y(y):.1f}" for x, y in values)
        colour = COLOURS[number % len(COLOURS)]
        yield f'<polyline fill="none" stroke="{colour}" stroke-width="2" stroke-linejoin="round" points="{points}">'
        yield f"<title>{name}</title></polyline>"


def _y(place: float) -> float:
    return MARGIN_PIXELS + HEIGHT * (1 - place)


def _legend(names: Sequence[str], y: int) -> Iterator[str]:
    x = MARGIN_PIXELS
    for number, name in enumerate(names):
        colour = COLOURS[number % len(COLOURS)]
        yield f'<rect x="{x}" y="{y - 9}" width="14" height="4" fill="{colour}"/>'
        yield f'<text x="{x + 18}" y="{y - 3}">{name}</text>'
        x += 34 + 7 * len(name)


T = TypeVar("T")
R = TypeVar("R")
MOST_JOBS: Final = 256


def jobs_of(options: argparse.Namespace) -> int:
    """How many processes play. Raises BadInput."""
    jobs = 1 if options.jobs is None else int(options.jobs)
    if not 1 <= jobs <= MOST_JOBS:
        raise BadInput(f"--jobs: expected a number from 1 to {MOST_JOBS}, got {jobs}")
    return jobs


def results(play: Callable[[T], R], wanted: Sequence[T], jobs: int, noun: str) -> Iterator[R]:
    """One for each that is wanted, as they come; ``noun``: the word for several of them."""
    is_terminal = sys.stderr.isatty()
    width = 1 + int(math.log10(len(wanted)))
    try:
        for number, it in enumerate(_played(play, wanted, jobs), start=1):
            if is_terminal:
                print(f"\r\033[K{number:{width}} of {len(wanted)} {noun}", end="", file=sys.stderr, flush=True)
            yield it
    finally:
        if is_terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def _played(play: Callable[[T], R], wanted: Sequence[T], jobs: int) -> Iterator[R]:
    if jobs == 1 or len(wanted) == 1:
        yield from map(play, wanted)
        return
    # Ctrl-C reaches the parent alone, which ends the others on its way out.
    ignored = partial(signal.signal, signal.SIGINT, signal.SIG_IGN)
    with multiprocessing.get_context("spawn").Pool(min(jobs, len(wanted)), ignored) as pool:
        yield from pool.imap_unordered(play, wanted)


def save_plot(path: str, text: str) -> None:
    """Write a picture. Raises BadInput."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"--plot: {path}: {error.strerror}") from None
