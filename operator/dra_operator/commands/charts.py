"""Pictures in SVG: charts beside each other, a line for each name in all of them, and what the colours mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

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
