"""A picture of runs in SVG: what is allocated, and what of the idle GPUs is lost, over demand; a line a policy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from dra_operator.quality.states import Floats
from dra_operator.quality.study import RunResult

from .report import by_policy

WIDTH: Final = 420
HEIGHT: Final = 260
MARGIN_PIXELS: Final = 50
STEP_PERCENT: Final = 20
COLOURS: Final = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999", "#7f3c8d",
)  # fmt: skip
"""Colour-blind people can tell them apart."""


def picture(results: Sequence[RunResult]) -> str:
    """The whole file."""
    policies = [(name, [it.curve for it in its]) for name, its in by_policy(results)]
    allocated = [(name, _mean([it.allocated for it in its])) for name, its in policies]
    lost = [(name, _mean([it.lost for it in its])) for name, its in policies]
    width, height = 2 * (WIDTH + 2 * MARGIN_PIXELS), HEIGHT + 2 * MARGIN_PIXELS + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        *_chart(MARGIN_PIXELS, "GPUs allocated, % of the cluster", allocated),
        *_chart(3 * MARGIN_PIXELS + WIDTH, "idle GPUs lost to the usual pods, % of the idle ones", lost),
        *_legend([name for name, _ in policies], height - 14),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _mean(curves: Sequence[Floats]) -> Floats:
    length = min(map(len, curves))
    stacked = np.array([curve[:length] for curve in curves])
    known = ~np.isnan(stacked)
    counts = known.sum(axis=0)
    sums = np.where(known, stacked, 0.0).sum(axis=0)
    means: Floats = np.divide(sums, counts, out=np.full(length, np.nan), where=counts > 0)
    return means


def _chart(left: int, title: str, lines: Sequence[tuple[str, Floats]]) -> Iterator[str]:
    last = max(max(len(values) for _, values in lines) - 1, 1)
    yield f'<text x="{left}" y="{MARGIN_PIXELS - 20}" font-weight="bold">{title}</text>'
    for percent in range(0, 101, STEP_PERCENT):
        y = _y(percent)
        yield f'<line x1="{left}" x2="{left + WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>'
        yield f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{percent}</text>'
    for percent in range(0, last + 1, STEP_PERCENT):
        x = left + WIDTH * percent / last
        yield f'<text x="{x:.1f}" y="{MARGIN_PIXELS + HEIGHT + 16}" text-anchor="middle">{percent}</text>'
    below = MARGIN_PIXELS + HEIGHT + 32
    yield f'<text x="{left + WIDTH}" y="{below}" text-anchor="end">demand, % of the cluster</text>'
    for number, (name, values) in enumerate(lines):
        points = " ".join(
            f"{left + WIDTH * percent / last:.1f},{_y(value):.1f}"
            for percent, value in enumerate(values)
            if not np.isnan(value)
        )
        colour = COLOURS[number % len(COLOURS)]
        yield f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{points}">'
        yield f"<title>{name}</title></polyline>"


def _y(percent: float) -> float:
    return MARGIN_PIXELS + HEIGHT * (1 - percent / 100)


def _legend(names: Sequence[str], y: int) -> Iterator[str]:
    x = MARGIN_PIXELS
    for number, name in enumerate(names):
        colour = COLOURS[number % len(COLOURS)]
        yield f'<rect x="{x}" y="{y - 9}" width="14" height="4" fill="{colour}"/>'
        yield f'<text x="{x + 18}" y="{y - 3}">{name}</text>'
        x += 34 + 7 * len(name)
