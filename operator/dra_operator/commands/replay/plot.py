"""A picture of the week in SVG: devices in use, and pods that wait, over time; a line a strategy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dra_operator.commands.charts import PERCENT_TICKS, Chart, Line, Tick, picture

from .course import Course
from .history import History

POINTS: Final = 168
"""Of a line; of a whole week, each is an hour."""
DAY_SECONDS: Final = 86_400


def plotted(courses: Sequence[Course], history: History) -> str:
    """The whole file."""
    sampled = [(it.name, it.sampled(POINTS)) for it in courses]
    most = max(1.0, *(sample.waiting for _, samples in sampled for sample in samples))
    days = range(int(history.seconds / DAY_SECONDS) + 1)
    across = [Tick(day * DAY_SECONDS / history.seconds if day else 0.0, str(day)) for day in days]
    below = f"days from {history.start:%Y-%m-%d %H:%M} UTC"
    places = [(number + 0.5) / POINTS for number in range(POINTS)]
    used = [
        Line(name, [(x, it.used_percent / 100) for x, it in zip(places, samples, strict=True)])
        for name, samples in sampled
    ]
    waiting = [
        Line(name, [(x, it.waiting / most) for x, it in zip(places, samples, strict=True)]) for name, samples in sampled
    ]
    pods = [Tick(part / 4, f"{most * part / 4:.3g}") for part in range(5)]
    return picture(
        [
            Chart("devices in use, % of the cluster", below, across, PERCENT_TICKS, used),
            Chart("pods that wait", below, across, pods, waiting),
        ]
    )
