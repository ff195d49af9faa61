"""A picture of the week in SVG: devices in use, and pods that wait, over time; a line a strategy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from dra_operator.commands.charts import PERCENT_TICKS, Chart, Line, Tick, picture

from .course import Course
from .history import History

POINTS: Final = 168
"""Of a line; of a whole week, each is an hour."""
DAY_SECONDS: Final = 86_400
LEVELS: Final = 5
"""Marks at the side, at most; of pods, whole ones."""


def plotted(courses: Sequence[Course], history: History) -> str:
    """The whole file."""
    sampled = [(it.name, it.sampled(POINTS)) for it in courses]
    most = max(sample.waiting for _, samples in sampled for sample in samples)
    step = max(1, math.ceil(most / LEVELS))
    top = step * max(1, math.ceil(most / step))
    days = range(int(history.seconds / DAY_SECONDS) + 1)
    across = [Tick(day * DAY_SECONDS / history.seconds if day else 0.0, str(day)) for day in days]
    below = f"days from {history.start:%Y-%m-%d %H:%M} UTC"
    places = [(number + 0.5) / POINTS for number in range(POINTS)]
    used = [
        Line(name, [(x, it.used_percent / 100) for x, it in zip(places, samples, strict=True)])
        for name, samples in sampled
    ]
    waiting = [
        Line(name, [(x, it.waiting / top) for x, it in zip(places, samples, strict=True)]) for name, samples in sampled
    ]
    pods = [Tick(count / top, str(count)) for count in range(0, top + 1, step)]
    return picture(
        [
            Chart("devices in use, % of the cluster", below, across, PERCENT_TICKS, used),
            Chart("pods that wait", below, across, pods, waiting),
        ]
    )
