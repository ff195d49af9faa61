"""A picture of runs in SVG: what is allocated, and what of the idle GPUs is lost, over demand; a line a policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from dra_operator.commands.charts import PERCENT_TICKS, Chart, Line, Tick, picture
from dra_operator.quality.states import Floats
from dra_operator.quality.study import RunResult

from .report import by_policy

STEP_PERCENT: Final = 20


def plotted(results: Sequence[RunResult]) -> str:
    """The whole file."""
    policies = [(name, [it.curve for it in its]) for name, its in by_policy(results)]
    allocated = [(name, _mean([it.allocated for it in its])) for name, its in policies]
    lost = [(name, _mean([it.lost for it in its])) for name, its in policies]
    return picture(
        [
            _chart("GPUs allocated, % of the cluster", allocated),
            _chart("idle GPUs lost to the usual pods, % of the idle ones", lost),
        ]
    )


def _mean(curves: Sequence[Floats]) -> Floats:
    length = min(map(len, curves))
    stacked = np.array([curve[:length] for curve in curves])
    known = ~np.isnan(stacked)
    counts = known.sum(axis=0)
    sums = np.where(known, stacked, 0.0).sum(axis=0)
    means: Floats = np.divide(sums, counts, out=np.full(length, np.nan), where=counts > 0)
    return means


def _chart(title: str, curves: Sequence[tuple[str, Floats]]) -> Chart:
    last = max(max(len(values) for _, values in curves) - 1, 1)
    across = [Tick(percent / last, str(percent)) for percent in range(0, last + 1, STEP_PERCENT)]
    lines = [
        Line(name, [(it / last, float(value) / 100) for it, value in enumerate(values) if not np.isnan(value)])
        for name, values in curves
    ]
    return Chart(title, "demand, % of the cluster", across, PERCENT_TICKS, lines)
